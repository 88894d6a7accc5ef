"""Counts the external files that a repository depends on, and their containers.

Defines the result types and counts with NumPy, without I/O; `maintenance.dependents` and `Session`
fetch the references.
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
from icefloe.url_secrets import masked_repr

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from numpy.typing import NDArray

    from icefloe.containers.authorization import ContainerAccess
    from icefloe.containers.virtual_chunks import VirtualChunks
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ChunkPayloads

_MIN_MERGE_ROWS = 1 << 20
"""Minimum number of new rows before a merge; a merge takes time proportional to all rows."""


@masked_repr
@dataclass(frozen=True, slots=True)
class FileDependency:
    """A file that contains virtual chunks.

    Attributes
    ----------
    location
        Resolved location; the same for every spelling under which the file is referenced.
    container
        URL prefix of its container, None if no container matches.
    num_chunks
        Number of distinct byte ranges referenced as chunks.
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


@masked_repr
@dataclass(frozen=True, slots=True)
class ContainerDependency:
    """The virtual chunks of one container, or of all files that no container matches.

    Attributes
    ----------
    url_prefix
        None for the files that no container matches.
    is_authorized
        Whether the `Repository` that produced this result can read it.
    authorization
        Python expression to pass as ``authorize_virtual_chunk_access`` to authorize it, None for
        the files that no container matches.
    num_files
        Number of files.
    num_chunks, num_arrays, num_bytes
        Totals over these files, as in `FileDependency`; each array counts once.
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
    """The external files that a repository needs, stored as columns, and their containers.

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
    _container_codes: NDArray[np.int32]
    _chunk_counts: NDArray[np.int64]
    _array_counts: NDArray[np.int64]
    _byte_counts: NDArray[np.uint64]
    _prefixes: tuple[str, ...]

    @property
    def num_files(self) -> int:
        """Number of files."""
        return len(self._locations)

    @property
    def num_chunks(self) -> int:
        """Number of distinct byte ranges referenced as chunks."""
        return int(self._chunk_counts.sum())

    @property
    def num_bytes(self) -> int:
        """Total size of the ranges."""
        return int(self._byte_counts.sum())

    @property
    def unauthorized(self) -> tuple[ContainerDependency, ...]:
        """The containers that the `Repository` that produced this result cannot read."""
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
        # NO_CODE (-1) selects the last entry, None.
        prefix_by_code: list[str | None] = [*self._prefixes, None]
        containers = [prefix_by_code[code] for code in self._container_codes.tolist()]
        columns = (self._chunk_counts, self._array_counts, self._byte_counts)
        counts = (column.tolist() for column in columns)
        yield from map(FileDependency, self._locations, containers, *counts)

    def to_arrow(self) -> Any:
        """Return the files as an Arrow table with the fields of `FileDependency`."""
        pa = load_pyarrow()
        codes = np.arange(len(self._locations), dtype=np.int32)
        return pa.table(
            {
                "location": to_dictionary_array(codes, self._locations).dictionary_decode(),
                "container": to_dictionary_array(self._container_codes, Strings.of(self._prefixes)),
                "num_chunks": self._chunk_counts,
                "num_arrays": self._array_counts,
                "num_bytes": self._byte_counts,
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
        """Whether no snapshot in the history of a branch or tag refers to the file.

        Uncommitted sessions may still refer to it.
        """
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
        self._num_pending_rows = 0
        self._array_codes: dict[NodeId, int] = {}

    def add(self, node_id: NodeId, payloads: ChunkPayloads) -> None:
        """Add the virtual chunks of an array."""
        array_code = self._array_codes.get(node_id, len(self._array_codes))
        part = _Ranges.from_payloads(payloads, array_code)
        if not len(part.range_location):
            return
        self._array_codes.setdefault(node_id, array_code)
        self._parts.append(part)
        self._num_pending_rows += len(part.range_location)
        if self._num_pending_rows > max(_MIN_MERGE_ROWS, len(self._merged.range_location)):
            self._merge()

    def finish(self, virtual_chunks: VirtualChunks) -> Dependencies:
        """Return the counts by file and by container."""
        self._merge()
        ranges = self._merged
        resolved = virtual_chunks.resolve_many(ranges.locations)
        codes, locations = resolved.locations.unique()
        num_files = len(locations)
        container_codes = np.full(num_files, NO_CODE, np.int32)
        container_codes[codes] = resolved.container
        # Different spellings of a location were separate files so far; now they become one.
        ranges = replace(
            ranges,
            locations=locations,
            range_location=codes[ranges.range_location],
            pair_location=codes[ranges.pair_location],
        ).deduplicate()
        container_access = virtual_chunks.containers()
        byte_counts = np.zeros(num_files, np.uint64)
        np.add.at(byte_counts, ranges.range_location, ranges.range_length)
        return Dependencies(
            containers=_count_by_container(ranges, container_codes, byte_counts, container_access),
            num_arrays=len(self._array_codes),
            _locations=locations,
            _container_codes=container_codes,
            _chunk_counts=np.bincount(ranges.range_location, minlength=num_files),
            _array_counts=np.bincount(ranges.pair_location, minlength=num_files),
            _byte_counts=byte_counts,
            _prefixes=tuple(access.container.url_prefix for access in container_access),
        )

    def _merge(self) -> None:
        if self._parts:
            self._merged = _Ranges.concatenate([self._merged, *self._parts]).deduplicate()
            self._parts, self._num_pending_rows = [], 0


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Two columnar tables: byte ranges of files, and pairs of a file and an array.

    The pairs tell which arrays have chunks in which files. Columns of both tables refer to
    ``locations`` by index: ``range_location`` and ``pair_location``. ``pair_array`` holds the array
    codes of `DependencyCounter`.
    """

    locations: Strings
    range_location: NDArray[np.int32]
    range_offset: NDArray[np.uint64]
    range_length: NDArray[np.uint64]
    pair_location: NDArray[np.int32]
    pair_array: NDArray[np.int32]

    @classmethod
    def empty(cls) -> _Ranges:
        codes, numbers = np.zeros(0, np.int32), np.zeros(0, np.uint64)
        return cls(Strings.of([]), codes, numbers, numbers, codes, codes)

    @classmethod
    def from_payloads(cls, payloads: ChunkPayloads, array_code: int) -> _Ranges:
        is_virtual = payloads.kind == ChunkKind.VIRTUAL
        rows = payloads if is_virtual.all() else payloads.select_rows(np.flatnonzero(is_virtual))
        is_used = np.zeros(len(rows.locations), bool)
        is_used[rows.location_codes] = True
        used = np.flatnonzero(is_used).astype(np.int32)
        locations, location_codes = rows.locations, rows.location_codes
        if len(used) < len(locations):
            new_codes = np.cumsum(is_used, dtype=np.int32) - np.int32(1)
            locations = locations.take(used.astype(np.int64))
            location_codes = new_codes[location_codes]
            used = np.arange(len(used), dtype=np.int32)
        pair_array = np.full(len(used), array_code, np.int32)
        return cls(locations, location_codes, rows.offset, rows.length, used, pair_array)

    @classmethod
    def concatenate(cls, parts: list[_Ranges]) -> _Ranges:
        range_location, locations = merge_codes(
            [(part.range_location, part.locations) for part in parts]
        )
        pair_location, _ = merge_codes([(part.pair_location, part.locations) for part in parts])
        return cls(
            locations,
            range_location,
            np.concatenate([part.range_offset for part in parts]),
            np.concatenate([part.range_length for part in parts]),
            pair_location,
            np.concatenate([part.pair_array for part in parts]),
        )

    def deduplicate(self) -> _Ranges:
        """Remove duplicate ranges and duplicate pairs."""
        ranges = _find_distinct_rows((self.range_length, self.range_offset, self.range_location))
        pairs = _find_distinct_rows((self.pair_array, self.pair_location))
        return _Ranges(
            self.locations,
            self.range_location[ranges],
            self.range_offset[ranges],
            self.range_length[ranges],
            self.pair_location[pairs],
            self.pair_array[pairs],
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
    ranges: _Ranges,
    container_codes: NDArray[np.int32],
    byte_counts: NDArray[np.uint64],
    container_access: list[ContainerAccess],
) -> tuple[ContainerDependency, ...]:
    dependencies = []
    range_container = container_codes[ranges.range_location]
    pair_container = container_codes[ranges.pair_location]
    for code in np.unique(container_codes).tolist():
        is_member = container_codes == code
        access = None if code == NO_CODE else container_access[code]
        dependencies.append(
            ContainerDependency(
                url_prefix=None if access is None else access.container.url_prefix,
                name=None if access is None else access.container.name,
                is_authorized=access is not None and access.is_authorized,
                authorization=None if access is None else access.authorization,
                num_files=int(is_member.sum()),
                num_chunks=int((range_container == code).sum()),
                num_arrays=len(np.unique(ranges.pair_array[pair_container == code])),
                num_bytes=int(byte_counts[is_member].sum()),
            )
        )
    return tuple(sorted(dependencies, key=lambda item: (-item.num_bytes, item.url_prefix or "")))
