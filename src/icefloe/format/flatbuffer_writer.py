"""Columnar writer of flatbuffers.

A `Layout` reserves space from the start to the end of the file; parents precede their children,
because flatbuffers point forward. `Records` represents many tables of one type as a numpy record
array, which is filled field by field.

Every table has its own vtable, at a constant distance. This compresses better than a shared vtable,
to which all distances differ (a million chunk references: 3.8 MB instead of 6.2 MB). To omit a
field, its entry in the vtable is set to zero.

Reserving space checks the maximum size of a flatbuffer, 2 GiB, before memory is allocated.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.envelope import MAX_FLATBUFFER_SIZE, pack
from icefloe.model.columns import sort_distinct, to_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.format.envelope import FileType
    from icefloe.format.schema import Field
    from icefloe.model.strings import Strings

FILE_IDENTIFIER = b"Ichk"

BLOCK_ROWS = 1 << 14
"""Rows per block, so that records are still in the CPU cache when they are compressed."""


class Layout:
    """The content of one flatbuffer, in file order.

    ``description`` and ``advice``, which says how to get smaller files, are used in errors;
    ``existing_size`` is the size of a file to append to.
    """

    def __init__(self, description: str, *, advice: str = "", existing_size: int = 0) -> None:
        self._description = description
        self.advice = advice
        self._head = np.zeros(2, "<u4")
        self._head[1:] = np.frombuffer(FILE_IDENTIFIER, "<u4")
        self._pieces: list[tuple[int, NDArray[np.generic] | LazyContent]] = []
        self._begin, self._end = existing_size, existing_size
        if not existing_size:
            self.put(self.reserve(self._head.nbytes), self._head)

    def reserve(self, size: int, align: int = 4, *, before: int = 0) -> int:
        """Reserve ``size`` bytes so that the byte at offset ``before`` is aligned."""
        self.require_room(size + align)
        start = self._end + (-(self._end + before) % align)
        self._end = start + size
        return start

    def require_room(self, size: int) -> None:
        """Raise if ``size`` more bytes exceed the maximum; for use before an allocation."""
        if self._end + size > MAX_FLATBUFFER_SIZE:
            problem = f"{self._description} would exceed 2 GiB, the maximum of a metadata file"
            raise FormatError(
                f"{problem}: {self.advice}" if self.advice else problem,
                kind=ErrorKind.SERIALIZATION,
            )

    def count_fitting(self, size: int) -> int:
        """Return how many more items of ``size`` bytes fit."""
        return max(0, MAX_FLATBUFFER_SIZE - self._end) // size

    def put(self, start: int, piece: NDArray[np.generic] | LazyContent) -> None:
        """Put a piece at a reserved position; it can be modified until `iter_pieces` is called."""
        self._pieces.append((start, piece))

    def add_records(self, rows: int, fields: Sequence[Field]) -> Records:
        """Add ``rows`` consecutive tables to fill."""
        records = Records(fields)
        start = self.reserve(rows * records.stride, 8)
        records.place(start + np.arange(rows, dtype=np.int64) * records.stride)
        self.put(start, records.array)
        return records

    def add_blobs(self, table: Strings) -> NDArray[np.int64]:
        """Add strings or byte vectors; return their positions."""
        sizes = get_blob_sizes(table.lengths)
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        start = self.reserve(total)
        out = np.zeros(total, np.uint8)
        write_blobs(out, ends - sizes, table, np.arange(len(table)))
        self.put(start, out)
        return start + ends - sizes

    def add_vectors(
        self, counts: NDArray[np.int64], dtype: str | np.dtype[Any], *, align: int = 4
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Add a vector for each count; return their positions, and all items to fill."""
        kind = np.dtype(dtype)
        if len(counts) == 1:
            size = int(counts[0]) * kind.itemsize
            start = self.reserve(4 + size, max(align, 4), before=4)
            self.put(start, np.array(counts, "<u4"))
            items = np.zeros(int(counts[0]), kind)
            self.put(start + 4, items)
            return np.array([start], np.int64), items
        return self._add_vectors(counts, kind, align)

    def add_id_vectors(
        self, counts: NDArray[np.int64], rows: NDArray[np.uint8]
    ) -> NDArray[np.int64]:
        """Add vectors of ids, given as rows of bytes; return their positions."""
        size = rows.shape[1]
        positions, items = self.add_vectors(counts, f"V{size}")
        items[:] = np.ascontiguousarray(rows).view(f"V{size}").reshape(-1)
        return positions

    def _add_vectors(
        self, counts: NDArray[np.int64], kind: np.dtype[np.generic], align: int
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        # The count is at the end of the first unit, so that the items are aligned.
        unit = max(align, 4)
        sizes = unit + -(-counts * kind.itemsize // unit) * unit
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        start = self.reserve(total, unit)
        out = np.zeros(total, np.uint8)
        begins = ends - sizes + unit
        np.ndarray((max(0, total - 3),), "<u4", out, 0, (1,))[begins - 4] = counts
        items = np.zeros(int(counts.sum()), kind)
        firsts = np.cumsum(counts) - counts
        within = np.arange(len(items), dtype=np.int64) - np.repeat(firsts, counts)
        positions = np.repeat(begins, counts) + within * kind.itemsize
        self.put(start, _ScatteredItems(out, positions, items))
        return start + begins - 4, items

    def add_pointers(
        self, counts: NDArray[np.int64] | Sequence[int]
    ) -> tuple[NDArray[np.int64], Pointers]:
        """Add vectors of pointers; return their positions, and the pointers to set."""
        counts = np.asarray(counts, np.int64)
        splits = to_offsets(counts)
        size = int(splits[-1]) + len(counts)
        start = self.reserve(4 * size)
        words = np.zeros(size, "<u4")
        heads = splits[:-1] + np.arange(len(counts))
        words[heads] = counts
        self.put(start, words)
        is_pointer = np.ones(len(words), bool)
        is_pointer[heads] = False
        return start + heads * 4, Pointers(words, start, np.flatnonzero(is_pointer))

    def add_table_vectors(
        self, counts: NDArray[np.int64] | Sequence[int], fields: Sequence[Field]
    ) -> tuple[NDArray[np.int64], Records]:
        """Add vectors of tables; return the positions of the vectors, and the tables to fill."""
        positions, pointers = self.add_pointers(counts)
        records = self.add_records(int(np.sum(counts)), fields)
        pointers.set_targets(records.positions)
        return positions, records

    @property
    def size(self) -> int:
        """The size of the file so far, in bytes."""
        return self._end

    def pack(self, root: Records, *, file_type: FileType, spec_version: int, level: int) -> bytes:
        """Return the compressed metadata file."""
        return pack(
            self.iter_pieces(root),
            self.size,
            file_type=file_type,
            spec_version=spec_version,
            level=level,
        )

    def iter_pieces(self, root: Records | None = None) -> Iterator[memoryview]:
        """Yield all bytes in order; ``root`` is the root table of a new file."""
        if root is not None:
            self._head[0] = root.positions[0]
        cursor = self._begin
        for start, piece in self._pieces:
            if start > cursor:
                yield memoryview(bytes(start - cursor))
            parts = iter((piece,)) if isinstance(piece, np.ndarray) else piece.iter_pieces()
            yield from (part.reshape(-1).view(np.uint8).data for part in parts if part.size)
            cursor = start + piece.nbytes


class LazyContent(Protocol):
    """Content that is generated when the file is written."""

    nbytes: int

    def iter_pieces(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the content in order."""


class _ScatteredItems:
    """Items that are contiguous in memory and scattered in the file."""

    def __init__(
        self, out: NDArray[np.uint8], positions: NDArray[np.int64], items: NDArray[np.generic]
    ) -> None:
        self._out, self._positions, self._items = out, positions, items
        self.nbytes = out.nbytes

    def iter_pieces(self) -> Iterator[NDArray[np.uint8]]:
        if len(self._items):
            kind = self._items.dtype
            windows = np.ndarray((len(self._out) - kind.itemsize + 1,), kind, self._out, 0, (1,))
            windows[self._positions] = self._items
        yield self._out


class Pointers(NamedTuple):
    """The pointers of vectors."""

    words: NDArray[np.uint32]
    start: int
    slots: NDArray[np.int64]

    def set_targets(self, targets: NDArray[np.int64]) -> None:
        """Set the targets of the pointers."""
        self.words[self.slots] = targets - (self.start + self.slots * 4)


class _RecordLayout:
    """Where the parts of a record are."""

    def __init__(self, fields: Sequence[Field], tail: Sequence[tuple[str, str, int]]) -> None:
        slots = 2 + max((field.slot + 1 for field in fields), default=0)
        names, formats, offsets = ["vtable", "soffset"], [f"({slots},)<u2", "<i4"], [0]
        # Wide fields come first, so that only the start needs padding.
        ordered = sorted(fields, key=lambda field: -np.dtype(field.dtype).itemsize)
        wide = bool(ordered) and np.dtype(ordered[0].dtype).itemsize == 8
        table = -(-2 * slots // 4) * 4
        if wide and table % 8 == 0:
            table += 4  # eight-byte fields follow the four bytes of soffset
        offsets.append(table)
        end = table + 4
        entries = np.zeros(slots, np.uint16)
        for field in ordered:
            names.append(field.name)
            formats.append(f"({field.items},){field.dtype}" if field.items > 1 else field.dtype)
            offsets.append(end)
            entries[2 + field.slot] = end - table
            end += np.dtype(field.dtype).itemsize * field.items
        entries[0], entries[1] = 2 * slots, end - table
        self.field_offsets = dict(zip(names, offsets, strict=True))
        end = -(-end // 4) * 4
        for name, dtype, items in tail:
            names.append(name)
            formats.append(f"({items},){dtype}")
            offsets.append(end)
            end += np.dtype(dtype).itemsize * items
        self.tail_offsets = dict(zip(names, offsets, strict=True))
        self.stride = -(-end // (8 if wide else 4)) * (8 if wide else 4)
        self.table = table
        self.dtype = np.dtype(
            {"names": names, "formats": formats, "offsets": offsets, "itemsize": self.stride}
        )
        self.entries = entries


# Numpy parses the types of structs in Python, which takes longer than writing a small file.
_make_record_layout = lru_cache(maxsize=256)(_RecordLayout)


class Records:
    """Tables of one type as a numpy record array of vtable, table and tail."""

    def __init__(self, fields: Sequence[Field], tail: Sequence[tuple[str, str, int]] = ()) -> None:
        self._layout = _make_record_layout(tuple(fields), tuple(tail))
        self.stride = self._layout.stride
        self.array: NDArray[np.void] = np.zeros(0, self._layout.dtype)
        self._starts: NDArray[np.int64] = np.zeros(0, np.int64)

    def place(self, starts: NDArray[np.int64]) -> None:
        """Set the position of each record, and clear all records."""
        self._starts = starts
        self.array = np.zeros(len(starts), self._layout.dtype)
        self.array["vtable"] = self._layout.entries
        self.array["soffset"] = self._layout.table

    @property
    def positions(self) -> NDArray[np.int64]:
        """The position of each table."""
        return self.locate_tables(self._starts)

    def locate_tables(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of the tables of records that start at ``starts``."""
        return starts + self._layout.table

    def locate_tail(self, name: str) -> NDArray[np.int64]:
        """Return the position of a tail column in each record."""
        return self._starts + self._layout.tail_offsets[name]

    def fill(self, field: Field, values: object, present: NDArray[np.bool_] | None = None) -> None:
        """Set a number or struct of each table; omit it where ``present`` is false."""
        assign(self.array[field.name], values, field.name)
        if present is not None:
            self._mark_absent(field, ~present)

    def point(
        self, field: Field, targets: NDArray[np.int64], present: NDArray[np.bool_] | None = None
    ) -> None:
        """Point a field of each table to a target; omit it where ``present`` is false."""
        distance = targets - (self._starts + self._layout.field_offsets[field.name])
        if present is not None:
            distance = np.where(present, distance, 0)
            self._mark_absent(field, ~present)
        self.array[field.name] = distance

    def _mark_absent(self, field: Field, rows: NDArray[np.bool_]) -> None:
        self.array["vtable"][rows, 2 + field.slot] = 0


def assign(column: NDArray[Any], values: object, name: str) -> None:
    """Assign numbers to a column; raise `InvalidInputError` if a number is out of range."""
    try:
        column[...] = values
    except OverflowError as error:
        raise InvalidInputError(
            f"{name} is out of range ({error})", kind=ErrorKind.SERIALIZATION
        ) from error


class Runs(NamedTuple):
    """Runs of records that share ``table[codes[i]]``, stored after row ``ends[i]``; -1 for none."""

    ends: NDArray[np.int64]
    codes: NDArray[np.int32]
    table: Strings


class LazyRecords:
    """Tables that are filled and written block by block."""

    def __init__(
        self,
        records: Records,
        starts: NDArray[np.int64],
        nbytes: int,
        fill: Callable[[Records, slice], None],
        runs: Runs | None = None,
    ) -> None:
        self._records, self._starts, self._fill, self._runs = records, starts, fill, runs
        self.nbytes = nbytes

    def iter_pieces(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the records block by block."""
        rows = len(self._starts)
        for begin in range(0, rows, BLOCK_ROWS):
            end = min(begin + BLOCK_ROWS, rows)
            self._records.place(self._starts[begin:end])
            self._fill(self._records, slice(begin, end))
            if self._runs is None:
                yield self._records.array.view(np.uint8)
            else:
                last = self._starts[end] if end < rows else self._starts[0] + self.nbytes
                yield self._interleave(self._runs, begin, end, int(last))

    def _interleave(self, runs: Runs, begin: int, end: int, last: int) -> NDArray[np.uint8]:
        stride, base = self._records.stride, self._starts[begin]
        out = np.zeros(last - base, np.uint8)
        windows = np.ndarray((len(out) - stride + 1,), f"V{stride}", out, 0, (1,))
        windows[self._starts[begin:end] - base] = self._records.array.view(f"V{stride}")
        block = slice(*np.searchsorted(runs.ends, (begin, end)))
        ends, codes = runs.ends[block], runs.codes[block]
        starts = self._starts[ends[codes >= 0]] + stride - base
        write_blobs(out, starts, runs.table, codes[codes >= 0])
        return out


def get_blob_sizes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sizes of strings: length, bytes, terminating zero, padding to four bytes."""
    return 4 + (lengths + 4 & ~np.int64(3))


def write_blobs(
    out: NDArray[np.uint8], starts: NDArray[np.int64], table: Strings, codes: NDArray[np.integer]
) -> None:
    """Write strings, each preceded by its length, to positions in ``out``."""
    if not len(codes):
        return
    # Not `table.lengths`: the table may be much larger than this block.
    lengths = table.offsets[1:][codes] - table.offsets[:-1][codes]
    np.ndarray((len(out) - 3,), "<u4", out, 0, (1,))[starts] = lengths
    # All strings of one length are copied in one operation, as items of that size.
    for length in sort_distinct(lengths[lengths > 0]):
        rows = np.flatnonzero(lengths == length)
        source = np.ndarray((len(table.data) - length + 1,), f"V{length}", table.data, 0, (1,))
        target = np.ndarray((len(out) - length + 1,), f"V{length}", out, 0, (1,))
        target[starts[rows] + 4] = source[table.offsets[codes[rows]]]
