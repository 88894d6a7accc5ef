"""Public values of the history: snapshots, diffs and the commit graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icefloe import display

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from icefloe.model import snapshot as model

__all__ = ["AncestryGraph", "Diff", "History", "ManifestFileInfo", "SnapshotInfo"]


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotInfo:
    """A commit in history."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, info: model.SnapshotInfo) -> SnapshotInfo:
        """Convert a stored commit."""
        parent = None if info.parent_id is None else str(info.parent_id)
        return cls(str(info.id), parent, info.flushed_at, info.message, dict(info.metadata))

    def __repr__(self) -> str:
        when = display.format_time(self.written_at)
        return f"<SnapshotInfo {self.id}, {when} UTC: {display.format_first_line(self.message)!r}>"

    @display.with_repr_fallback
    def _repr_html_(self) -> str:
        return display.render_history_html([self])


class History(tuple[SnapshotInfo, ...]):
    """A list of commits, shown as a table in notebooks: ``History(repo.ancestry(…))``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "<History: no commits>"

    @display.with_repr_fallback
    def _repr_html_(self) -> str:
        return display.render_history_html(self)


@dataclass(frozen=True, slots=True)
class ManifestFileInfo:
    """A manifest file of a snapshot."""

    id: str
    size_bytes: int
    num_chunk_refs: int


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """Differences between snapshots: paths of groups and arrays, and chunks of arrays.

    ``updated_groups`` and ``updated_arrays`` have new metadata; ``updated_chunks`` were written or
    deleted.
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

    def __repr__(self) -> str:
        return f"<Diff: {display.summarize_diff(self)}>"

    def __str__(self) -> str:
        return display.render_diff_text(self)

    @display.with_repr_fallback
    def _repr_html_(self) -> str:
        return display.render_diff_html(self)


class AncestryGraph:
    """A graph of commits: prints as text, displays as SVG in notebooks.

    ``commits`` may be in any order; ``plain`` omits colors.
    """

    def __init__(self, commits: Iterable[display.Commit] = (), *, plain: bool = False) -> None:
        self._graph = display.lay_out(commits)
        self._plain = plain

    def __repr__(self) -> str:
        return display.render_graph_text(self._graph, plain=self._plain)

    __str__ = __repr__

    def _repr_svg_(self) -> str:
        return display.render_graph_svg(self._graph, plain=self._plain)
