"""Row-wise writer of flatbuffers, for few tables.

The counterpart of `direct_reader`: tables, strings and vectors are appended one by one. A parent is
added before its children, because flatbuffers point forward, and is pointed to them afterwards.

Values that do not fit their field raise `UNFIT`. The columnar writer then runs in its place,
because its errors name the field and the value.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.format.envelope import pack
from icefloe.format.flatbuffer_writer import FILE_IDENTIFIER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from icefloe.format.envelope import FileType
    from icefloe.format.schema import Field

UNFIT: tuple[type[Exception], ...] = (struct.error, UnicodeEncodeError)
"""What a writer raises on values that a file cannot hold."""

_U32 = Struct("<I")
_CODES = {"<u1": "B", "<u2": "H", "<u4": "I", "<i4": "i", "<u8": "Q"}
_SIZES = {dtype: Struct(f"<{code}").size for dtype, code in _CODES.items()}
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")


class TableLayout:
    """The bytes of a table with given fields: its vtable, then the table.

    Every table has its own vtable, as in `flatbuffer_writer`. Values are passed in the order of
    ``fields``; pointers are passed as 0 and set later.
    """

    __slots__ = ("_body", "_head", "_order", "_tail", "offsets", "table")

    def __init__(self, *fields: Field) -> None:
        num_entries = 2 + max([field.slot + 1 for field in fields], default=0)
        # Eight-byte fields come first, and follow the four bytes of `soffset`.
        self.table = 2 * num_entries + (4 - 2 * num_entries) % 8
        entries = [0] * num_entries
        formats, end = ["<"], 4
        self.offsets: dict[Field, int] = {}
        for field in sorted(fields, key=lambda field: -_SIZES[field.dtype]):
            self.offsets[field] = entries[2 + field.slot] = end
            size = _SIZES[field.dtype] * field.items
            formats.append(f"{size}s" if field.items > 1 else _CODES[field.dtype])
            end += size
        entries[:2] = 2 * num_entries, end
        vtable = Struct(f"<{num_entries}H").pack(*entries).ljust(self.table, b"\0")
        self._head = vtable + _U32.pack(self.table)
        self._body = Struct("".join(formats))
        self._order = [fields.index(field) for field in self.offsets]
        self._tail = bytes(-end % 4)

    def pack(self, values: Sequence[Any]) -> bytes:
        """Return the bytes of a table."""
        return self._head + self._body.pack(*[values[row] for row in self._order]) + self._tail


class DirectWriter:
    """One flatbuffer, appended to from its start."""

    __slots__ = ("out",)

    def __init__(self) -> None:
        self.out = bytearray(_U32.size) + FILE_IDENTIFIER

    def add_table(self, layout: TableLayout, *values: Any) -> int:
        """Append a table; return its position."""
        out = self.out
        if len(out) & 7:
            out += bytes(-len(out) % 8)
        position = len(out) + layout.table
        out += layout.pack(values)
        return position

    def add_blob(self, data: bytes) -> int:
        """Append a byte vector or a string, which is null-terminated; return its position."""
        out = self.out
        position = len(out)
        size = len(data)
        out += _U32.pack(size)
        out += data
        out += bytes(4 - (size & 3))
        return position

    def add_items(self, count: int, data: bytes, *, align: int = 4) -> int:
        """Append a vector of numbers or structs, given as bytes; return its position."""
        out = self.out
        if align > 4 and (len(out) + 4) & (align - 1):
            out += bytes(4)
        position = len(out)
        out += _U32.pack(count)
        out += data
        out += _PADDING[len(data) & 3]
        return position

    def add_pointers(self, count: int) -> int:
        """Append a vector of pointers to set; return its position."""
        return self.add_items(count, bytes(4 * count))

    def align(self, size: int) -> int:
        """Append zeros up to a multiple of ``size``; return the position."""
        self.out += bytes(-len(self.out) % size)
        return len(self.out)

    def set_numbers(self, positions: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        """Set numbers of four bytes at aligned positions."""
        np.frombuffer(self.out, "<i4", len(self.out) // 4)[positions >> 2] = values

    def set_pointers(self, vector: int, targets: NDArray[np.int64]) -> None:
        """Set the pointers of a long vector."""
        pointers = vector + 4 + 4 * np.arange(len(targets))
        self.set_numbers(pointers, targets - pointers)

    def point(self, pointer: int, target: int) -> None:
        """Set the pointer at a position."""
        _U32.pack_into(self.out, pointer, target - pointer)

    def point_field(self, table: int, layout: TableLayout, field: Field, target: int) -> None:
        """Set a pointer of a table."""
        self.point(table + layout.offsets[field], target)

    def point_items(self, vector: int, targets: Iterable[int]) -> None:
        """Set the pointers of a vector."""
        for pointer, target in enumerate(targets):
            self.point(vector + 4 + 4 * pointer, target)

    def pack(self, root: int, *, file_type: FileType, spec_version: int, level: int) -> bytes:
        """Return the compressed metadata file."""
        _U32.pack_into(self.out, 0, root)
        return pack(
            [self.out],
            len(self.out),
            file_type=file_type,
            spec_version=spec_version,
            level=level,
        )
