"""Row-wise reader of flatbuffers, for few tables.

The columnar reader (`flatbuffer_reader`) pays a fixed price per field, which is worth it from some
hundreds of tables on. This reader reads one table at a time with precompiled structs, and makes the
same checks: every position is checked for bounds and alignment before it is followed, and the bytes
that are copied are limited by the size of the buffer. A failed check raises `FormatError`.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, NoReturn

from icefloe.errors import FormatError

if TYPE_CHECKING:
    from icefloe.format.schema import Field

_U32, _I32, _VTABLE_HEAD = Struct("<I"), Struct("<i"), Struct("<HH")
# No table of the schema has more fields; entries of later versions of the format are not read.
_MAX_FIELDS = 16
_VTABLES = [Struct(f"<{count}H") for count in range(_MAX_FIELDS + 1)]
_SCALARS = {
    "<u1": Struct("<B"),
    "<u2": Struct("<H"),
    "<u4": _U32,
    "<i4": _I32,
    "<u8": Struct("<Q"),
}


class DirectBuffer:
    """The bytes of one flatbuffer, with the name of its file."""

    __slots__ = ("_blobs", "_room", "_texts", "data", "file", "size")

    def __init__(self, data: bytes, file: str) -> None:
        self.data = data
        self.file = file
        self.size = len(data)
        self._blobs: dict[tuple[int, int], bytes] = {}
        self._texts: dict[tuple[int, int], str] = {}
        self._room = len(data)

    def fail(self, reason: str) -> NoReturn:
        """Raise `FormatError` for this file."""
        raise FormatError(reason, file=self.file)

    def get_root(self, name: str) -> DirectTable:
        """Return the root table; ``name`` is its type in error messages."""
        if self.size < 8:
            self.fail(f"expected a flatbuffer of at least 8 bytes, got {self.size} bytes")
        return DirectTable(self, _U32.unpack_from(self.data)[0], name)

    def get_table(self, pointer: int, name: str, row: int) -> DirectTable:
        """Follow a pointer of a vector, whose bounds the caller must check."""
        return DirectTable(self, pointer + _U32.unpack_from(self.data, pointer)[0], name, row)

    def copy_bytes(self, start: int, count: int, label: str) -> bytes:
        """Copy bytes; equal spans share one object, and distinct ones may not overlap.

        Otherwise a small file could refer to one long string thousands of times. The caller must
        check bounds.
        """
        blob = self._blobs.get((start, count))
        if blob is None:
            self._room -= count
            if self._room < 0:
                self.fail(f"{label} overlaps another")
            blob = self._blobs[start, count] = self.data[start : start + count]
        return blob

    def copy_text(self, start: int, count: int, label: str) -> str:
        """Like `copy_bytes`, for UTF-8."""
        text = self._texts.get((start, count))
        if text is None:
            try:
                text = self.copy_bytes(start, count, label).decode()
            except UnicodeDecodeError:
                self.fail(f"{label} is not valid UTF-8")
            self._texts[start, count] = text
        return text


class DirectTable:
    """One table; error messages contain ``name``, its type, and its number."""

    __slots__ = ("_entries", "buffer", "data", "name", "position", "row", "size")

    def __init__(self, buffer: DirectBuffer, position: int, name: str, row: int = 0) -> None:
        self.buffer, self.position, self.name, self.row = buffer, position, name, row
        self.data = data = buffer.data
        end = buffer.size
        if position & 3 or not 4 <= position <= end - 4:
            self.fail("is outside the file")
        vtable = position - _I32.unpack_from(data, position)[0]
        if vtable & 1 or not 4 <= vtable <= end - 4:
            self.fail("has its vtable outside the file")
        vtable_size, self.size = _VTABLE_HEAD.unpack_from(data, vtable)
        if vtable_size < 4 or vtable_size & 1 or vtable + vtable_size > end:
            self.fail("has a malformed vtable")
        if self.size < 4 or position + self.size > end:
            self.fail("extends past the end of the file")
        count = min((vtable_size - 4) >> 1, _MAX_FIELDS)
        self._entries: tuple[int, ...] = _VTABLES[count].unpack_from(data, vtable + 4)

    def fail(self, problem: str) -> NoReturn:
        """Raise `FormatError` for this table."""
        self.buffer.fail(f"{self.name} {self.row} {problem}")

    def has(self, field: Field) -> bool:
        """Whether the table has a field."""
        return field.slot < len(self._entries) and self._entries[field.slot] != 0

    def _locate(self, field: Field, size: int, align: int, *, required: bool = False) -> int:
        """Return the position of a field, or 0 if it is absent."""
        offset = self._entries[field.slot] if field.slot < len(self._entries) else 0
        if not offset:
            if required:
                self.fail(f"lacks the required field {field.name}")
            return 0
        position = self.position + offset
        if offset < 4 or offset + size > self.size or position & (align - 1):
            self.fail(f"has the field {field.name} at an invalid position")
        return position

    def read_scalar(self, field: Field, default: int = 0) -> int:
        """Read a number, or return ``default`` if it is absent."""
        scalar = _SCALARS[field.dtype]
        position = self._locate(field, scalar.size, scalar.size)
        return scalar.unpack_from(self.data, position)[0] if position else default

    def locate_scalar(self, field: Field) -> int:
        """Return the position of a required number."""
        size = _SCALARS[field.dtype].size
        return self._locate(field, size, size, required=True)

    def read_struct(self, field: Field) -> bytes:
        """Read a required struct, such as an id."""
        position = self._locate(field, field.items, 1, required=True)
        return self.data[position : position + field.items]

    def find_target(self, field: Field, *, required: bool) -> int:
        """Follow a pointer; return the position of the target, or 0 if the field is absent."""
        position = self._locate(field, 4, 4, required=required)
        if not position:
            return 0
        distance: int = _U32.unpack_from(self.data, position)[0]
        target = position + distance
        # A pointer of 0 points to itself, and would look like an empty vector.
        if not distance or target & 3 or target > self.buffer.size - 4:
            self.fail(f"has a pointer {field.name} to an invalid position")
        return target

    def find_vector(
        self, field: Field, item_size: int, *, align: int = 1, required: bool = True
    ) -> tuple[int, int] | None:
        """Return the position and the number of the items of a vector; None if it is absent."""
        target = self.find_target(field, required=required)
        if not target:
            return None
        count: int = _U32.unpack_from(self.data, target)[0]
        start = target + 4
        if start + count * item_size > self.buffer.size:
            self.fail(f"has a {field.name} that extends past the end of the file")
        if count and start & (align - 1):
            self.fail(f"has a misaligned {field.name}")
        return start, count

    def read_string(self, field: Field, *, required: bool = True) -> str | None:
        """Read a string, or return None if it is absent."""
        span = self.find_vector(field, 1, required=required)
        if span is None:
            return None
        end = span[0] + span[1]
        if end >= self.buffer.size or self.data[end]:
            self.fail(f"has a {field.name} that is not null-terminated")
        return self.buffer.copy_text(*span, f"{self.name}: a {field.name}")

    def read_blob(self, field: Field, *, required: bool = True) -> bytes | None:
        """Read a byte vector, or return None if it is absent."""
        span = self.find_vector(field, 1, required=required)
        return span and self.buffer.copy_bytes(*span, f"{self.name}: a {field.name}")

    def read_items(self, field: Field, item: Struct, *, align: int = 1) -> list[tuple[Any, ...]]:
        """Read a required vector of numbers or structs."""
        start, count = self.find_vector(field, item.size, align=align) or (0, 0)
        if not count:
            return []
        label = f"{self.name}: a {field.name}"
        blob = self.buffer.copy_bytes(start, count * item.size, label)
        return list(item.iter_unpack(blob))

    def get_table(self, field: Field, name: str) -> DirectTable:
        """Follow a required pointer to another table."""
        return DirectTable(self.buffer, self.find_target(field, required=True), name)

    def find_tables(self, field: Field, *, required: bool = True) -> list[int]:
        """Return the positions of the tables of a vector, unchecked."""
        start, count = self.find_vector(field, 4, required=required) or (0, 0)
        if not count:
            return []
        if 8 * count > self.buffer.size:
            self.buffer.fail(f"{self.name}: vectors overlap or have excessive counts")
        distances = Struct(f"<{count}I").unpack_from(self.data, start)
        return [start + 4 * row + distance for row, distance in enumerate(distances)]

    def get_tables(self, field: Field, name: str, *, required: bool = True) -> list[DirectTable]:
        """Follow a vector of tables."""
        positions = self.find_tables(field, required=required)
        tables = [
            DirectTable(self.buffer, position, name, row) for row, position in enumerate(positions)
        ]
        # Each table becomes an object, so a vector that repeats one table must be rejected.
        if sum([table.size + 4 for table in tables]) > self.buffer.size:  # 4 for the pointer
            self.buffer.fail(f"{self.name}: tables in {field.name} overlap each other")
        return tables

    def get_child(self, field: Field, row: int, name: str) -> DirectTable:
        """Return one table of a required vector."""
        start, count = self.find_vector(field, 4) or (0, 0)
        if not 0 <= row < count:
            self.fail(f"refers to {name} {row} of {count}")
        return self.buffer.get_table(start + 4 * row, name, row)
