"""The pages of a Parquet file, whose headers say how much memory a reader needs.

The footer repeats these numbers, but readers do not compare them. pyarrow's access to the metadata
of columns is not used here, because the process aborts if these are damaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from icefloe.format.draft.thrift import CompactReader, ThriftError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FOOTER_SIZE: Final = 64 << 20
_MAGIC: Final = b"PAR1"
_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = range(4)
_MAX_HEADER_SIZE: Final = 1 << 20  # statistics in headers may have long values
_BYTE_ARRAY: Final = 6
_DELTA_BYTE_ARRAY: Final = 7


class PageError(ValueError):
    """The pages of a file are damaged or have an encoding that is not supported."""


@dataclass(frozen=True, slots=True)
class ColumnPages:
    """The pages of a column in a row group.

    ``dictionary_size`` is the size of its dictionary, 0 if it has none; columns of numbers have
    none, since their values have a fixed size.
    """

    path: str
    column: int
    num_values: int
    uncompressed_size: int
    dictionary_size: int


def iterate_columns(data: memoryview) -> Iterator[ColumnPages]:
    """Yield the pages of each column of each row group; raise `PageError` if they are damaged."""
    try:
        footer = _read_footer(data)
        for group in _get_list(footer, 4):
            for number, column in enumerate(_get_list(group, 1)):
                metadata = column.get(3)
                if not isinstance(metadata, dict):
                    raise PageError("a column has no metadata")
                yield _measure_column(data, number, metadata)
    except (ThriftError, AttributeError, TypeError) as error:
        raise PageError(f"its footer or a page header is damaged: {error}") from error


def _read_footer(data: memoryview) -> dict[int, Any]:
    if len(data) < 12 or bytes(data[:4]) != _MAGIC or bytes(data[-4:]) != _MAGIC:
        raise PageError("it is truncated, or is no Parquet file")
    size = int.from_bytes(data[-8:-4], "little")
    if size > min(len(data) - 12, MAX_FOOTER_SIZE):
        raise PageError(f"its footer of {size} bytes is too large")
    return CompactReader(data[len(data) - 8 - size : len(data) - 8]).read_struct()


def _get_list(fields: dict[int, Any], field: int) -> list[Any]:
    value = fields.get(field)
    if not isinstance(value, list):
        raise PageError(f"field {field} of its footer is not a list")
    return value


def _measure_column(data: memoryview, number: int, metadata: dict[int, Any]) -> ColumnPages:
    path = ".".join(bytes(name).decode("utf-8", "replace") for name in _get_list(metadata, 3))
    start = _get_number(metadata, 9)
    if 0 < _get_number(metadata, 11, default=0) < start:
        start = _get_number(metadata, 11)
    end = start + _get_number(metadata, 7)
    if end > len(data):
        raise PageError("a column is outside of the file")
    size = dictionary_size = num_values = 0
    while start < end:
        header = CompactReader(data[start : min(end, start + _MAX_HEADER_SIZE)])
        fields = header.read_struct()
        start += header.position + _get_number(fields, 3)
        if start > end:
            raise PageError("a page is larger than its column")
        page_size = _get_number(fields, 2)
        size += page_size
        match fields.get(1):
            case kind if kind == _DICTIONARY_PAGE:
                dictionary_size += page_size
                continue
            case kind if kind == _DATA_PAGE:
                details, encoding_field = fields.get(5), 2
            case kind if kind == _DATA_PAGE_V2:
                details, encoding_field = fields.get(8), 4
            case kind:
                raise PageError(f"unexpected page type {kind!r:.20}")
        if not isinstance(details, dict):
            raise PageError("a page header has no details")
        num_values += _get_number(details, 1)
        if _get_number(details, encoding_field) == _DELTA_BYTE_ARRAY:
            # A few bytes may stand for long values, each with the prefix of the previous one.
            raise PageError(f"column {path!r} has the unsupported encoding DELTA_BYTE_ARRAY")
    declared = _get_number(metadata, 5)
    if num_values != declared:
        raise PageError(f"column {path!r} has {num_values} values, its footer says {declared}")
    is_bytes = metadata.get(1) == _BYTE_ARRAY
    return ColumnPages(path, number, num_values, size, dictionary_size if is_bytes else 0)


def _get_number(fields: dict[int, Any], field: int, default: int | None = None) -> int:
    value = fields.get(field, default)
    if type(value) is not int or not 0 <= value < 2**40:
        raise PageError(f"field {field} of a footer or page header is {value!r:.40}")
    return value
