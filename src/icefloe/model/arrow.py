"""Conversion between Arrow data and numpy columns; pyarrow is imported when first needed.

Accepts any object with Arrow's PyCapsule interface, such as tables of pyarrow, polars, pandas and
DuckDB. All conversions are vectorized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.manifest import NO_CODE
from icefloe.model.strings import Strings

if TYPE_CHECKING:
    from numpy.typing import NDArray


def load_pyarrow() -> Any:
    """Import pyarrow; raise `InvalidInputError` if it is not installed."""
    try:
        import pyarrow  # noqa: ICN001, PLC0415 - optional
        import pyarrow.compute  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            "Arrow tables require pyarrow, which is not installed: pip install 'icefloe[virtual]'",
            kind=ErrorKind.UNIMPLEMENTED,
        ) from error
    return pyarrow


def is_arrow(value: object) -> bool:
    """Whether a value has Arrow's PyCapsule interface."""
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")


def to_arrow_table(value: object) -> Any:
    """Return Arrow data as a pyarrow table, without copying."""
    if not is_arrow(value):
        raise InvalidInputError(
            f"a {type(value).__qualname__} is not an Arrow table: pass a table or record batch of "
            "pyarrow, or any object with __arrow_c_stream__",
            kind=ErrorKind.INVALID_VIRTUAL_REF,
        )
    pa = load_pyarrow()
    try:
        return pa.table(value)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"a {type(value).__qualname__} is not an Arrow table: {error}",
            kind=ErrorKind.INVALID_VIRTUAL_REF,
        ) from error


def to_arrow_column(value: object) -> Any:
    """Return Arrow data as a chunked array."""
    pa = load_pyarrow()
    if isinstance(value, pa.ChunkedArray):
        return value
    if hasattr(value, "__arrow_c_stream__"):
        return pa.chunked_array(value)
    return pa.chunked_array([pa.array(value)])


def encode_strings(column: Any, name: str) -> tuple[NDArray[np.int32], Strings]:
    """Return the code of each string, `NO_CODE` for nulls, and the distinct strings.

    Raises `InvalidInputError` if the column does not hold valid UTF-8 strings.
    """
    pa = load_pyarrow()
    column_type = column.type
    is_dictionary = pa.types.is_dictionary(column_type)
    value_type = column_type.value_type if is_dictionary else column_type
    if pa.types.is_null(column_type):
        return np.full(len(column), NO_CODE, np.int32), Strings.of([])
    if not (
        pa.types.is_string(value_type)
        or pa.types.is_large_string(value_type)
        or pa.types.is_string_view(value_type)
    ):
        raise InvalidInputError(
            f"column {name!r} must hold strings, plain or dictionary-encoded, got {column_type}",
            kind=ErrorKind.INVALID_VIRTUAL_REF,
        )
    if pa.types.is_string_view(value_type):
        column = column.cast(pa.large_string())
        is_dictionary = False
    encoded = column if is_dictionary else column.dictionary_encode()
    combined = encoded.unify_dictionaries().combine_chunks()
    if isinstance(combined, pa.ChunkedArray):  # a column without chunks
        return np.zeros(0, np.int32), Strings.of([])
    codes = combined.indices.fill_null(NO_CODE).to_numpy(zero_copy_only=False).astype(np.int32)
    table = combined.dictionary.cast(pa.large_string())
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"column {name!r} holds strings that are not UTF-8: {error}",
            kind=ErrorKind.INVALID_VIRTUAL_REF,
        ) from error
    is_null = table.is_null().to_numpy(zero_copy_only=False)
    # Dictionaries that other libraries built may have duplicates and nulls.
    renumber, distinct = view_strings(table).unique()
    renumber = np.append(np.where(is_null, NO_CODE, renumber), NO_CODE).astype(np.int32)
    return renumber[codes], distinct


def view_strings(array: Any) -> Strings:
    """Return an Arrow array of large strings as `Strings`, without copying."""
    _, offsets, data = array.buffers()
    if not len(array):
        return Strings.of([])
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Strings(content[ends[0] : ends[-1]], ends - ends[0])


def to_dictionary_array(codes: NDArray[np.int32], table: Strings) -> Any:
    """Return a dictionary-encoded Arrow array; `NO_CODE` becomes null."""
    pa = load_pyarrow()
    buffers = [None, pa.py_buffer(table.offsets), pa.py_buffer(table.data)]
    values = pa.LargeStringArray.from_buffers(len(table), buffers[1], buffers[2])
    if len(table.data) < 2**31:
        values = values.cast(pa.string())  # the type that most tools expect
    indices = pa.array(codes, mask=codes == NO_CODE)
    return pa.DictionaryArray.from_arrays(indices, values)
