"""Writing flatbuffers by columns.

A `Layout` hands out places from the front of the file to its back; a parent takes its place before
its children, because flatbuffers point forward only. `Records` are any number of tables of one
kind, a numpy record each, filled field by field.

Every table brings its own vtable along, at a fixed distance. That looks wasteful and is not: the
distance is the same in every record, so zstd sees one repeated pattern where tables that share a
vtable would each store a different distance to it (measured on a million chunk references: 3.8 MB
instead of 6.2 MB). It also makes optional fields simple: a row that lacks one says so there.

The 2 GiB that a flatbuffer can hold are checked when places are handed out, before memory is spent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.envelope import MAX_FLATBUFFER_SIZE
from icefloe.model.columns import distinct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.format.schema import Field
    from icefloe.model.strings import Strings

FILE_IDENTIFIER = b"Ichk"

BLOCK_ROWS = 1 << 14
"""Rows written at once: their records stay in the processor's cache until they are compressed."""

UOFFSET = "<u4"
"""The type of a field that points at a string, a vector or a table."""


class Layout:
    """The places of one flatbuffer, handed out front to back, and what stands there.

    Parameters
    ----------
    what
        What is being written, for errors.
    behind
        How many bytes of the file there are already; places are handed out behind them.
    """

    def __init__(self, what: str, *, behind: int = 0) -> None:
        self._what = what
        self._head = np.zeros(2, "<u4")
        self._head[1:] = np.frombuffer(FILE_IDENTIFIER, "<u4")
        self._pieces: list[tuple[int, NDArray[np.generic] | Late]] = []
        self._begin, self._end = behind, behind
        if not behind:
            self.put(self.reserve(self._head.nbytes), self._head)

    def reserve(self, size: int, align: int = 4, *, before: int = 0) -> int:
        """Take a place of ``size`` bytes, so that what is ``before`` bytes into it is aligned."""
        self.require_room(size + align)
        start = self._end + (-(self._end + before) % align)
        self._end = start + size
        return start

    def require_room(self, size: int) -> None:
        """Check that ``size`` more bytes fit, for callers that spend memory before they reserve."""
        if self._end + size > MAX_FLATBUFFER_SIZE:
            raise FormatError(
                f"{self._what} would take more than the 2 GiB that one metadata file can hold: "
                "commit fewer changes at once, or split manifests (ManifestSplittingConfig)",
                kind=ErrorKind.SERIALIZATION,
            )

    def put(self, start: int, piece: NDArray[np.generic] | Late) -> None:
        """Let ``piece`` stand at a reserved place; it may still be filled until `pieces`."""
        self._pieces.append((start, piece))

    def records(self, rows: int, columns: Sequence[Column]) -> Records:
        """Place ``rows`` tables one behind the other, to be filled at leisure."""
        records = Records(columns)
        start = self.reserve(rows * records.stride, 8)
        records.place(start + np.arange(rows, dtype=np.int64) * records.stride)
        self.put(start, records.array)
        return records

    def blobs(self, table: Strings) -> NDArray[np.int64]:
        """Place strings or byte vectors, each once; returns their positions."""
        sizes = blob_sizes(table.lengths)
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        start = self.reserve(total)
        out = np.zeros(total, np.uint8)
        place_blobs(out, ends - sizes, table, np.arange(len(table)))
        self.put(start, out)
        return start + ends - sizes

    def vectors(
        self, counts: NDArray[np.int64], dtype: str | np.dtype[Any], *, align: int = 4
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Place one vector for each count; returns positions, and all items to be filled."""
        kind = np.dtype(dtype)
        if len(counts) == 1:
            size = int(counts[0]) * kind.itemsize
            start = self.reserve(4 + size, max(align, 4), before=4)
            self.put(start, np.array(counts, "<u4"))
            items = np.zeros(int(counts[0]), kind)
            self.put(start + 4, items)
            return np.array([start], np.int64), items
        return self._ragged_vectors(counts, kind, align)

    def id_vectors(self, counts: NDArray[np.int64], rows: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Place vectors of ids, given as rows of bytes; returns their positions."""
        size = rows.shape[1]
        places, items = self.vectors(counts, f"V{size}")
        items[:] = np.ascontiguousarray(rows).view(f"V{size}").reshape(-1)
        return places

    def _ragged_vectors(
        self, counts: NDArray[np.int64], kind: np.dtype[np.generic], align: int
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        # Each vector takes whole units, its count at the end of the first one: items are aligned.
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
        places = np.repeat(begins, counts) + within * kind.itemsize
        self.put(start, _Scattered(out, places, items))
        return start + begins - 4, items

    def pointers(
        self, counts: NDArray[np.int64] | Sequence[int]
    ) -> tuple[NDArray[np.int64], Pointers]:
        """Place vectors of pointers; returns their positions, and the pointers to be aimed."""
        counts = np.asarray(counts, np.int64)
        splits = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=splits[1:])
        size = int(splits[-1]) + len(counts)
        start = self.reserve(4 * size)
        words = np.zeros(size, "<u4")
        heads = splits[:-1] + np.arange(len(counts))
        words[heads] = counts
        self.put(start, words)
        is_pointer = np.ones(len(words), bool)
        is_pointer[heads] = False
        return start + heads * 4, Pointers(words, start, np.flatnonzero(is_pointer))

    @property
    def size(self) -> int:
        """How many bytes the file has so far."""
        return self._end

    def pieces(self, root: Records | None = None) -> Iterator[memoryview]:
        """Yield the bytes of all that was placed, in order; the head of a file names its root."""
        if root is not None:
            self._head[0] = root.positions[0]
        cursor = self._begin
        for start, piece in self._pieces:
            if start > cursor:
                yield memoryview(bytes(start - cursor))
            parts = iter((piece,)) if isinstance(piece, np.ndarray) else piece.pieces()
            yield from (part.reshape(-1).view(np.uint8).data for part in parts if part.size)
            cursor = start + piece.nbytes


class Late(Protocol):
    """Content that is put together only when the file is written out."""

    nbytes: int

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the content in order."""


class _Scattered:
    """Items that are filled densely and stand apart in the file."""

    def __init__(
        self, out: NDArray[np.uint8], places: NDArray[np.int64], items: NDArray[np.generic]
    ) -> None:
        self._out, self._places, self._items = out, places, items
        self.nbytes = out.nbytes

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        if len(self._items):
            kind = self._items.dtype
            windows = np.ndarray((len(self._out) - kind.itemsize + 1,), kind, self._out, 0, (1,))
            windows[self._places] = self._items
        yield self._out


class Pointers(NamedTuple):
    """Pointers that stand in vectors."""

    words: NDArray[np.uint32]
    start: int
    slots: NDArray[np.int64]

    def aim(self, targets: NDArray[np.int64]) -> None:
        """Let the pointers, in their order, point at the targets."""
        self.words[self.slots] = targets - (self.start + self.slots * 4)


class Column(NamedTuple):
    """A field of a table to be written: its numpy type, and how many of them a struct has."""

    field: Field
    dtype: str
    items: int = 1


class Records:
    """Tables of one kind as a numpy record array: vtable, table, and what goes with each."""

    def __init__(
        self, columns: Sequence[Column], tail: Sequence[tuple[str, str, int]] = ()
    ) -> None:
        slots = 2 + max((column.field.slot + 1 for column in columns), default=0)
        names, formats, offsets = ["vtable", "soffset"], [f"({slots},)<u2", "<i4"], [0]
        # Wide fields first: then nothing but the start needs padding.
        ordered = sorted(columns, key=lambda column: -np.dtype(column.dtype).itemsize)
        wide = bool(ordered) and np.dtype(ordered[0].dtype).itemsize == 8
        table = -(-2 * slots // 4) * 4
        if wide and table % 8 == 0:
            table += 4  # the eight-byte fields come right behind the four bytes of soffset
        offsets.append(table)
        end = table + 4
        entries = np.zeros(slots, np.uint16)
        for column in ordered:
            names.append(column.field.name)
            formats.append(f"({column.items},){column.dtype}" if column.items > 1 else column.dtype)
            offsets.append(end)
            entries[2 + column.field.slot] = end - table
            end += np.dtype(column.dtype).itemsize * column.items
        entries[0], entries[1] = 2 * slots, end - table
        self._field_offsets = dict(zip(names, offsets, strict=True))
        end = -(-end // 4) * 4
        for name, dtype, items in tail:
            names.append(name)
            formats.append(f"({items},){dtype}")
            offsets.append(end)
            end += np.dtype(dtype).itemsize * items
        self._tail_offsets = dict(zip(names, offsets, strict=True))
        self.stride = -(-end // (8 if wide else 4)) * (8 if wide else 4)
        self._table = table
        self._dtype = np.dtype(
            {"names": names, "formats": formats, "offsets": offsets, "itemsize": self.stride}
        )
        self._entries = entries
        self.array: NDArray[np.void] = np.zeros(0, self._dtype)
        self._starts: NDArray[np.int64] = np.zeros(0, np.int64)

    def place(self, starts: NDArray[np.int64]) -> None:
        """Say where in the file each record starts; what the records held is gone."""
        self._starts = starts
        self.array = np.zeros(len(starts), self._dtype)
        self.array["vtable"] = self._entries
        self.array["soffset"] = self._table

    @property
    def positions(self) -> NDArray[np.int64]:
        """Where each table is, for those that point at it."""
        return self.positions_from(self._starts)

    def positions_from(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the table of a record is that starts there."""
        return starts + self._table

    def tail(self, name: str) -> NDArray[np.int64]:
        """Where a part of the tail of each record is."""
        return self._starts + self._tail_offsets[name]

    def fill(self, field: Field, values: object, present: NDArray[np.bool_] | None = None) -> None:
        """Set a number or a struct of each table; where it is not present, the table lacks it."""
        assign(self.array[field.name], values, field.name)
        if present is not None:
            self._drop(field, ~present)

    def aim(
        self, field: Field, targets: NDArray[np.int64], present: NDArray[np.bool_] | None = None
    ) -> None:
        """Let a field of each table point at a target; where it is not present, lack it."""
        distance = targets - (self._starts + self._field_offsets[field.name])
        if present is not None:
            distance = np.where(present, distance, 0)
            self._drop(field, ~present)
        self.array[field.name] = distance

    def _drop(self, field: Field, rows: NDArray[np.bool_]) -> None:
        self.array["vtable"][rows, 2 + field.slot] = 0


def assign(column: NDArray[Any], values: object, name: str) -> None:
    """Put numbers into a column.

    Raises
    ------
    InvalidInputError
        If one of them is negative or too large for what the format has for it.
    """
    try:
        column[...] = values
    except OverflowError as error:
        raise InvalidInputError(
            f"a {name} is outside what the format can hold ({error})", kind=ErrorKind.SERIALIZATION
        ) from error


class Runs(NamedTuple):
    """Strings between records: behind row ``ends[i]`` comes ``table[codes[i]]``; -1 for none."""

    ends: NDArray[np.int64]
    codes: NDArray[np.int32]
    table: Strings


class LateRecords:
    """Tables by the million: made, filled and written out a block at a time."""

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

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the records of one block after the other."""
        rows = len(self._starts)
        for begin in range(0, rows, BLOCK_ROWS):
            end = min(begin + BLOCK_ROWS, rows)
            self._records.place(self._starts[begin:end])
            self._fill(self._records, slice(begin, end))
            if self._runs is None:
                yield self._records.array.view(np.uint8)
            else:
                last = self._starts[end] if end < rows else self._starts[0] + self.nbytes
                yield self._weave(self._runs, begin, end, int(last))

    def _weave(self, runs: Runs, begin: int, end: int, last: int) -> NDArray[np.uint8]:
        stride, base = self._records.stride, self._starts[begin]
        out = np.zeros(last - base, np.uint8)
        windows = np.ndarray((len(out) - stride + 1,), f"V{stride}", out, 0, (1,))
        windows[self._starts[begin:end] - base] = self._records.array.view(f"V{stride}")
        here = slice(*np.searchsorted(runs.ends, (begin, end)))
        named = runs.codes[here] >= 0
        places = self._starts[runs.ends[here][named]] + stride - base
        place_blobs(out, places, runs.table, runs.codes[here][named])
        return out


def blob_sizes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much room strings take: length, bytes, closing zero, padding to four bytes."""
    return 4 + (lengths + 4 & ~np.int64(3))


def place_blobs(
    out: NDArray[np.uint8], starts: NDArray[np.int64], table: Strings, codes: NDArray[np.integer]
) -> None:
    """Write strings of the table, each with its length before it, at their starts in ``out``."""
    if not len(codes):
        return
    # Not by the lengths of the whole table, which may have a string for each of a million rows.
    lengths = table.offsets[1:][codes] - table.offsets[:-1][codes]
    np.ndarray((len(out) - 3,), "<u4", out, 0, (1,))[starts] = lengths
    # Strings of one length are copied as items of that size, all at once.
    for length in distinct(lengths[lengths > 0]):
        rows = np.flatnonzero(lengths == length)
        source = np.ndarray((len(table.data) - length + 1,), f"V{length}", table.data, 0, (1,))
        target = np.ndarray((len(out) - length + 1,), f"V{length}", out, 0, (1,))
        target[starts[rows] + 4] = source[table.offsets[codes[rows]]]
