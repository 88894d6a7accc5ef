"""What can stand between a session and the commits of others, and who decides about it."""

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
    """Whose change stays when two changed the same thing."""

    Fail = 0
    UseOurs = 1
    UseTheirs = 2


def require_version_selection(value: object) -> None:
    """Refuse a choice that is none, before it counts as one of the sides."""
    if not isinstance(value, VersionSelection):
        names = ", ".join(f"VersionSelection.{one.name}" for one in VersionSelection)
        raise InvalidInputError(
            f"on_chunk_conflict is one of {names}, not {value!r}",
            kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )


class ConflictType(Enum):
    """How the changes of a session and those of a commit contradict each other."""

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


@dataclass(frozen=True, slots=True, repr=False)
class Conflict:
    """One contradiction: of which kind, at which path, and for chunks which of them."""

    conflict_type: ConflictType
    path: str
    conflicted_chunks: list[list[int]] | None = None

    def __repr__(self) -> str:
        return f"<Conflict {self}>"

    def __str__(self) -> str:
        where = f"{self.conflict_type.name} at {self.path}"
        if not self.conflicted_chunks:
            return where
        shown = ", ".join(str(chunk) for chunk in self.conflicted_chunks[:3])
        more = len(self.conflicted_chunks) - 3
        return f"{where}, chunks {shown}{f' and {more} more' if more > 0 else ''}"


class ConflictSolver:
    """Decides about conflicts; a subclass answers `decide`."""

    def decide(self, conflict: Conflict) -> VersionSelection:
        """Say whose change stays.

        ``UseTheirs`` is possible for chunks that both wrote. ``UseOurs`` is possible for those too,
        and for what this session deletes although it was updated. Anything else cannot be solved
        by choosing a side, and counts as ``Fail``.
        """
        raise NotImplementedError


def require_solver(solver: object) -> None:
    """Refuse what could not decide when it is asked, after everything was written."""
    if not isinstance(solver, ConflictSolver):
        problem = f"{solver!r} is none"
    elif type(solver).decide is ConflictSolver.decide:
        problem = f"{type(solver).__name__} has no method decide(conflict) of its own"
    else:
        return
    raise InvalidInputError(
        f"conflicts are decided by a ConflictSolver, and {problem}: pass ConflictDetector() or "
        "BasicConflictSolver(...)",
        kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
    )


class ConflictDetector(ConflictSolver):
    """Solves nothing: any conflict stops the rebase and is reported."""

    def decide(self, conflict: Conflict) -> VersionSelection:  # noqa: ARG002
        """Fail."""
        return VersionSelection.Fail

    def __repr__(self) -> str:
        return "ConflictDetector()"


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicConflictSolver(ConflictSolver):
    """Solves what can be solved by a rule.

    Parameters
    ----------
    on_chunk_conflict
        Whose chunk stays where both wrote the same one.
    fail_on_delete_of_updated_array, fail_on_delete_of_updated_group
        Whether it is a conflict that this session deletes what others updated; if not, it is
        deleted.
    """

    on_chunk_conflict: VersionSelection = VersionSelection.UseOurs
    fail_on_delete_of_updated_array: bool = False
    fail_on_delete_of_updated_group: bool = False

    def __post_init__(self) -> None:
        require_version_selection(self.on_chunk_conflict)

    def decide(self, conflict: Conflict) -> VersionSelection:
        """Apply the rules."""
        match conflict.conflict_type:
            case ConflictType.ChunkDoubleUpdate:
                return self.on_chunk_conflict
            case ConflictType.DeleteOfUpdatedArray if not self.fail_on_delete_of_updated_array:
                return VersionSelection.UseOurs
            case ConflictType.DeleteOfUpdatedGroup if not self.fail_on_delete_of_updated_group:
                return VersionSelection.UseOurs
            case _:
                return VersionSelection.Fail
