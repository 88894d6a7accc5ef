"""Reader of Thrift's compact protocol, in which Parquet encodes footers and page headers."""

from __future__ import annotations

from typing import Any, Final

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MAX_DEPTH: Final = 16


class ThriftError(ValueError):
    """Bytes are not a struct in the compact protocol."""


class CompactReader:
    """Reads structs from ``data``; ``position`` is the end of what was read."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of a struct by number: int, bool, bytes, list, dict, or None."""
        if depth > _MAX_DEPTH:
            raise ThriftError("a struct is nested too deeply")
        fields: dict[int, Any] = {}
        field = 0
        while head := self._read_byte():
            delta, kind = head >> 4, head & 0x0F
            field = field + delta if delta else self._read_zigzag()
            # The value of a boolean field is in its type.
            is_boolean = kind in {_TRUE, _FALSE}
            fields[field] = kind == _TRUE if is_boolean else self._read_value(kind, depth)
        return fields

    def _read_value(self, kind: int, depth: int) -> Any:
        if kind in {_I16, _I32, _I64}:
            return self._read_zigzag()
        if kind == _BINARY:
            return self._take(self._read_varint())
        if kind == _STRUCT:
            return self.read_struct(depth + 1)
        if kind in {_LIST, _SET}:
            head = self._read_byte()
            count = head >> 4 if head < 0xF0 else self._read_varint()
            if depth > _MAX_DEPTH or count > len(self._data):
                raise ThriftError("a list is too long or nested too deeply")
            return [self._read_value(head & 0x0F, depth + 1) for _ in range(count)]
        if kind in {_TRUE, _FALSE, _BYTE}:
            return self._read_byte()
        if kind == _DOUBLE:
            return self._take(8)
        raise ThriftError(f"unexpected type {kind}")

    def _read_byte(self) -> int:
        try:
            value = self._data[self.position]
        except IndexError:
            raise ThriftError("a struct is truncated") from None
        self.position += 1
        return value

    def _read_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._read_byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift >= 70:
                raise ThriftError("a number is too long")

    def _read_zigzag(self) -> int:
        value = self._read_varint()
        return value >> 1 ^ -(value & 1)

    def _take(self, num_bytes: int) -> memoryview:
        if num_bytes > len(self._data) - self.position:
            raise ThriftError("a value is truncated")
        self.position += num_bytes
        return self._data[self.position - num_bytes : self.position]
