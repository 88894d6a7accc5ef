"""Reading flatbuffers by columns.

A `Tables` is any number of tables of one kind, read field by field with vector arithmetic: one
call gives a field of all of them. It makes no difference how the writer laid the file out, shared
vtables or strings, or ordered its objects.

Nothing in the buffer is trusted. Every position is checked before it is followed, for bounds and
for the alignment that the flatbuffers format demands, and nothing is allocated that the size of
the buffer does not bound. What fails a check raises `FormatError`. The tables of the format do not
nest in themselves, so offsets that form a cycle end at a check like any other wrong offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from icefloe.errors import FormatError
from icefloe.model.chunk_index_columns import is_ascending
from icefloe.model.strings import OverlapError, Strings, factorize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.format.schema import Field

_ABSENT = 0  # nothing that a field points at can stand at position 0, where the root offset is
_LONGEST_VTABLE = 132  # for 64 fields, five times what any table of the format has
_SMALLEST_TABLE = 4


@dataclass(frozen=True, slots=True)
class Spans:
    """Vectors inside the buffer: element size known to the caller, -1 items where absent."""

    start: NDArray[np.int64]
    count: NDArray[np.int64]

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which rows have a vector, be it an empty one."""
        present: NDArray[np.bool_] = self.start != _ABSENT
        return present


class FlatBuffer:
    """The bytes of one flatbuffer and the name of the file that they came from."""

    def __init__(self, data: bytes | bytearray | memoryview, file: str) -> None:
        self.file = file
        self.bytes = np.frombuffer(data, np.uint8)
        self.size = len(self.bytes)
        self._views = {
            size: self.bytes[: self.size // size * size].view(f"<u{size}") for size in (1, 2, 4, 8)
        }

    def fail(self, reason: str) -> NoReturn:
        """Raise the error that this file is damaged."""
        raise FormatError(reason, file=self.file)

    def root(self, name: str) -> Tables:
        """Return the root table, as the only one of its kind."""
        if self.size < 8:
            self.fail(f"{self.size} bytes are too few for a flatbuffer")
        return Tables(self, np.array([int(self._views[4][0])], np.int64), name)

    def gather(self, positions: NDArray[np.int64], dtype: np.dtype[np.generic]) -> NDArray[Any]:
        """Read one number at each position; they must be in bounds and aligned."""
        size = dtype.itemsize
        view: NDArray[Any] = self._views[size].view(dtype)
        numbers: NDArray[Any] = view[positions >> (size.bit_length() - 1)]
        return numbers

    def items(self, start: int, count: int, dtype: np.dtype[np.generic]) -> NDArray[Any]:
        """View ``count`` items from ``start``, which the caller checked."""
        return self.bytes[start : start + count * dtype.itemsize].view(dtype)

    def blob(self, start: int, count: int) -> bytes:
        """Copy bytes out, from a place that the caller checked."""
        return self.bytes[start : start + count].tobytes()

    def are_closed(self, spans: Spans) -> NDArray[np.bool_]:
        """Say behind which strings there is a zero, as flatbuffers demand."""
        ends = spans.start + spans.count
        inside = ends < self.size
        closed: NDArray[np.bool_] = inside & (self.bytes[ends * inside] == 0)
        return closed

    def require_ascending(self, ids: NDArray[np.uint8], what: str) -> None:
        """Check that ids, as rows of bytes, are in order and none comes twice."""
        if not is_ascending(ids[:-1], ids[1:]).all():
            self.fail(f"its {what} are not sorted by id, or one comes twice")

    def factorize(
        self, spans: Spans, what: str, *, utf8: bool = True
    ) -> tuple[NDArray[np.int32], Strings]:
        """Turn byte strings into codes into a table of distinct ones; -1 where absent."""
        present = spans.present
        everywhere = bool(present.all())
        starts, counts = (
            (spans.start, spans.count)
            if everywhere
            else (spans.start[present], spans.count[present])
        )
        try:
            codes, table = factorize(self.bytes, starts, counts)
        except OverlapError:
            self.fail(f"{what} overlaps another")
        if utf8 and not is_utf8(table):
            self.fail(f"{what} is not valid UTF-8")
        if everywhere:
            return codes, table
        result = np.full(len(spans.start), -1, np.int32)
        result[present] = codes
        return result, table


class Tables:
    """Tables of one kind at the given positions, read by columns."""

    def __init__(
        self, buffer: FlatBuffer, positions: NDArray[np.int64], name: str, first_row: int = 0
    ) -> None:
        self.buffer = buffer
        self.positions = positions
        self.name = name
        self.first_row = first_row
        size = buffer.size
        self._require(
            (positions >= 4) & (positions <= size - 4) & (positions & 3 == 0),
            "lies outside the file",
        )
        vtables = positions - buffer.gather(positions, np.dtype("<i4"))
        self._require(
            (vtables >= 4) & (vtables <= size - 4) & (vtables & 1 == 0),
            "has its vtable outside the file",
        )
        self._vtables = vtables
        self._vtable_sizes = buffer.gather(vtables, np.dtype("<u2")).astype(np.int64)
        self._require(
            (self._vtable_sizes >= 4)
            & (self._vtable_sizes & 1 == 0)
            & (vtables + self._vtable_sizes <= size),
            "has a malformed vtable",
        )
        if self._vtables_are_alike():
            # Then one of them serves for all, and all that depends on it is done once.
            self._vtables, self._vtable_sizes = vtables[:1], self._vtable_sizes[:1]
        self._table_sizes = buffer.gather(self._vtables + 2, np.dtype("<u2")).astype(np.int64)
        self._require(
            (self._table_sizes >= 4) & (positions + self._table_sizes <= size),
            "reaches past the end of the file",
        )

    def __len__(self) -> int:
        return len(self.positions)

    def _vtables_are_alike(self) -> bool:
        vtables, sizes = self._vtables, self._vtable_sizes
        if len(vtables) < 2:
            return False
        if (vtables == vtables[0]).all():
            return True
        # Long ones, of which a hostile file may have many that differ at the end, are not worth it.
        if not (sizes == sizes[0]).all() or sizes[0] > _LONGEST_VTABLE:
            return False
        # Compared in words, the last of which may overlap the one before it.
        size, first = int(sizes[0]), int(vtables[0])
        step = 8 if size >= 8 else 4
        words = np.ndarray((self.buffer.size - step + 1,), f"<u{step}", self.buffer.bytes, 0, (1,))
        return all(
            bool((words[vtables + entry] == words[first + entry]).all())
            for entry in sorted({*range(0, size - step + 1, step), size - step})
        )

    def _require(self, holds: NDArray[np.bool_], problem: str) -> None:
        if not holds.all():
            row = self.first_row + int(np.argmin(holds))
            self.buffer.fail(f"{self.name} {row} {problem}")

    def _field_offsets(self, field: Field) -> NDArray[np.int64]:
        """Where in its table the field stands, 0 where it does not; one entry for all if alike."""
        entry = 4 + 2 * field.slot
        inside = self._vtable_sizes > entry
        if inside.all():
            offsets = self.buffer.gather(self._vtables + entry, np.dtype("<u2"))
            return offsets.astype(np.int64)
        offsets = np.zeros(len(self._vtables), np.int64)
        offsets[inside] = self.buffer.gather(self._vtables[inside] + entry, np.dtype("<u2"))
        return offsets

    def has(self, field: Field) -> NDArray[np.bool_]:
        """Say which tables have a field; reading it checks the rest."""
        return np.broadcast_to(self._field_offsets(field) != 0, (len(self.positions),))

    def _field_positions(
        self, field: Field, size: int, align: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Where the field of each table stands, and which tables have it; None for all."""
        offsets = self._field_offsets(field)
        present = offsets != 0
        positions = self.positions + offsets
        fits = (offsets >= 4) & (offsets + size <= self._table_sizes)
        # Tables are aligned to four bytes, so up to that the offset decides.
        fits = fits & ((offsets if align <= 4 else positions) & (align - 1) == 0)
        self._require(fits | ~present, f"has its field {field.name} at an impossible place")
        if present.all():
            return positions, None
        return positions, np.broadcast_to(present, (len(positions),))

    def place(self, field: Field, size: int) -> int:
        """Say where a field of the one table here stands."""
        positions, present = self._field_positions(field, size, 1)
        if present is not None:
            self._require_present(field, present, required=True)
        return int(positions[0])

    def scalars(self, field: Field, dtype: str, default: int = 0) -> NDArray[Any]:
        """Read a number of each table."""
        kind = np.dtype(dtype)
        positions, present = self._field_positions(field, kind.itemsize, kind.itemsize)
        if present is None:
            return self.buffer.gather(positions, kind)
        result = np.full(len(positions), default, kind)
        result[present] = self.buffer.gather(positions[present], kind)
        return result

    def structs(self, field: Field, size: int, *, required: bool = True) -> NDArray[np.uint8]:
        """Read a struct of ``size`` bytes of each table as ``u1[n, size]``, zeros where absent."""
        positions, present = self._field_positions(field, size, 1)
        room = max(0, self.buffer.size - size + 1)
        windows = np.ndarray((room,), f"V{size}", self.buffer.bytes, 0, (1,))
        if present is None:
            result = windows[positions]
        else:
            self._require_present(field, present, required=required)
            result = np.zeros(len(positions), f"V{size}")
            result[present] = windows[positions[present]]
        return result.view(np.uint8).reshape(len(positions), size)

    def _require_present(self, field: Field, present: NDArray[np.bool_], *, required: bool) -> None:
        if required:
            self._require(present, f"lacks its field {field.name}")

    def _targets(self, field: Field, *, required: bool) -> NDArray[np.int64]:
        positions, present = self._field_positions(field, 4, 4)
        word = np.dtype("<u4")
        if present is None:
            targets = self.buffer.gather(positions, word) + positions
        else:
            self._require_present(field, present, required=required)
            targets = np.zeros(len(positions), np.int64)
            here = positions[present]
            targets[present] = self.buffer.gather(here, word) + here
        # Forward, that is: a pointer at itself would be an empty vector, as its bytes are zero.
        is_forward = (targets > positions) | (targets == _ABSENT)
        self._require(
            (targets <= self.buffer.size - 4) & (targets & 3 == 0) & is_forward,
            f"has its field {field.name} point at an impossible place",
        )
        return targets

    def vectors(
        self, field: Field, item_size: int, *, align: int = 1, required: bool = True
    ) -> Spans:
        """Find the vector that the field of each table points at."""
        targets = self._targets(field, required=required)
        present = targets != _ABSENT
        counts = self.buffer.gather(targets, np.dtype("<u4")).astype(np.int64)
        start = targets + 4
        if not present.all():
            counts[~present] = 0
            start = np.where(present, start, _ABSENT)
        self._require(
            start + counts * item_size <= self.buffer.size,
            f"has a {field.name} that reaches past the end of the file",
        )
        if align > 4:
            self._require(
                (start & (align - 1) == 0) | (counts == 0),
                f"has its field {field.name} at an odd place",
            )
        return Spans(start, counts)

    def strings(self, field: Field, *, required: bool = True) -> Spans:
        """Find the string that the field of each table points at."""
        spans = self.vectors(field, 1, required=required)
        self._require(
            ~spans.present | self.buffer.are_closed(spans),
            f"has a {field.name} without its closing zero",
        )
        return spans

    def texts(self, field: Field, *, required: bool = True) -> list[str | None]:
        """Read a string of each table; for tables by the thousand, not by the million."""
        spans = self.strings(field, required=required)
        codes, table = self.buffer.factorize(spans, f"{self.name}: a {field.name}")
        distinct: list[str | None] = [*table, None]
        return [distinct[code] for code in codes]

    def blobs(self, field: Field) -> list[bytes]:
        """Read a byte vector of each table; equal ones are one object."""
        spans = self.vectors(field, 1)
        codes, table = self.buffer.factorize(spans, f"{self.name}: a {field.name}", utf8=False)
        distinct = [
            table.data[start:end].tobytes()
            for start, end in zip(table.offsets[:-1], table.offsets[1:], strict=True)
        ]
        return [distinct[code] for code in codes]

    def numbers(self, spans: Spans, dtype: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Read the numbers or structs of all vectors: where each one's start, and all of them."""
        kind = np.dtype(dtype)
        splits, places = self._ragged(spans, kind.itemsize)
        if len(spans.start) == 1:
            return splits, self.buffer.items(int(spans.start[0]), int(spans.count[0]), kind)
        windows = np.ndarray(
            (max(0, self.buffer.size - kind.itemsize + 1),), kind, self.buffer.bytes, 0, (1,)
        )
        return splits, windows[places]

    def id_vectors(
        self, field: Field, size: int, *, required: bool = True
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Read vectors of ids: where each one's start, and all of them as rows of bytes."""
        splits, items = self.numbers(self.vectors(field, size, required=required), f"V{size}")
        return splits, np.ascontiguousarray(items).view(np.uint8).reshape(-1, size)

    def _ragged(
        self, spans: Spans, item_size: int, target_size: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the position of each item of each vector.

        ``target_size`` is the least that what an item points at takes, so that a vector that names
        one thing over and over is found out before its length costs anything.
        """
        splits = np.zeros(len(spans.count) + 1, np.int64)
        np.cumsum(spans.count, out=splits[1:])
        total = int(splits[-1])
        if total * (item_size + target_size) > self.buffer.size:
            self.buffer.fail(f"{self.name}: vectors overlap each other or have absurd counts")
        if len(spans.start) == 1:
            start = int(spans.start[0])
            return splits, np.arange(start, start + total * item_size, item_size, dtype=np.int64)
        within = np.arange(total, dtype=np.int64) - np.repeat(splits[:-1], spans.count)
        return splits, np.repeat(spans.start, spans.count) + within * item_size

    def child_positions(
        self, field: Field, *, required: bool = True, smallest: int = _SMALLEST_TABLE
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Follow vectors of tables: where each parent's children start, and where they all are.

        ``smallest`` is the size of the smallest table that such a child can be.
        """
        spans = self.vectors(field, 4, required=required)
        splits, places = self._ragged(spans, 4, smallest)
        return splits, places + self.buffer.gather(places, np.dtype("<u4"))

    def children(
        self, field: Field, name: str, *, required: bool = True
    ) -> tuple[NDArray[np.int64], Tables]:
        """Follow vectors of tables: where each parent's children start, and all the children."""
        splits, positions = self.child_positions(field, required=required)
        children = Tables(self.buffer, positions, name)
        # Each child may become an object: few tables, each named a million times, must not.
        sizes = np.broadcast_to(children._table_sizes + 4, len(children))  # and the pointer to it
        if int(sizes.sum()) > self.buffer.size:
            self.buffer.fail(f"{self.name}: tables in {field.name} overlap each other")
        return splits, children

    def tables(self, field: Field, name: str, rows: NDArray[np.int64] | None = None) -> Tables:
        """Follow a pointer to one table from each of these tables, or from some of the rows."""
        targets = self._targets(field, required=True)
        return Tables(self.buffer, targets if rows is None else targets[rows], name)

    def string_vector(self, field: Field) -> list[str]:
        """Read the vector of strings of the one table here."""
        spans = self.vectors(field, 4)
        _, places = self._ragged(spans, 4, 5)  # four bytes of length and a closing zero
        # A vector of strings is a run of pointers: each a table of one field, so to say.
        targets = places + self.buffer.gather(places, np.dtype("<u4"))
        fits = (targets & 3 == 0) & (targets <= self.buffer.size - 4) & (targets > places)
        if not fits.all():
            self.buffer.fail(f"{self.name}: {field.name} points outside the file")
        counts = self.buffer.gather(targets, np.dtype("<u4")).astype(np.int64)
        if not (targets + 4 + counts <= self.buffer.size).all():
            self.buffer.fail(f"{self.name}: {field.name} reaches past the end of the file")
        strings = Spans(targets + 4, counts)
        if not self.buffer.are_closed(strings).all():
            self.buffer.fail(f"{self.name}: one of {field.name} is without its closing zero")
        codes, table = self.buffer.factorize(strings, f"{self.name}: one of {field.name}")
        distinct = list(table)
        return [distinct[code] for code in codes]


def is_utf8(table: Strings) -> bool:
    """Whether every string is valid UTF-8.

    The whole is valid and no string starts inside a character: so each string is valid.
    """
    if table.data.max(initial=0) < 0x80:
        return True
    try:
        table.data.tobytes().decode()
    except UnicodeDecodeError:
        return False
    starts = table.offsets[:-1][table.lengths > 0]
    return not ((table.data[starts] & 0xC0) == 0x80).any()
