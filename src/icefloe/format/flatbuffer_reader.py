"""Columnar reader of flatbuffers.

`Tables` represents many tables of one type; one vectorized call reads a field of all of them. Files
may share vtables and strings or not, and store them in any order.

The buffer is untrusted. Every position is checked for bounds and alignment before it is followed,
and allocations are limited by the size of the buffer; a failed check raises `FormatError`. The
schema is not recursive, so cyclic offsets cannot cause an infinite loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from icefloe.errors import FormatError
from icefloe.model.chunk_index_columns import is_row_less
from icefloe.model.columns import to_offsets
from icefloe.model.strings import OverlapError, Strings, factorize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.format.schema import Field

_ABSENT = 0  # no field can point to position 0, which has the root offset
_MAX_COMPARED_VTABLE_BYTES = 132  # 64 fields, five times as many as the largest table of the schema
_MIN_TABLE_BYTES = 4  # the offset of the vtable


@dataclass(frozen=True, slots=True)
class Spans:
    """Positions and numbers of items of vectors in the buffer, one row per vector."""

    start: NDArray[np.int64]
    count: NDArray[np.int64]

    @property
    def present(self) -> NDArray[np.bool_]:
        """A mask of the rows that have a vector, even an empty one."""
        present: NDArray[np.bool_] = self.start != _ABSENT
        return present


class FlatBuffer:
    """The bytes of one flatbuffer, with the name of its file."""

    def __init__(self, data: bytes | bytearray | memoryview, file: str) -> None:
        self.file = file
        self.bytes = np.frombuffer(data, np.uint8)
        self.size = len(self.bytes)
        self._views = {
            size: self.bytes[: self.size // size * size].view(f"<u{size}") for size in (1, 2, 4, 8)
        }

    def fail(self, reason: str) -> NoReturn:
        """Raise `FormatError` for this file."""
        raise FormatError(reason, file=self.file)

    def get_root(self, name: str) -> Tables:
        """Return the root table; ``name`` is its type in error messages."""
        if self.size < 8:
            self.fail(f"expected a flatbuffer of at least 8 bytes, got {self.size} bytes")
        return Tables(self, np.array([int(self._views[4][0])], np.int64), name)

    def gather(self, positions: NDArray[np.int64], dtype: np.dtype[np.generic]) -> NDArray[Any]:
        """Read a number at each position; the caller must check bounds and alignment."""
        size = dtype.itemsize
        view: NDArray[Any] = self._views[size].view(dtype)
        log2_size = size.bit_length() - 1
        numbers: NDArray[Any] = view[positions >> log2_size]
        return numbers

    def view_items(self, start: int, count: int, dtype: np.dtype[np.generic]) -> NDArray[Any]:
        """View ``count`` items from ``start``; the caller must check bounds."""
        return self.bytes[start : start + count * dtype.itemsize].view(dtype)

    def view_windows(self, dtype: np.dtype[np.generic]) -> NDArray[Any]:
        """View the item that starts at each byte, aligned or not."""
        count = max(0, self.size - dtype.itemsize + 1)
        return np.ndarray((count,), dtype, self.bytes, 0, (1,))

    def copy_bytes(self, start: int, count: int) -> bytes:
        """Copy bytes; the caller must check bounds."""
        return self.bytes[start : start + count].tobytes()

    def is_terminated(self, spans: Spans) -> NDArray[np.bool_]:
        """Return a mask of the strings that are null-terminated."""
        ends = spans.start + spans.count
        is_inside = ends < self.size
        terminated: NDArray[np.bool_] = is_inside & (self.bytes[ends * is_inside] == 0)
        return terminated

    def require_ascending(self, ids: NDArray[np.uint8], label: str) -> None:
        """Raise if ids, as rows of bytes, are not sorted and distinct."""
        if not is_row_less(ids[:-1], ids[1:]).all():
            self.fail(f"its {label} must be sorted by id, without duplicates")

    def factorize(
        self, spans: Spans, label: str, *, utf8: bool = True
    ) -> tuple[NDArray[np.int32], Strings]:
        """Return the codes of byte strings, -1 if absent, and the table of distinct strings.

        ``label`` names a string in error messages.
        """
        present = spans.present
        all_present = bool(present.all())
        starts, counts = (
            (spans.start, spans.count)
            if all_present
            else (spans.start[present], spans.count[present])
        )
        try:
            codes, table = factorize(self.bytes, starts, counts)
        except OverlapError:
            self.fail(f"{label} overlaps another")
        if utf8 and not is_utf8(table):
            self.fail(f"{label} is not valid UTF-8")
        if all_present:
            return codes, table
        result = np.full(len(spans.start), -1, np.int32)
        result[present] = codes
        return result, table


def get_field_size(field: Field) -> int:
    """Return the size of a field inside its table, in bytes."""
    return np.dtype(field.dtype).itemsize * field.items


class Tables:
    """Tables of one type, read column by column.

    Error messages contain ``name``, the type, and the number of the table, from ``first_row``.
    """

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
            "is outside the file",
        )
        vtables = positions - buffer.gather(positions, np.dtype("<i4"))
        self._require(
            (vtables >= 4) & (vtables <= size - 4) & (vtables & 1 == 0),
            "has its vtable outside the file",
        )
        self._vtables = self._all_vtables = vtables
        self._vtable_sizes = buffer.gather(vtables, np.dtype("<u2")).astype(np.int64)
        self._require(
            (self._vtable_sizes >= 4)
            & (self._vtable_sizes & 1 == 0)
            & (vtables + self._vtable_sizes <= size),
            "has a malformed vtable",
        )
        if self._has_equal_vtables():
            # Keep one vtable, which numpy broadcasts to all tables.
            self._vtables, self._vtable_sizes = vtables[:1], self._vtable_sizes[:1]
        self._table_sizes = buffer.gather(self._vtables + 2, np.dtype("<u2")).astype(np.int64)
        self._require(
            (self._table_sizes >= 4) & (positions + self._table_sizes <= size),
            "extends past the end of the file",
        )

    def __len__(self) -> int:
        return len(self.positions)

    def select(self, rows: slice | NDArray[np.bool_]) -> Tables:
        """Return some of the tables."""
        return Tables(self.buffer, self.positions[rows], self.name)

    def find_first_byte(self) -> int:
        """Return where the first table or vtable starts."""
        return int(min(self.positions.min(), self._all_vtables.min()))

    def _has_equal_vtables(self) -> bool:
        vtables, sizes = self._vtables, self._vtable_sizes
        if len(vtables) < 2:
            return False
        if (vtables == vtables[0]).all():
            return True
        # Long vtables are not compared, which limits the work on malicious files.
        if not (sizes == sizes[0]).all() or sizes[0] > _MAX_COMPARED_VTABLE_BYTES:
            return False
        # Word by word; the last two words may overlap.
        size, first = int(sizes[0]), int(vtables[0])
        step = 8 if size >= 8 else 4
        words = self.buffer.view_windows(np.dtype(f"<u{step}"))
        return all(
            bool((words[vtables + entry] == words[first + entry]).all())
            for entry in sorted({*range(0, size - step + 1, step), size - step})
        )

    def _require(self, is_valid: NDArray[np.bool_], problem: str) -> None:
        if not is_valid.all():
            row = self.first_row + int(np.argmin(is_valid))
            self.buffer.fail(f"{self.name} {row} {problem}")

    def _find_field_offsets(self, field: Field) -> NDArray[np.int64]:
        """Return the offset of a field in each table, or a single one for all; 0 if absent."""
        entry = 4 + 2 * field.slot
        is_inside = self._vtable_sizes > entry
        if is_inside.all():
            offsets = self.buffer.gather(self._vtables + entry, np.dtype("<u2"))
            return offsets.astype(np.int64)
        offsets = np.zeros(len(self._vtables), np.int64)
        offsets[is_inside] = self.buffer.gather(self._vtables[is_inside] + entry, np.dtype("<u2"))
        return offsets

    def has(self, field: Field) -> NDArray[np.bool_]:
        """Return a mask of the tables that have a field."""
        return np.broadcast_to(self._find_field_offsets(field) != 0, (len(self.positions),))

    def _find_field_positions(
        self, field: Field, size: int, align: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Return the position of a field in each table, and a mask of the tables that have it.

        The mask is None if all tables have the field.
        """
        offsets = self._find_field_offsets(field)
        present = offsets != 0
        positions = self.positions + offsets
        fits = (offsets >= 4) & (offsets + size <= self._table_sizes)
        # Tables are aligned to four bytes, so the offset suffices for smaller alignments.
        fits = fits & ((offsets if align <= 4 else positions) & (align - 1) == 0)
        self._require(fits | ~present, f"has the field {field.name} at an invalid position")
        if present.all():
            return positions, None
        return positions, np.broadcast_to(present, (len(positions),))

    def find_field(self, field: Field) -> int:
        """Return the position of a required field of a single table."""
        positions, present = self._find_field_positions(field, get_field_size(field), 1)
        if present is not None:
            self._require_present(field, present, required=True)
        return int(positions[0])

    def read_scalars(self, field: Field, default: int = 0) -> NDArray[Any]:
        """Read a number of each table, ``default`` where absent."""
        dtype = np.dtype(field.dtype)
        positions, present = self._find_field_positions(field, dtype.itemsize, dtype.itemsize)
        if present is None:
            return self.buffer.gather(positions, dtype)
        result = np.full(len(positions), default, dtype)
        result[present] = self.buffer.gather(positions[present], dtype)
        return result

    def locate_scalars(self, field: Field) -> NDArray[np.int64]:
        """Return the position of a number in each table, 0 where absent."""
        size = get_field_size(field)
        positions, present = self._find_field_positions(field, size, size)
        return positions if present is None else np.where(present, positions, _ABSENT)

    def read_structs(self, field: Field, *, required: bool = True) -> NDArray[np.uint8]:
        """Read a struct of each table as ``u1[n, size]``, zeros where absent and not required."""
        size = get_field_size(field)
        positions, present = self._find_field_positions(field, size, 1)
        windows = self.buffer.view_windows(np.dtype(f"V{size}"))
        if present is None:
            result = windows[positions]
        else:
            self._require_present(field, present, required=required)
            result = np.zeros(len(positions), f"V{size}")
            result[present] = windows[positions[present]]
        return result.view(np.uint8).reshape(len(positions), size)

    def _require_present(self, field: Field, present: NDArray[np.bool_], *, required: bool) -> None:
        if required:
            self._require(present, f"lacks the required field {field.name}")

    def _find_targets(self, field: Field, *, required: bool) -> NDArray[np.int64]:
        """Follow a pointer of each table; return the positions of the targets, or `_ABSENT`."""
        positions, present = self._find_field_positions(field, 4, 4)
        word = np.dtype("<u4")
        if present is None:
            targets = self.buffer.gather(positions, word) + positions
        else:
            self._require_present(field, present, required=required)
            targets = np.zeros(len(positions), np.int64)
            pointers = positions[present]
            targets[present] = self.buffer.gather(pointers, word) + pointers
        # A pointer of 0 points to itself, and would look like an empty vector.
        is_forward = (targets > positions) | (targets == _ABSENT)
        self._require(
            (targets <= self.buffer.size - 4) & (targets & 3 == 0) & is_forward,
            f"has a pointer {field.name} to an invalid position",
        )
        return targets

    def find_vectors(
        self, field: Field, item_size: int, *, align: int = 1, required: bool = True
    ) -> Spans:
        """Return the position and the number of items of a vector of each table."""
        targets = self._find_targets(field, required=required)
        present = targets != _ABSENT
        counts = self.buffer.gather(targets, np.dtype("<u4")).astype(np.int64)
        start = targets + 4
        if not present.all():
            counts[~present] = 0
            start = np.where(present, start, _ABSENT)
        self._require(
            start + counts * item_size <= self.buffer.size,
            f"has a {field.name} that extends past the end of the file",
        )
        if align > 4:
            self._require(
                (start & (align - 1) == 0) | (counts == 0), f"has a misaligned {field.name}"
            )
        return Spans(start, counts)

    def find_strings(self, field: Field, *, required: bool = True) -> Spans:
        """Return the position and the number of bytes of a string of each table."""
        spans = self.find_vectors(field, 1, required=required)
        self._require(
            ~spans.present | self.buffer.is_terminated(spans),
            f"has a {field.name} that is not null-terminated",
        )
        return spans

    def read_texts(self, field: Field, *, required: bool = True) -> list[str | None]:
        """Read a string of each table as Python objects, for at most thousands of tables."""
        spans = self.find_strings(field, required=required)
        codes, table = self.buffer.factorize(spans, f"{self.name}: a {field.name}")
        distinct: list[str | None] = [*table, None]  # the code -1 of an absent string is None
        return [distinct[code] for code in codes]

    def read_blobs(self, field: Field) -> list[bytes]:
        """Read a byte vector of each table; equal vectors share one object."""
        spans = self.find_vectors(field, 1)
        codes, table = self.buffer.factorize(spans, f"{self.name}: a {field.name}", utf8=False)
        distinct = [
            table.data[start:end].tobytes()
            for start, end in zip(table.offsets[:-1], table.offsets[1:], strict=True)
        ]
        return [distinct[code] for code in codes]

    def read_numbers(self, spans: Spans, dtype: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Read the numbers or structs of all vectors; return the splits and all items.

        The items of vector ``i`` are ``items[splits[i] : splits[i + 1]]``.
        """
        kind = np.dtype(dtype)
        splits, positions = self._find_items(spans, kind.itemsize)
        if len(spans.start) == 1:
            return splits, self.buffer.view_items(int(spans.start[0]), int(spans.count[0]), kind)
        return splits, self.buffer.view_windows(kind)[positions]

    def read_id_vectors(
        self, field: Field, size: int, *, required: bool = True
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Read vectors of ids; return the splits and all ids as rows of bytes."""
        spans = self.find_vectors(field, size, required=required)
        splits, items = self.read_numbers(spans, f"V{size}")
        return splits, np.ascontiguousarray(items).view(np.uint8).reshape(-1, size)

    def _find_items(
        self, spans: Spans, item_size: int, target_size: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the splits and the position of each item of each vector.

        ``target_size`` is the minimum size of the target of an item: vectors whose targets must
        overlap are rejected before memory is allocated.
        """
        splits = to_offsets(spans.count)
        num_items = int(splits[-1])
        if num_items * (item_size + target_size) > self.buffer.size:
            self.buffer.fail(f"{self.name}: vectors overlap or have excessive counts")
        if len(spans.start) == 1:
            start = int(spans.start[0])
            return splits, np.arange(
                start, start + num_items * item_size, item_size, dtype=np.int64
            )
        numbers = np.arange(num_items, dtype=np.int64) - np.repeat(splits[:-1], spans.count)
        return splits, np.repeat(spans.start, spans.count) + numbers * item_size

    def find_children(
        self, field: Field, *, required: bool = True, min_size: int = _MIN_TABLE_BYTES
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Follow vectors of tables; return the splits and the positions of all children.

        ``min_size`` is the minimum size of a child.
        """
        spans = self.find_vectors(field, 4, required=required)
        splits, positions = self._find_items(spans, 4, min_size)
        return splits, positions + self.buffer.gather(positions, np.dtype("<u4"))

    def get_children(
        self, field: Field, name: str, *, required: bool = True
    ) -> tuple[NDArray[np.int64], Tables]:
        """Follow vectors of tables; return the splits and all children."""
        splits, positions = self.find_children(field, required=required)
        children = Tables(self.buffer, positions, name)
        # Each child becomes an object, so a vector that repeats one table must be rejected.
        sizes = np.broadcast_to(children._table_sizes + 4, len(children))  # 4 for the pointer
        if int(sizes.sum()) > self.buffer.size:
            self.buffer.fail(f"{self.name}: tables in {field.name} overlap each other")
        return splits, children

    def get_tables(self, field: Field, name: str, rows: NDArray[np.int64] | None = None) -> Tables:
        """Follow a required pointer from each table, or from some rows, to another table."""
        targets = self._find_targets(field, required=True)
        return Tables(self.buffer, targets if rows is None else targets[rows], name)

    def read_string_vector(self, field: Field) -> list[str]:
        """Read the vector of strings of a single table."""
        spans = self.find_vectors(field, 4)
        _, positions = self._find_items(spans, 4, 5)  # 5: length and terminating zero
        targets = positions + self.buffer.gather(positions, np.dtype("<u4"))
        fits = (targets & 3 == 0) & (targets <= self.buffer.size - 4) & (targets > positions)
        if not fits.all():
            self.buffer.fail(f"{self.name}: {field.name} points outside the file")
        counts = self.buffer.gather(targets, np.dtype("<u4")).astype(np.int64)
        if not (targets + 4 + counts <= self.buffer.size).all():
            self.buffer.fail(f"{self.name}: {field.name} extends past the end of the file")
        strings = Spans(targets + 4, counts)
        if not self.buffer.is_terminated(strings).all():
            self.buffer.fail(f"{self.name}: one of {field.name} is not null-terminated")
        codes, table = self.buffer.factorize(strings, f"{self.name}: one of {field.name}")
        distinct = list(table)
        return [distinct[code] for code in codes]


def is_utf8(table: Strings) -> bool:
    """Whether every string is valid UTF-8."""
    if table.data.max(initial=0) < 0x80:
        return True
    try:
        table.data.tobytes().decode()
    except UnicodeDecodeError:
        return False
    # The concatenation is valid; a string that starts inside a character is not.
    starts = table.offsets[:-1][table.lengths > 0]
    return not ((table.data[starts] & 0xC0) == 0x80).any()
