"""Public values of the history: snapshots, diffs and the commit graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from icefloe import display

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from icefloe.model import snapshot as model

__all__ = ["AncestryGraph", "Diff", "History", "ManifestFileInfo", "SnapshotInfo"]

K = TypeVar("K")


class _LazyFields:
    """Base class of a frozen dataclass with slots, to make instances before their fields.

    Such an instance behaves as any other. If reading its fields fails, each access raises the
    error.
    """

    __slots__ = ("_key", "_read")

    @classmethod
    def _make_lazily(
        cls, read: Callable[[K], tuple[Any, ...]], keys: Iterable[K]
    ) -> Iterator[Self]:
        """Yield an instance for each key, whose fields the first access gets from ``read``."""
        new = cls.__new__
        for key in keys:
            instance = new(cls)
            _set_read(instance, read)
            _set_key(instance, key)
            yield instance

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Python calls this for attributes that are not set.
            if name in self.__match_args__:
                key, read = self._key, self._read  # in this order: another thread may reset both
                if read is not None:
                    for field_name, value in zip(self.__match_args__, read(key), strict=True):
                        object.__setattr__(self, field_name, value)
                    _set_read(self, None)
                    _set_key(self, None)
            return object.__getattribute__(self, name)


# The setters of the slots bypass the frozen dataclass.
_set_key = _LazyFields.__dict__["_key"].__set__
_set_read = _LazyFields.__dict__["_read"].__set__


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotInfo(_LazyFields):
    """A commit in history."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, info: model.SnapshotInfo) -> SnapshotInfo:
        """Convert a stored commit."""
        return cls(*_convert_fields(info))

    @classmethod
    def of_all(
        cls, read: Callable[[K], model.SnapshotInfo], keys: Iterable[K]
    ) -> Iterator[SnapshotInfo]:
        """Convert stored commits, each of which is read when it is accessed."""
        return cls._make_lazily(lambda key: _convert_fields(read(key)), keys)

    def __repr__(self) -> str:
        when = display.format_time(self.written_at)
        return f"<SnapshotInfo {self.id}, {when} UTC: {display.format_first_line(self.message)!r}>"

    @display.with_repr_fallback
    def _repr_html_(self) -> str:
        return display.render_history_html([self])


def _convert_fields(info: model.SnapshotInfo) -> tuple[Any, ...]:
    parent = None if info.parent_id is None else str(info.parent_id)
    return str(info.id), parent, info.flushed_at, info.message, dict(info.metadata)


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
