"""Converts virtual references that a user passes (lists, numpy arrays, Arrow tables) to columns.

Validates everything that does not depend on the repository before anything is stored; errors name
the column and the row. There is no Python loop over rows, except for lists of `VirtualChunkSpec` or
checksums, and for integers without a common numpy type. Pure, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count, islice
from operator import attrgetter, ne
from typing import TYPE_CHECKING, Any, Final, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model import arrow
from icefloe.model.arrow import encode_strings, is_arrow, load_pyarrow, to_arrow_column
from icefloe.model.chunk_payload import (
    MAX_U32,
    MAX_U64,
    Checksum,
    ETag,
    LastModified,
    VirtualChunkRef,
)
from icefloe.model.columns import make_constant
from icefloe.model.manifest import NO_CODE, ChunkPayloads, merge_codes
from icefloe.model.strings import EMPTY, Strings
from icefloe.model.virtual_chunk_spec import parse_unsigned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.virtual_chunk_spec import VirtualChunkSpec

_BLOCK_ROWS: Final = 1 << 16
"""Number of rows of a numpy string array that become Python strings at a time."""

_SAMPLE_ROWS: Final = 4096
"""Number of rows that decide whether the strings of a list are mostly distinct."""

INDEX, LOCATION, OFFSET, LENGTH = "index", "location", "offset", "length"
ETAG, LAST_MODIFIED = "etag", "last_modified"

_INDEX_KIND: Final = ErrorKind.INVALID_CHUNK_INDEX

StringColumn: TypeAlias = "Sequence[str] | NDArray[Any] | Any"
NumberColumn: TypeAlias = "Sequence[int] | NDArray[np.integer[Any]] | Any"
ChecksumColumn: TypeAlias = "str | datetime | int | Sequence[Any] | NDArray[Any] | Any | None"


class References(NamedTuple):
    """References to virtual chunks of one array: chunk coordinates and payloads."""

    coords: NDArray[np.uint32]
    payloads: ChunkPayloads


def parse_checksum(checksum: object) -> Checksum | None:
    """Parse the checksum of a file: an entity tag, a time, or seconds since 1970.

    Raises `InvalidInputError` for anything else, and for a time without a time zone, as Icechunk
    does.
    """
    match checksum:
        case None:
            return None
        case "":
            raise _reference_error("checksum: the entity tag is empty")
        case str():
            return ETag(checksum)
        case datetime(tzinfo=None):
            problem = "has no time zone: pass datetime(…, tzinfo=timezone.utc)"
            raise _reference_error(f"checksum: {checksum.isoformat()} {problem}")
        case datetime():
            return LastModified(int(checksum.timestamp()))
        case bool():
            pass
        case int() | np.integer():
            return LastModified(int(checksum))
    raise _reference_error(
        "checksum: expected an entity tag (str), a time (datetime) or seconds since 1970 (int), "
        f"got a {type(checksum).__qualname__}"
    )


def parse_reference(
    location: str, offset: SupportsIndex, length: SupportsIndex, checksum: object
) -> VirtualChunkRef:
    """Convert the arguments of one reference."""
    start = parse_unsigned(offset, MAX_U64, OFFSET)
    size = parse_unsigned(length, MAX_U64, LENGTH)
    if start + size > MAX_U64:
        raise _reference_error(f"offset {start} and length {size} exceed 64 bits")
    return VirtualChunkRef(location, start, size, parse_checksum(checksum))


def parse_specs(chunks: Sequence[VirtualChunkSpec], grid: tuple[int, ...]) -> References:
    """Convert a list of references to columns."""
    num_rows = len(chunks)
    indices = [spec.index for spec in chunks]
    _require_ndim(np.fromiter(map(len, indices), np.int64, num_rows), grid)
    coords = np.array(indices, np.int64).reshape(num_rows, len(grid))
    codes, table = _encode_column([spec.location for spec in chunks], LOCATION)
    payloads = ChunkPayloads.make_virtual(
        codes,
        table,
        np.fromiter(map(attrgetter("offset"), chunks), np.uint64, num_rows),
        np.fromiter(map(attrgetter("length"), chunks), np.uint64, num_rows),
    )
    etags = [spec.etag_checksum or "" for spec in chunks]
    if any(etags):
        payloads = _with_etags(payloads, *_encode_column(etags, "etag_checksum"))
    times = [
        0 if spec.last_updated_at_checksum is None else spec.last_updated_at_checksum.timestamp()
        for spec in chunks
    ]
    if any(times):
        has_time = np.array([spec.last_updated_at_checksum is not None for spec in chunks], bool)
        seconds = np.array(times, np.float64).astype(np.int64)
        payloads = _with_times(payloads, seconds, has_time, "last_updated_at_checksum")
    return _build_references(coords, payloads, grid)


def parse_box(
    grid: tuple[int, ...],
    shape: Sequence[int],
    *,
    first: Sequence[int] | None,
    locations: StringColumn,
    offsets: NumberColumn,
    lengths: NumberColumn,
    checksum: ChecksumColumn,
) -> References:
    """Convert a box of chunks, in C order, to columns.

    The box starts at the chunk ``first``, by default the first chunk of the array. A chunk whose
    location is empty or null is skipped.
    """
    shape = _parse_grid_tuple(shape, "chunk_grid_shape", grid)
    start = _parse_grid_tuple((0,) * len(grid) if first is None else first, "arr_offset", grid)
    codes, table = _encode_column(locations, "locations")
    offset, length = _parse_unsigned(offsets, "offsets"), _parse_unsigned(lengths, "lengths")
    num_chunks = int(np.prod(np.array(shape, object))) if shape else 1
    if not len(codes) == len(offset) == len(length) == num_chunks:
        raise _reference_error(
            f"{len(codes)} locations, {len(offset)} offsets and {len(length)} lengths do not match "
            f"a box of {_format_shape(shape)} chunks"
        )
    payloads = ChunkPayloads.make_virtual(codes, table, offset, length)
    payloads = _with_checksums(payloads, checksum)
    # Coordinates are allocated only after the number of chunks was checked: the shape can be huge.
    coords = np.zeros((1, 0), np.int64)  # of an array without dimensions
    if shape:
        box = np.stack(np.unravel_index(np.arange(num_chunks), shape), 1)
        coords = box + np.array(start, np.int64)
    has_location = _is_nonempty(codes, table)
    if has_location.all():
        return _build_references(coords, payloads, grid)
    rows = np.flatnonzero(has_location)
    return _build_references(coords[rows], payloads.select_rows(rows), grid, rows)


def parse_table(table: object, grid: tuple[int, ...]) -> References:
    """Convert an Arrow table to columns; see `IcechunkStore.set_virtual_refs_table`."""
    arrow_table = arrow.to_arrow_table(table)
    for name in (LOCATION, OFFSET, LENGTH):
        _require_column(arrow_table, name)
    coords = _parse_index(arrow_table, grid)
    codes, locations = encode_strings(_require_column(arrow_table, LOCATION), LOCATION)
    _require(codes != NO_CODE, LOCATION, lambda _: "the location is null")
    payloads = ChunkPayloads.make_virtual(
        codes,
        locations,
        _parse_unsigned(_require_column(arrow_table, OFFSET), OFFSET),
        _parse_unsigned(_require_column(arrow_table, LENGTH), LENGTH),
    )
    if ETAG in arrow_table.column_names:
        payloads = _with_etags(payloads, *encode_strings(_require_column(arrow_table, ETAG), ETAG))
    if LAST_MODIFIED in arrow_table.column_names:
        column = _require_column(arrow_table, LAST_MODIFIED)
        payloads = _with_times(payloads, *_parse_times(column, LAST_MODIFIED), LAST_MODIFIED)
    return _build_references(coords, payloads, grid)


def _encode_column(values: StringColumn, name: str) -> tuple[NDArray[np.int32], Strings]:
    """Dictionary-encode strings in any supported form."""
    if is_arrow(values):
        return encode_strings(to_arrow_column(values), name)
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "UTO":
            actual = f"a {values.ndim}-dimensional array of {values.dtype}"
            raise _reference_error(f"{name}: expected one column of strings, got {actual}")
        blocks = [
            _encode_list(values[begin : begin + _BLOCK_ROWS].tolist(), name, begin)
            for begin in range(0, len(values), _BLOCK_ROWS)
        ]
        return merge_codes(blocks)
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise _reference_error(f"{name}: expected strings, got a {type(values).__qualname__}")
    return _encode_list(values, name)


def _encode_list(
    values: Sequence[Any], name: str, begin: int = 0
) -> tuple[NDArray[np.int32], Strings]:
    """Dictionary-encode a list of strings; ``begin`` is the row number of its first value."""
    if not len(values):
        return np.zeros(0, np.int32), EMPTY
    try:
        if len(set(values[:_SAMPLE_ROWS])) > _SAMPLE_ROWS // 2:
            # Mostly distinct: a vectorized comparison is faster than a dictionary.
            _require_strings(values, range(begin, begin + len(values)), name)
            return _to_strings(values, name).unique()
        # Chunks of one file are adjacent: only the first string of each run is looked up.
        is_run_start = np.ones(len(values), bool)
        changes = map(ne, islice(values, 1, None), values)
        is_run_start[1:] = np.fromiter(changes, np.bool_, len(values) - 1)
        starts = np.flatnonzero(is_run_start)
        has_repeats = len(starts) < len(values)
        run_values = [values[start] for start in starts.tolist()] if has_repeats else values
        codes, table = _encode_by_dictionary(run_values, starts + begin, name)
    except (TypeError, ValueError):  # incomparable or unhashable values are not strings
        _require_strings(values, range(begin, begin + len(values)), name)  # names the row
        raise
    if not has_repeats:
        return codes, table
    return np.repeat(codes, np.diff(starts, append=len(values))), table


def _encode_by_dictionary(
    values: Sequence[Any], rows: NDArray[np.int64], name: str
) -> tuple[NDArray[np.int32], Strings]:
    """Dictionary-encode values in order of first occurrence; ``rows`` are their row numbers."""
    first_indices: dict[Any, int] = {}
    indices = np.fromiter(map(first_indices.setdefault, values, count()), np.int64, len(values))
    firsts = np.fromiter(first_indices.values(), np.int64, len(first_indices))
    distinct_values = list(first_indices)
    _require_strings(distinct_values, rows[firsts], name)
    # `firsts` is sorted, so the position of a first index in it is the code.
    return np.searchsorted(firsts, indices).astype(np.int32), _to_strings(distinct_values, name)


def _to_strings(values: Sequence[str], name: str) -> Strings:
    try:
        return Strings.of(values)
    except InvalidInputError as error:
        raise _reference_error(f"{name}: {error.message}") from error


def _require_strings(
    values: Sequence[Any], rows: Sequence[int] | NDArray[np.int64], name: str
) -> None:
    # The check of the types is fast; the loop only finds the row for the error.
    if not set(map(type, values)) <= {str, np.str_}:
        for row, value in zip(rows, values, strict=True):
            if not isinstance(value, str):
                problem = f"expected a string, got a {type(value).__qualname__}"
                raise _row_error(name, int(row), problem)


def _parse_unsigned(values: Any, name: str) -> NDArray[np.uint64]:
    """Parse a column of unsigned 64-bit integers."""
    column = _parse_integers(values, name)
    if column.dtype.kind == "i":
        _require(column >= 0, name, lambda row: f"{column[row]} is negative")
    return np.asarray(column, np.uint64)


def _parse_integers(values: Any, name: str) -> NDArray[Any]:
    if is_arrow(values):
        return _parse_arrow_integers(to_arrow_column(values), name)
    try:
        column = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise _reference_error(f"{name}: {error}") from error
    if column.ndim != 1:
        raise _reference_error(f"{name}: expected one column, got {column.ndim} dimensions")
    if column.dtype == object or (column.dtype.kind == "f" and not isinstance(values, np.ndarray)):
        # Python integers that have no common numpy type.
        for row, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise _row_error(name, row, f"{value!r} is not an integer")
            if not 0 <= value <= MAX_U64:
                raise _row_error(name, row, f"{value} is not between 0 and {MAX_U64}")
        column = np.array([int(value) for value in values], np.uint64)
    if len(column) and column.dtype.kind not in "iu":
        raise _reference_error(f"{name}: expected integers, got {column.dtype}")
    return column


def _parse_arrow_integers(column: Any, name: str) -> NDArray[Any]:
    pa = load_pyarrow()
    if not pa.types.is_integer(column.type):
        raise _reference_error(f"column {name!r}: expected integers, got {column.type}")
    if column.null_count:
        _require(~_find_nulls(column), name, lambda _: "the number is null")
    return np.asarray(column.to_numpy())


def _find_nulls(column: Any) -> NDArray[np.bool_]:
    return np.asarray(column.is_null().to_numpy())


def _require_column(table: Any, name: str) -> Any:
    num_columns = table.column_names.count(name)
    if num_columns != 1:
        names = ", ".join(map(repr, table.column_names)) or "none"
        problem = f"{num_columns} columns" if num_columns else "no column"
        raise _reference_error(f"the table has {problem} {name!r}; available: {names}")
    return table.column(name)


def _parse_index(table: Any, grid: tuple[int, ...]) -> NDArray[np.int64]:
    """Parse the chunk coordinates: a column of lists, or one column per dimension."""
    names = [f"{INDEX}_{axis}" for axis in range(len(grid))]
    coords = np.zeros((table.num_rows, len(grid)), np.int64)
    if INDEX not in table.column_names and all(name in table.column_names for name in names):
        extra = f"{INDEX}_{len(grid)}"
        if extra in table.column_names:
            raise _reference_error(f"the table has a column {extra!r}, but {_format_grid(grid)}")
        for axis, name in enumerate(names):
            column = _parse_integers(_require_column(table, name), name)
            coords[:, axis] = _convert_coordinates(column, name)
        return coords
    if INDEX not in table.column_names:
        missing = next(name for name in names if name not in table.column_names)
        raise _reference_error(
            f"the table has neither a column {INDEX!r} of lists nor a column {missing!r}, and "
            f"{_format_grid(grid)}; available: "
            f"{', '.join(map(repr, table.column_names)) or 'none'}"
        )
    lists = _require_column(table, INDEX)
    pa = load_pyarrow()
    list_type = lists.type
    if pa.types.is_fixed_size_list(list_type):
        sizes = np.full(len(lists), list_type.list_size)
    elif pa.types.is_list(list_type) or pa.types.is_large_list(list_type):
        sizes = np.asarray(pa.compute.list_value_length(lists).fill_null(-1).to_numpy())
    else:
        raise _reference_error(f"column {INDEX!r}: expected lists of integers, got {list_type}")
    if lists.null_count:
        _require(~_find_nulls(lists), INDEX, lambda _: "the index is null")
    _require_ndim(sizes, grid)
    values = pa.compute.list_flatten(lists)
    flat = _convert_coordinates(_parse_integers(values, INDEX), INDEX, max(1, len(grid)))
    return flat.reshape(coords.shape)


def _convert_coordinates(values: NDArray[Any], name: str, ndim: int = 1) -> NDArray[np.int64]:
    """Convert coordinates, ``ndim`` per row, to signed integers; raise if one would overflow."""
    if values.dtype == np.uint64:
        positions = np.flatnonzero(values > np.uint64(MAX_U32))
        if len(positions):
            problem = f"{values[positions[0]]} is not between 0 and {MAX_U32}"
            raise _row_error(name, int(positions[0]) // ndim, problem, _INDEX_KIND)
    return values.astype(np.int64)


def _parse_grid_tuple(values: Sequence[int], name: str, grid: tuple[int, ...]) -> tuple[int, ...]:
    try:
        numbers = tuple(int(value) for value in values)
    except (TypeError, ValueError) as error:
        raise _reference_error(f"{name}={values!r}: expected an integer per dimension") from error
    if len(numbers) != len(grid):
        raise _reference_error(f"{name}={numbers} {_format_ndim(len(numbers), grid)}", _INDEX_KIND)
    invalid_number = next((number for number in numbers if not 0 <= number <= MAX_U32), None)
    if invalid_number is not None:
        problem = f"{invalid_number} is not between 0 and {MAX_U32}"
        raise _reference_error(f"{name}={numbers}: {problem}", _INDEX_KIND)
    return numbers


def _with_checksums(payloads: ChunkPayloads, checksum: ChecksumColumn) -> ChunkPayloads:
    """Set one checksum for all chunks, or one per chunk."""
    if checksum is None or isinstance(checksum, (str, datetime, int, np.integer)):
        match parse_checksum(checksum):
            case ETag(value):
                codes = make_constant(0, len(payloads), np.int32)
                return replace(payloads, etag_codes=codes, etags=Strings.of([value]))
            case LastModified(time_seconds):
                last_modified = make_constant(time_seconds, len(payloads), np.uint32)
                return replace(payloads, last_modified=last_modified)
            case None:
                return payloads
    name = "checksum"
    if is_arrow(checksum):
        column = to_arrow_column(checksum)
        _require_num_rows(len(column), len(payloads), name)
        pa = load_pyarrow()
        if pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type):
            return _with_times(payloads, *_parse_times(column, name), name)
        return _with_etags(payloads, *encode_strings(column, name))
    if not isinstance(checksum, (Sequence, np.ndarray)):
        parse_checksum(checksum)  # raises: not a checksum
    _require_num_rows(len(checksum), len(payloads), name)
    if isinstance(checksum, np.ndarray) and checksum.dtype.kind == "M":
        # numpy times have no time zone; UTC is assumed.
        has_time = ~np.isnat(checksum)
        seconds = checksum.astype("datetime64[s]").astype(np.int64)
        return _with_times(payloads, seconds, has_time, name)
    if isinstance(checksum, np.ndarray) and checksum.dtype.kind in "iu":
        return _with_times(payloads, checksum, np.ones(len(checksum), bool), name)
    values = [None if value == "" else value for value in checksum]
    checksums = [parse_checksum(value) for value in values]
    etags = [item.value if isinstance(item, ETag) else "" for item in checksums]
    times = [item.seconds if isinstance(item, LastModified) else 0 for item in checksums]
    seconds = np.array(times, np.int64)
    payloads = _with_etags(payloads, *_encode_column(etags, name))
    return _with_times(payloads, seconds, seconds > 0, name)


def _with_etags(payloads: ChunkPayloads, codes: NDArray[np.int32], table: Strings) -> ChunkPayloads:
    """Set the entity tag of each chunk; an empty string or null means none."""
    etag_codes = np.where(_is_nonempty(codes, table), codes, NO_CODE)
    return replace(payloads, etag_codes=etag_codes.astype(np.int32), etags=table)


def _is_nonempty(codes: NDArray[np.int32], table: Strings) -> NDArray[np.bool_]:
    """Return a mask of the rows whose string is neither empty nor null."""
    lengths = np.append(table.lengths, 0)  # NO_CODE, which is -1, indexes the appended length
    return np.asarray(lengths[codes] > 0)


def _with_times(
    payloads: ChunkPayloads, seconds: NDArray[Any], has_time: NDArray[np.bool_], name: str
) -> ChunkPayloads:
    """Set the modification time of each chunk that has no entity tag."""
    is_valid = (seconds > 0) & (seconds <= MAX_U32) | ~has_time
    limits = f"expected a last-modified checksum between 1 and {MAX_U32} seconds since 1970"
    _require(is_valid, name, lambda row: f"{limits}, got {seconds[row]}")
    is_used = has_time & (payloads.etag_codes == NO_CODE)
    return replace(payloads, last_modified=np.where(is_used, seconds, 0).astype(np.uint32))


def _parse_times(column: Any, name: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Convert times to seconds since 1970; also return a mask that is False for nulls."""
    pa = load_pyarrow()
    column_type = column.type
    if pa.types.is_null(column_type):
        return np.zeros(len(column), np.int64), np.zeros(len(column), bool)
    if pa.types.is_timestamp(column_type):
        if column_type.tz is None:
            hint = "cast it to timestamp('s', tz='UTC')"
            raise _reference_error(f"column {name!r} has times without a time zone: {hint}")
        column = column.cast(pa.timestamp("s", tz=column_type.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(column_type):
        expected = "expected times with a time zone, or seconds since 1970"
        raise _reference_error(f"column {name!r}: {expected}, got {column_type}")
    has_time = ~_find_nulls(column) if column.null_count else np.ones(len(column), bool)
    return np.asarray(column.fill_null(0).to_numpy()), has_time


def _build_references(
    coords: NDArray[np.int64],
    payloads: ChunkPayloads,
    grid: tuple[int, ...],
    rows: NDArray[np.int64] | None = None,
) -> References:
    """Check and return references; ``rows`` are their original rows if some were skipped."""

    def require(is_valid: NDArray[np.bool_], describe: Any, kind: ErrorKind | None = None) -> None:
        if not is_valid.all():
            row = int(np.argmin(is_valid))
            original_row = row if rows is None else int(rows[row])
            raise _reference_error(f"row {original_row}: {describe(row)}", kind)

    def format_chunk(row: int) -> str:
        return f"chunk {coords[row].tolist()}"

    is_inside = np.all((coords >= 0) & (coords < np.array(grid, np.int64)), axis=1)
    grid_problem = f"is outside the grid, which has {_format_shape(grid)} chunks"
    require(is_inside, lambda row: f"{format_chunk(row)} {grid_problem}", _INDEX_KIND)
    problem = "has length 0 and cannot be decoded; omit the chunk instead"
    has_bytes = payloads.length > 0
    require(has_bytes, lambda row: f"{format_chunk(row)} {problem}", ErrorKind.ZERO_LENGTH_CHUNK)
    offset, length = payloads.offset, payloads.length
    fits = length <= np.uint64(MAX_U64) - offset
    require(fits, lambda row: f"offset {offset[row]} and length {length[row]} exceed 64 bits")
    return References(coords.astype(np.uint32), payloads)


def _require(
    is_valid: NDArray[np.bool_], name: str, describe: Any, kind: ErrorKind | None = None
) -> None:
    """Raise if a row is invalid; ``describe`` returns the problem of a row."""
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise _row_error(name, row, describe(row), kind)


def _require_ndim(sizes: NDArray[np.int64], grid: tuple[int, ...]) -> None:
    is_valid = sizes == len(grid)
    _require(is_valid, INDEX, lambda row: _format_ndim(int(sizes[row]), grid), _INDEX_KIND)


def _require_num_rows(num_rows: int, num_chunks: int, name: str) -> None:
    if num_rows != num_chunks:
        raise _reference_error(f"{name}: {num_rows} rows do not match {num_chunks} chunks")


def _row_error(
    name: str, row: int, problem: str, kind: ErrorKind | None = None
) -> InvalidInputError:
    return _reference_error(f"{name}, row {row}: {problem}", kind)


def _reference_error(message: str, kind: ErrorKind | None = None) -> InvalidInputError:
    return InvalidInputError(message, kind=kind or ErrorKind.INVALID_VIRTUAL_REF)


def _format_ndim(ndim: int, grid: tuple[int, ...]) -> str:
    return f"has {ndim} {'number' if ndim == 1 else 'numbers'}, but {_format_grid(grid)}"


def _format_grid(grid: tuple[int, ...]) -> str:
    return f"the array has {len(grid)} {'dimension' if len(grid) == 1 else 'dimensions'}"


def _format_shape(numbers: Sequence[int]) -> str:
    return " x ".join(map(str, numbers)) or "one"
