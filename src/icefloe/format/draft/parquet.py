"""Reads and writes Parquet files with a given Arrow schema; files are not trusted.

Before columns are decoded, their page headers are compared with limits on memory
(docs/format/draft.md, "Limits"). Every error of pyarrow is raised as `FormatError`.
"""

from __future__ import annotations

import base64
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.draft.parquet_pages import PageError, iterate_columns
from icefloe.format.json_text import format_ascii_json, parse_extended_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.model.ids import ObjectId

SUFFIX: Final = ".parquet"
INFO_KEY: Final = b"icefloe"
"""The key of the JSON object with what the columns have no place for, in the footer."""

COMPRESSION_LEVEL: Final = 1
MAX_DECODED_SIZE: Final = 2**31 - 1
_MIN_SIZE_LIMIT: Final = 256 << 20
_MAX_RATIO: Final = 1000
_MIN_THREADED_SIZE: Final = 1 << 20
_SCHEMA_KEY: Final = b"ARROW:schema"
_ERRORS: Final = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    NotImplementedError,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many values a column may have: a number, or a number per byte of the file."""

    min_values: int
    values_per_byte: int

    def limit_values(self, size: int) -> int:
        """Return the limit for a file of ``size`` bytes."""
        return max(self.min_values, self.values_per_byte * size)


COLUMNAR_LIMITS: Final = Limits(1 << 22, 16)
"""For files that are decoded to columns."""

OBJECT_LIMITS: Final = Limits(1 << 18, 4)
"""For files that are decoded to Python objects."""


@contextmanager
def translate_errors(file: str) -> Iterator[None]:
    """Raise `FormatError` for each error of a decoder."""
    try:
        yield
    except FormatError:
        raise
    except InvalidInputError as error:
        raise FormatError(error.message, file=file) from error
    except _ERRORS as error:
        raise FormatError(f"not a valid Parquet file ({error!s:.300})", file=file) from error


class ParquetReader:
    """A Parquet file whose schema and sizes were checked; open it in `translate_errors`.

    With ``keep_dictionaries``, columns of strings with dictionaries have a dictionary type, so that
    memory does not depend on the length of repeated values; nested columns do not support it.
    """

    def __init__(
        self,
        data: bytes | memoryview,
        schema: pa.Schema,
        file: str,
        *,
        limits: Limits = OBJECT_LIMITS,
        keep_dictionaries: bool = False,
    ) -> None:
        self._file = file
        self._data = data
        self._schema = schema
        dictionaries = _check_pages(
            memoryview(data), file, limits, expand_dictionaries=not keep_dictionaries
        )
        self._dictionary_columns = dictionaries if keep_dictionaries else []
        parquet = pq.ParquetFile(pa.BufferReader(data))
        _require_schema(parquet.schema_arrow, schema, file)
        self.num_rows: int = parquet.metadata.num_rows
        self.metadata: pq.FileMetaData = parquet.metadata
        if self.num_rows > limits.limit_values(len(data)):
            raise FormatError(f"declares {self.num_rows} rows, more than its columns", file=file)
        self.info = _read_info(parquet.metadata.metadata, file)

    def read(self, row_group: int | None = None) -> pa.Table:
        """Read all columns, of all rows or of one row group."""
        num_rows = self.num_rows
        if not self.metadata.num_row_groups and not num_rows:
            return self._schema.empty_table()  # pyarrow 18 does not read such files
        is_threaded = len(self._data) >= _MIN_THREADED_SIZE
        # A thread of pyarrow may be the last to release the source, after `read` has returned. If
        # that is a Python object, the thread waits for the GIL, which aborts a process that exits.
        source = _copy_to_arrow(self._data) if is_threaded else self._data
        parquet = pq.ParquetFile(pa.BufferReader(source), read_dictionary=self._dictionary_columns)
        if row_group is None:
            table = parquet.read(use_threads=is_threaded)
        else:
            num_rows = self.metadata.row_group(row_group).num_rows
            table = parquet.read_row_group(row_group, use_threads=is_threaded)
        if table.num_rows != num_rows:
            raise FormatError(
                f"has {table.num_rows} rows, but its footer says {num_rows}", file=self._file
            )
        for field, column in zip(table.schema, table.columns, strict=True):
            if not field.nullable and column.null_count:
                raise FormatError(f"has nulls in the column {field.name!r}", file=self._file)
        return table


class ParquetWriter:
    """Encodes a Parquet file in memory."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        info: dict[str, Any],
        dictionary_columns: Sequence[str] = (),
        encodings: dict[str, str] | None = None,
        sorted_by: Sequence[str] = (),
        statistics: Sequence[str] | bool = True,
        is_compressed: bool = True,
    ) -> None:
        self._sink = pa.BufferOutputStream()
        fields = [
            field.with_type(pa.dictionary(pa.int32(), field.type))
            if field.name in dictionary_columns
            else field
            for field in schema
        ]
        self.schema = pa.schema(fields)
        self._writer = pq.ParquetWriter(
            self._sink,
            self.schema,
            compression="zstd" if is_compressed else "none",
            compression_level=COMPRESSION_LEVEL if is_compressed else None,
            use_dictionary=list(dictionary_columns) or False,
            column_encoding=encodings or None,
            write_statistics=statistics if isinstance(statistics, bool) else list(statistics),
            store_schema=False,
            sorting_columns=[pq.SortingColumn(schema.get_field_index(name)) for name in sorted_by]
            or None,
            use_compliant_nested_type=False,
        )
        # The writer would store dictionary types in the schema.
        self._writer.add_key_value_metadata(
            {
                _SCHEMA_KEY: base64.b64encode(schema.serialize()),
                INFO_KEY: format_ascii_json(info),
            }
        )

    def write_row_group(self, columns: Sequence[pa.Array]) -> None:
        """Add a row group."""
        batch = pa.RecordBatch.from_arrays(list(columns), schema=self.schema)
        self._writer.write_batch(batch, row_group_size=max(1, len(batch)))

    def finish(self) -> bytes:
        """Return the file."""
        self._writer.close()
        return bytes(self._sink.getvalue())


def is_readable(data: bytes, limits: Limits, *, keep_dictionaries: bool = False) -> bool:
    """Whether a written file is within the limits of readers; otherwise it compresses too well."""
    try:
        _check_pages(memoryview(data), "", limits, expand_dictionaries=not keep_dictionaries)
    except FormatError:
        return False
    return True


def require_encodable(num_bytes: int, name: str) -> None:
    """Raise if the values of a file are larger than a reader allows."""
    if num_bytes > MAX_DECODED_SIZE:
        raise FormatError(
            f"{name} would have {num_bytes} bytes, more than {MAX_DECODED_SIZE}: split the array "
            "into more manifests",
            kind=ErrorKind.SERIALIZATION,
        )


def require_id(info: dict[str, Any], name: str, expected: ObjectId, file: str) -> None:
    """Raise if the id in a file differs from the id in its key."""
    actual = info.get(name)
    if actual is not None and actual != str(expected):
        raise FormatError(f"the file has the id {actual!r:.40}: it was renamed", file=file)


def _copy_to_arrow(data: bytes | memoryview) -> pa.Buffer:
    """Copy data to memory that Arrow owns, which is released without the GIL."""
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    return buffer


def _require_schema(actual: pa.Schema, expected: pa.Schema, file: str) -> None:
    if actual.names != expected.names:
        raise FormatError(
            f"has the columns {', '.join(actual.names)!s:.300}; expected "
            f"{', '.join(expected.names)}",
            file=file,
        )
    for actual_field, field in zip(actual, expected, strict=True):
        if not actual_field.equals(field):
            raise FormatError(
                f"the column {field.name!r} is {actual_field!s:.300}; expected {field!s}", file=file
            )


def _check_pages(
    data: memoryview, file: str, limits: Limits, *, expand_dictionaries: bool
) -> list[str]:
    """Check how much memory the columns need; return the names of columns with dictionaries."""
    size_limit = min(MAX_DECODED_SIZE, max(_MIN_SIZE_LIMIT, _MAX_RATIO * len(data)))
    values_limit = limits.limit_values(len(data))
    total_size = 0
    num_values: Counter[int] = Counter()
    dictionaries: dict[str, None] = {}
    try:
        for pages in iterate_columns(data):
            num_values[pages.column] += pages.num_values
            total_size += pages.uncompressed_size
            if pages.dictionary_size:
                dictionaries[pages.path] = None
                if expand_dictionaries:  # each value could be as long as the dictionary
                    total_size += pages.num_values * pages.dictionary_size
            if total_size > size_limit or num_values[pages.column] > values_limit:
                raise FormatError(
                    f"needs more than {size_limit} bytes or {values_limit} values in memory: it is "
                    "damaged, or compressed too much",
                    file=file,
                )
    except PageError as error:
        raise FormatError(str(error), file=file) from error
    return list(dictionaries)


def _read_info(metadata: dict[bytes, bytes] | None, file: str) -> dict[str, Any]:
    text = (metadata or {}).get(INFO_KEY)
    if text is None:
        return {}
    info = parse_extended_json(text, f"its metadata {INFO_KEY.decode()!r}", file)
    if not isinstance(info, dict):
        raise FormatError(f"its metadata {INFO_KEY.decode()!r} is not a JSON object", file=file)
    return info
