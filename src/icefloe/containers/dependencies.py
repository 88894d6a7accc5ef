"""Counts the external files that a repository depends on, and their containers.

Has the result types and the vectorized counting. `maintenance.dependents` and sessions fetch the
references. Pure, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe import display
from icefloe.model.arrow import load_pyarrow, to_dictionary_array
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.manifest import NO_CODE, merge_codes
from icefloe.model.strings import Strings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from numpy.typing import NDArray

    from icefloe.containers.virtual_chunks import VirtualChunks
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ChunkPayloads

_MERGE_ROWS = 1 << 20
"""Number of new rows to collect before a merge, which takes time proportional to all rows."""


@dataclass(frozen=True, slots=True)
class FileDependency:
    """A file that contains virtual chunks.

    Attributes
    ----------
    location
        Resolved location: one text per file, however it is referenced.
    container
        URL prefix of its container, None if no container matches.
    num_chunks
        Number of distinct byte ranges that are chunks.
    num_arrays
        Number of arrays with chunks in the file.
    num_bytes
        Total size of the ranges.
    """

    location: str
    container: str | None
    num_chunks: int
    num_arrays: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ContainerDependency:
    """A container with virtual chunks.

    Attributes
    ----------
    url_prefix
        None for files without a container.
    is_authorized
        Whether this repository object can read it.
    authorization
        Python expression of the ``authorize_virtual_chunk_access`` argument that authorizes it,
        None for files without a container.
    num_files, num_chunks, num_arrays, num_bytes
        Totals of its files, as in `FileDependency`.
    """

    url_prefix: str | None
    name: str | None
    is_authorized: bool
    authorization: str | None
    num_files: int
    num_chunks: int
    num_arrays: int
    num_bytes: int


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Dependencies:
    """The external files that a repository needs, and their containers; columnar.

    A byte range counts once, however many references it has.

    Attributes
    ----------
    containers
        Sorted by number of bytes, largest first.
    num_arrays
        Number of arrays with virtual chunks.
    """

    containers: tuple[ContainerDependency, ...]
    num_arrays: int
    _locations: Strings
    _container: NDArray[np.int32]
    _chunks: NDArray[np.int64]
    _arrays: NDArray[np.int64]
    _bytes: NDArray[np.uint64]
    _prefixes: tuple[str, ...]

    @property
    def num_files(self) -> int:
        """Number of files."""
        return len(self._locations)

    @property
    def num_chunks(self) -> int:
        """Number of distinct byte ranges that are chunks."""
        return int(self._chunks.sum())

    @property
    def num_bytes(self) -> int:
        """Total size of the ranges."""
        return int(self._bytes.sum())

    @property
    def unauthorized(self) -> tuple[ContainerDependency, ...]:
        """The containers that this repository object cannot read."""
        containers = [item for item in self.containers if item.url_prefix is not None]
        return tuple(item for item in containers if not item.is_authorized)

    @property
    def num_files_without_container(self) -> int:
        """Number of files without a container, which cannot be read."""
        return sum(item.num_files for item in self.containers if item.url_prefix is None)

    def locations(self) -> list[str]:
        """Return the locations of the files."""
        return self._locations.tolist()

    def files(self) -> Iterator[FileDependency]:
        """Yield the files one by one."""
        prefix_by_code: list[str | None] = [*self._prefixes, None]  # NO_CODE is -1
        containers = [prefix_by_code[code] for code in self._container.tolist()]
        counts = (column.tolist() for column in (self._chunks, self._arrays, self._bytes))
        yield from map(FileDependency, self._locations, containers, *counts)

    def to_arrow(self) -> Any:
        """Return the files as an Arrow table with the fields of `FileDependency`."""
        pa = load_pyarrow()
        codes = np.arange(len(self._locations), dtype=np.int32)
        return pa.table(
            {
                "location": to_dictionary_array(codes, self._locations).dictionary_decode(),
                "container": to_dictionary_array(self._container, Strings.of(self._prefixes)),
                "num_chunks": self._chunks,
                "num_arrays": self._arrays,
                "num_bytes": self._bytes,
            }
        )

    def __repr__(self) -> str:
        return f"<Dependencies: {display.summarize_dependencies(self)}>"

    def __str__(self) -> str:
        return display.render_dependencies_text(self)

    @display.with_repr_fallback
    def _repr_html_(self) -> str:
        return display.render_dependencies_html(self)


@dataclass(frozen=True, slots=True)
class DependentSnapshot:
    """A snapshot with virtual chunks in a file.

    Attributes
    ----------
    branches, tags
        Branches and tags that point to the snapshot.
    arrays
        Paths of the arrays with chunks in the file.
    """

    id: str
    written_at: datetime
    message: str
    branches: tuple[str, ...]
    tags: tuple[str, ...]
    arrays: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Dependents:
    """The snapshots that refer to a file, or to any file below a prefix that ends in ``/``.

    Attributes
    ----------
    snapshots
        In the history of any branch or tag, newest first.
    """

    location: str
    snapshots: tuple[DependentSnapshot, ...]

    @property
    def may_delete(self) -> bool:
        """Whether no snapshot refers to the file; uncommitted sessions may still do."""
        return not self.snapshots

    @property
    def branches(self) -> tuple[str, ...]:
        """The branches whose tip refers to the file."""
        return tuple(sorted({name for snapshot in self.snapshots for name in snapshot.branches}))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that refer to the file."""
        return tuple(sorted({name for snapshot in self.snapshots for name in snapshot.tags}))

    @property
    def arrays(self) -> tuple[str, ...]:
        """The paths of the arrays that refer to the file in any snapshot."""
        return tuple(sorted({path for snapshot in self.snapshots for path in snapshot.arrays}))

    def __repr__(self) -> str:
        return f"<Dependents of {display.summarize_dependents(self)}>"

    def __str__(self) -> str:
        return display.render_dependents_text(self)

    @display.with_repr_fallback
    def _repr_html_(self) -> str:
        return display.render_dependents_html(self)


class DependencyCounter:
    """Counts files, chunks, arrays and bytes; each byte range counts once."""

    def __init__(self) -> None:
        self._merged = _Ranges.empty()
        self._parts: list[_Ranges] = []
        self._rows = 0
        self._arrays: dict[NodeId, int] = {}

    def add(self, node_id: NodeId, payloads: ChunkPayloads) -> None:
        """Add the virtual chunks of an array."""
        part = _Ranges.from_payloads(payloads, self._arrays.get(node_id, len(self._arrays)))
        if not len(part.location):
            return
        self._arrays.setdefault(node_id, len(self._arrays))
        self._parts.append(part)
        self._rows += len(part.location)
        if self._rows > max(_MERGE_ROWS, len(self._merged.location)):
            self._merge()

    def finish(self, virtual: VirtualChunks) -> Dependencies:
        """Return the counts by file and by container."""
        self._merge()
        ranges = self._merged
        resolved = virtual.resolve_many(ranges.locations)
        codes, locations = resolved.locations.unique()
        count = len(locations)
        container = np.full(count, NO_CODE, np.int32)
        container[codes] = resolved.container
        # Until here, two texts of one file count as two files.
        location, file = codes[ranges.location], codes[ranges.file]
        ranges = replace(ranges, location=location, locations=locations, file=file).deduplicate()
        accesses = virtual.containers()
        sizes = np.zeros(count, np.uint64)
        np.add.at(sizes, ranges.location, ranges.length)
        return Dependencies(
            containers=_count_by_container(ranges, container, sizes, virtual),
            num_arrays=len(self._arrays),
            _locations=locations,
            _container=container,
            _chunks=np.bincount(ranges.location, minlength=count),
            _arrays=np.bincount(ranges.file, minlength=count),
            _bytes=sizes,
            _prefixes=tuple(access.container.url_prefix for access in accesses),
        )

    def _merge(self) -> None:
        if self._parts:
            self._merged = _Ranges.concatenate([self._merged, *self._parts]).deduplicate()
            self._parts, self._rows = [], 0


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Byte ranges (``location``, ``offset``, ``length``) and pairs of ``file`` and ``array``."""

    location: NDArray[np.int32]
    locations: Strings
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    file: NDArray[np.int32]
    array: NDArray[np.int32]

    @classmethod
    def empty(cls) -> _Ranges:
        codes, numbers = np.zeros(0, np.int32), np.zeros(0, np.uint64)
        return cls(codes, Strings.of([]), numbers, numbers, codes, codes)

    @classmethod
    def from_payloads(cls, payloads: ChunkPayloads, array: int) -> _Ranges:
        is_virtual = payloads.kind == ChunkKind.VIRTUAL
        rows = payloads if is_virtual.all() else payloads.select_rows(np.flatnonzero(is_virtual))
        is_used = np.zeros(len(rows.locations), bool)
        is_used[rows.location] = True
        used = np.flatnonzero(is_used).astype(np.int32)
        table, location = rows.locations, rows.location
        if len(used) < len(table):
            renumber = np.cumsum(is_used, dtype=np.int32) - np.int32(1)
            table, location = table.take(used.astype(np.int64)), renumber[location]
            used = np.arange(len(used), dtype=np.int32)
        arrays = np.full(len(used), array, np.int32)
        return cls(location, table, rows.offset, rows.length, used, arrays)

    @classmethod
    def concatenate(cls, parts: list[_Ranges]) -> _Ranges:
        location, locations = merge_codes([(part.location, part.locations) for part in parts])
        file, _ = merge_codes([(part.file, part.locations) for part in parts])
        offset = np.concatenate([part.offset for part in parts])
        length = np.concatenate([part.length for part in parts])
        array = np.concatenate([part.array for part in parts])
        return cls(location, locations, offset, length, file, array)

    def deduplicate(self) -> _Ranges:
        """Remove duplicate ranges and duplicate pairs."""
        rows = _find_distinct_rows((self.length, self.offset, self.location))
        pairs = _find_distinct_rows((self.array, self.file))
        return _Ranges(
            self.location[rows],
            self.locations,
            self.offset[rows],
            self.length[rows],
            self.file[pairs],
            self.array[pairs],
        )


def _find_distinct_rows(columns: tuple[NDArray[Any], ...]) -> NDArray[np.int64]:
    """Return the indices of distinct rows; the last column is the primary sort key."""
    if _is_increasing(columns):
        return np.arange(len(columns[0]))
    order = np.lexsort(columns)
    is_first = np.zeros(len(order), bool)
    is_first[:1] = True
    for column in columns:
        ordered = column[order]
        is_first[1:] |= ordered[1:] != ordered[:-1]
    return np.asarray(order[is_first])


def _is_increasing(columns: tuple[NDArray[Any], ...]) -> bool:
    """Return whether each row is larger than the previous one, so that no sort is needed."""
    equal = np.ones(max(0, len(columns[0]) - 1), bool)
    for column in reversed(columns):
        if (equal & (column[1:] < column[:-1])).any():
            return False
        equal &= column[1:] == column[:-1]
    return not equal.any()


def _count_by_container(
    ranges: _Ranges, container: NDArray[np.int32], sizes: NDArray[np.uint64], virtual: VirtualChunks
) -> tuple[ContainerDependency, ...]:
    dependencies = []
    accesses = virtual.containers()
    range_container, pair_container = container[ranges.location], container[ranges.file]
    for code in np.unique(container).tolist():
        is_member = container == code
        access = None if code == NO_CODE else accesses[code]
        dependencies.append(
            ContainerDependency(
                url_prefix=None if access is None else access.container.url_prefix,
                name=None if access is None else access.container.name,
                is_authorized=access is not None and access.is_authorized,
                authorization=None if access is None else access.authorization,
                num_files=int(is_member.sum()),
                num_chunks=int((range_container == code).sum()),
                num_arrays=len(np.unique(ranges.array[pair_container == code])),
                num_bytes=int(sizes[is_member].sum()),
            )
        )
    return tuple(sorted(dependencies, key=lambda item: (-item.num_bytes, item.url_prefix or "")))
