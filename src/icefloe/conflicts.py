"""Conflicts between a session and commits of other writers, and solvers of conflicts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from icefloe.errors import ErrorKind, InvalidInputError

__all__ = [
    "BasicConflictSolver",
    "Conflict",
    "ConflictDetector",
    "ConflictSolver",
    "ConflictType",
    "VersionSelection",
]


class VersionSelection(Enum):
    """Which side wins a conflict: the session (ours), the commit or fork (theirs), or none."""

    Fail = 0
    UseOurs = 1
    UseTheirs = 2

    def __int__(self) -> int:
        return self.value


def require_version_selection(value: object) -> None:
    """Raise `InvalidInputError` if ``on_chunk_conflict`` is not a `VersionSelection`."""
    if not isinstance(value, VersionSelection):
        names = ", ".join(map(str, VersionSelection))
        raise InvalidInputError(
            f"on_chunk_conflict must be one of {names}, not {value!r}",
            kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )


class ConflictType(Enum):
    """The kind of a conflict between a session and a commit."""

    NewNodeConflictsWithExistingNode = 1
    NewNodeInInvalidGroup = 2
    ZarrMetadataDoubleUpdate = 3
    ZarrMetadataUpdateOfDeletedArray = 4
    ZarrMetadataUpdateOfDeletedGroup = 5
    ChunkDoubleUpdate = 6
    ChunksUpdatedInDeletedArray = 7
    ChunksUpdatedInUpdatedArray = 8
    DeleteOfUpdatedArray = 9
    DeleteOfUpdatedGroup = 10
    MoveOperationCannotBeRebased = 11

    def __int__(self) -> int:
        return self.value


@dataclass(frozen=True, slots=True, repr=False)
class Conflict:
    """A conflict: its kind, the path of the node and, for chunks, the indices of each chunk."""

    conflict_type: ConflictType
    path: str
    conflicted_chunks: list[list[int]] | None = None

    def __repr__(self) -> str:
        return f"<Conflict {self}>"

    def __str__(self) -> str:
        text = f"{self.conflict_type.name} at {self.path}"
        if not self.conflicted_chunks:
            return text
        first_chunks = self.conflicted_chunks[:3]
        num_more = len(self.conflicted_chunks) - len(first_chunks)
        chunks = ", ".join(map(str, first_chunks))
        return f"{text}, chunks {chunks}{f' and {num_more} more' if num_more else ''}"


class ConflictSolver:
    """Base class of solvers; subclasses implement `decide`."""

    def decide(self, conflict: Conflict) -> VersionSelection:
        """Return which side wins.

        ``UseTheirs`` and ``UseOurs`` solve chunks that both sides wrote; ``UseOurs`` also solves
        deletions of updated nodes. For other conflicts, every result counts as ``Fail``.
        """
        raise NotImplementedError


def require_solver(solver: object) -> None:
    """Raise `InvalidInputError` if a value is not a solver that implements `decide`."""
    if not isinstance(solver, ConflictSolver):
        problem = f"got {solver!r}"
    elif type(solver).decide is ConflictSolver.decide:
        problem = f"but {type(solver).__name__} does not implement decide(conflict)"
    else:
        return
    raise InvalidInputError(
        f"expected a ConflictSolver, {problem}: pass ConflictDetector() or "
        "BasicConflictSolver(...)",
        kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
    )


class ConflictDetector(ConflictSolver):
    """Solves nothing: any conflict fails the rebase."""

    def decide(self, conflict: Conflict) -> VersionSelection:  # noqa: ARG002
        """Return ``Fail``."""
        return VersionSelection.Fail

    def __repr__(self) -> str:
        return "ConflictDetector()"


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicConflictSolver(ConflictSolver):
    """Solves conflicts by fixed rules.

    Parameters
    ----------
    on_chunk_conflict
        Which version of a chunk wins if both sides wrote it.
    fail_on_delete_of_updated_array, fail_on_delete_of_updated_group
        Whether the rebase fails if this session deletes a node that another commit updated;
        otherwise the node is deleted.
    """

    on_chunk_conflict: VersionSelection = VersionSelection.UseOurs
    fail_on_delete_of_updated_array: bool = False
    fail_on_delete_of_updated_group: bool = False

    def __post_init__(self) -> None:
        require_version_selection(self.on_chunk_conflict)

    def decide(self, conflict: Conflict) -> VersionSelection:
        """Return which side wins by the rules."""
        match conflict.conflict_type:
            case ConflictType.ChunkDoubleUpdate:
                return self.on_chunk_conflict
            case ConflictType.DeleteOfUpdatedArray if not self.fail_on_delete_of_updated_array:
                return VersionSelection.UseOurs
            case ConflictType.DeleteOfUpdatedGroup if not self.fail_on_delete_of_updated_group:
                return VersionSelection.UseOurs
            case _:
                return VersionSelection.Fail
