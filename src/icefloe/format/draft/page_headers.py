"""Page headers of Parquet files, which say how much memory a reader needs.

The footer repeats these numbers, but a reader of pages does not compare them. Headers are Thrift
structs in the compact protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = range(4)
_MAX_DEPTH: Final = 8
_MAX_HEADER_SIZE: Final = 1 << 20  # statistics in headers may have long values

DELTA_BYTE_ARRAY: Final = 7
"""The encoding that stores only the difference to the previous value."""


class PageHeaderError(ValueError):
    """Bytes are not a page header."""


@dataclass(frozen=True, slots=True)
class PageHeader:
    """A page: its sizes, encoding and number of values."""

    is_dictionary: bool
    uncompressed_size: int
    num_values: int
    encoding: int


def iterate_pages(data: memoryview, start: int, end: int) -> Iterator[PageHeader]:
    """Yield the headers of the pages in a part of a file."""
    position = start
    while position < end:
        reader = _CompactReader(data[position : min(end, position + _MAX_HEADER_SIZE)])
        fields = reader.read_struct(0)
        kind, uncompressed, compressed = (_get_number(fields, number) for number in (1, 2, 3))
        position += reader.position + compressed
        if position > end:
            raise PageHeaderError("a page is larger than its column")
        if kind == _DATA_PAGE:
            details, encoding_field = fields.get(5), 2
        elif kind == _DATA_PAGE_V2:
            details, encoding_field = fields.get(8), 4
        elif kind == _DICTIONARY_PAGE:
            details, encoding_field = fields.get(7), 2
        else:
            raise PageHeaderError(f"unexpected page type {kind}")
        if not isinstance(details, dict):
            raise PageHeaderError("a page header has no details")
        yield PageHeader(
            kind == _DICTIONARY_PAGE,
            uncompressed,
            _get_number(details, 1),
            _get_number(details, encoding_field),
        )


def _get_number(fields: dict[int, Any], field: int) -> int:
    value = fields.get(field)
    if type(value) is not int or not 0 <= value < 2**31:
        raise PageHeaderError(f"field {field} of a page header is {value!r:.40}")
    return value


class _CompactReader:
    """Reads Thrift's compact protocol; of strings and lists it returns nothing."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def read_struct(self, depth: int) -> dict[int, Any]:
        if depth > _MAX_DEPTH:
            raise PageHeaderError("a page header is nested too deeply")
        fields: dict[int, Any] = {}
        field = 0
        while head := self._read_byte():
            delta, kind = head >> 4, head & 0x0F
            field = field + delta if delta else self._read_zigzag()
            fields[field] = self._read_value(kind, depth, is_field=True)
        return fields

    def _read_value(self, kind: int, depth: int, *, is_field: bool) -> Any:
        if kind in {_TRUE, _FALSE}:
            if not is_field:
                self._skip(1)
            return kind == _TRUE
        if kind in {_I16, _I32, _I64}:
            return self._read_zigzag()
        if kind == _STRUCT:
            return self.read_struct(depth + 1)
        if kind == _BYTE:
            self._skip(1)
        elif kind == _DOUBLE:
            self._skip(8)
        elif kind == _BINARY:
            self._skip(self._read_varint())
        elif kind in {_LIST, _SET}:
            head = self._read_byte()
            count = head >> 4
            for _ in range(self._read_varint() if count == 0x0F else count):
                self._read_value(head & 0x0F, depth + 1, is_field=False)
        else:
            raise PageHeaderError(f"unexpected Thrift type {kind} in a page header")
        return None

    def _read_byte(self) -> int:
        try:
            value = self._data[self.position]
        except IndexError:
            raise PageHeaderError("a page header is truncated") from None
        self.position += 1
        return value

    def _read_varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._read_byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise PageHeaderError("a number in a page header is too long")

    def _read_zigzag(self) -> int:
        value = self._read_varint()
        return value >> 1 ^ -(value & 1)

    def _skip(self, num_bytes: int) -> None:
        if num_bytes > len(self._data) - self.position:
            raise PageHeaderError("a page header is truncated")
        self.position += num_bytes
