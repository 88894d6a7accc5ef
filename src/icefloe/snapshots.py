"""What history tells: snapshots, and what changed between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from icefloe.model import snapshot as model

__all__ = ["Diff", "ManifestFileInfo", "SnapshotInfo"]


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """One commit, as history shows it."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, info: model.SnapshotInfo) -> SnapshotInfo:
        """Show a commit to users."""
        parent = None if info.parent_id is None else str(info.parent_id)
        return cls(str(info.id), parent, info.flushed_at, info.message, dict(info.metadata))


@dataclass(frozen=True, slots=True)
class ManifestFileInfo:
    """One manifest file that a snapshot needs."""

    id: str
    size_bytes: int
    num_chunk_refs: int


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed: the paths of groups and arrays, and the chunks of arrays.

    ``updated_groups`` and ``updated_arrays`` are those whose metadata changed; ``updated_chunks``
    has chunks that were written or deleted.
    """

    new_groups: set[str] = field(default_factory=set)
    new_arrays: set[str] = field(default_factory=set)
    deleted_groups: set[str] = field(default_factory=set)
    deleted_arrays: set[str] = field(default_factory=set)
    updated_groups: set[str] = field(default_factory=set)
    updated_arrays: set[str] = field(default_factory=set)
    updated_chunks: dict[str, list[list[int]]] = field(default_factory=dict)
    moved_nodes: list[tuple[str, str]] = field(default_factory=list)

    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not any(getattr(self, name) for name in self.__slots__)
