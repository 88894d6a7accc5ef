"""Codec of inventories, which are manifests: chunk references as rows (docs/format/draft.md).

Reading and writing are vectorized, without a Python loop over chunk references.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.chunk_indices import are_indices_sorted
from icefloe.format.draft import schemas
from icefloe.format.draft.coord import MAX_DIMENSIONS, CoordError, decode_coords, encode_coords
from icefloe.format.draft.parquet import (
    COLUMNAR_LIMITS,
    ParquetReader,
    ParquetWriter,
    is_readable,
    require_encodable,
    require_id,
    translate_errors,
)
from icefloe.format.searched_refs import SearchedFile
from icefloe.model.chunk_index_columns import ChunkIndexColumns, find_row
from icefloe.model.chunk_payload import MAX_U32, ChunkKind
from icefloe.model.columns import make_constant, to_offsets
from icefloe.model.id_columns import count_digits, format_digits, parse_digits
from icefloe.model.ids import ChunkId, NodeId
from icefloe.model.manifest import NO_CODE, ChunkPayloads, Manifest, merge_codes
from icefloe.model.strings import EMPTY, Strings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ids import ManifestId

ROWS_PER_GROUP: Final = 1 << 17
"""Rows per row group: engines skip row groups whose statistics exclude all their rows."""

_NAME_SIZE: Final = count_digits(ChunkId.SIZE)
_SCHEME_END: Final = "://"
_ROW_BYTES: Final = 24  # the numbers of a row
# A dictionary pays if a name is used this often.
_MIN_DICTIONARY_USES: Final = 4
_MAX_PARTS: Final = 2
_SORTED_BY: Final = ("array_id", "coord")
_ENCODINGS: Final = {
    "id": "DELTA_BINARY_PACKED",
    "array_id": "DELTA_BINARY_PACKED",
    # Names without their lengths in between compress faster: only their digits are random.
    "chunk_file": "DELTA_LENGTH_BYTE_ARRAY",
    "offset": "DELTA_BINARY_PACKED",
    "length": "DELTA_BINARY_PACKED",
}


def encode_inventory(manifest: Manifest) -> bytes:
    """Encode an inventory."""
    indices, payloads = manifest.indices, manifest.payloads
    if len(indices) != len(payloads):
        raise FormatError(
            f"manifest {manifest.id} has {len(indices)} chunk indices and {len(payloads)} payloads",
            kind=ErrorKind.SERIALIZATION,
        )
    _require_encodable(manifest)
    data = _Encoder(manifest, is_compressed=True).encode()
    if not is_readable(data, COLUMNAR_LIMITS, keep_dictionaries=True):
        data = _Encoder(manifest, is_compressed=False).encode()
    return data


def _require_encodable(manifest: Manifest) -> None:
    indices, payloads = manifest.indices, manifest.payloads
    name = f"manifest {manifest.id}"
    numbers = indices.node_ids.reshape(-1).view(">u8")
    if (numbers > MAX_U32).any() or len(manifest) > MAX_U32:
        raise FormatError(
            f"{name} has a node id without a number, or too many chunk references",
            kind=ErrorKind.SERIALIZATION,
        )
    if (indices.ndims > MAX_DIMENSIONS).any():
        raise FormatError(
            f"{name} has an array of more than {MAX_DIMENSIONS} dimensions",
            kind=ErrorKind.SERIALIZATION,
        )
    is_virtual = payloads.kind == ChunkKind.VIRTUAL
    codes = payloads.location_codes[is_virtual]
    if not _are_urls(payloads.locations, codes):
        raise FormatError(
            f"{name} has a virtual chunk whose location is not a URL", kind=ErrorKind.SERIALIZATION
        )
    etags = payloads.etag_codes[payloads.etag_codes != NO_CODE]
    num_bytes = (
        len(manifest) * (_ROW_BYTES + _NAME_SIZE)
        + len(indices.coords) * 5
        + int(payloads.locations.lengths[codes].sum())
        + int(payloads.etags.lengths[etags].sum())
        + int(payloads.length[payloads.kind == ChunkKind.INLINE].sum())
    )
    require_encodable(num_bytes, name)


def _are_urls(table: Strings, codes: NDArray[np.int32]) -> bool:
    if not len(codes):
        return True
    is_url = _match_urls(_to_arrow(table))
    return bool(is_url.all() or is_url[codes].all())


def _match_urls(strings: pa.Array) -> NDArray[np.bool_]:
    matches: NDArray[np.bool_] = pc.match_substring(strings, _SCHEME_END).to_numpy(
        zero_copy_only=False
    )
    return matches


def _to_arrow(table: Strings) -> pa.Array:
    return pa.LargeStringArray.from_buffers(
        len(table), pa.py_buffer(table.offsets), pa.py_buffer(np.ascontiguousarray(table.data))
    )


class _Encoder:
    """Encodes a manifest, one row group at a time."""

    def __init__(self, manifest: Manifest, *, is_compressed: bool) -> None:
        self._indices, self._payloads = manifest.indices, manifest.payloads
        payloads = manifest.payloads
        self._array_ids = manifest.indices.node_ids.reshape(-1).view(">u8").astype(np.uint32)
        self._coord_starts = manifest.indices.coord_starts
        self._is_native = payloads.kind == ChunkKind.NATIVE
        self._is_inline = payloads.kind == ChunkKind.INLINE
        self._is_virtual = payloads.kind == ChunkKind.VIRTUAL
        self._num_native = int(self._is_native.sum())
        self._num_inline = int(self._is_inline.sum())
        num_virtual = len(payloads) - self._num_native - self._num_inline
        self._has_etags = bool(num_virtual) and bool(
            ((payloads.etag_codes != NO_CODE) & self._is_virtual).any()
        )
        self._has_times = bool(num_virtual) and bool(
            ((payloads.last_modified != 0) & self._is_virtual).any()
        )
        num_names = self._num_native + min(len(payloads.locations), num_virtual)
        self._has_dictionary = num_names * _MIN_DICTIONARY_USES <= len(payloads)
        encodings = dict(_ENCODINGS)
        if not is_compressed:
            encodings["id"] = "PLAIN"  # so that the file has at least four bytes per row
        dictionary_columns = ["chunk_file"] if self._has_dictionary else []
        if self._has_etags:
            dictionary_columns.append("etag")
        for name in dictionary_columns:
            encodings.pop(name, None)
        # Names of native chunks are random, so their least and greatest are of no use.
        statistics = ["id", "array_id", "coord", "offset", "length", "last_modified"]
        if num_virtual:
            statistics.append("chunk_file")
        self._writer = ParquetWriter(
            schemas.INVENTORY,
            info={"manifest-id": str(manifest.id)},
            dictionary_columns=dictionary_columns,
            encodings=encodings,
            sorted_by=_SORTED_BY,
            statistics=statistics,
            is_compressed=is_compressed,
        )

    def encode(self) -> bytes:
        num_rows = len(self._payloads)
        groups = [
            slice(begin, min(begin + ROWS_PER_GROUP, num_rows))
            for begin in range(0, num_rows, ROWS_PER_GROUP)
        ]
        if len(groups) < 2:
            for rows in groups:
                self._writer.write_row_group(self._build_columns(rows))
            return self._writer.finish()
        # The next row group is built while pyarrow, which releases the GIL, writes this one.
        with ThreadPoolExecutor(1, thread_name_prefix="icefloe") as pool:
            following = pool.submit(self._build_columns, groups[0])
            for next_rows in [*groups[1:], None]:
                columns = following.result()
                if next_rows is not None:
                    following = pool.submit(self._build_columns, next_rows)
                self._writer.write_row_group(columns)
        return self._writer.finish()

    def _build_columns(self, rows: slice) -> list[pa.Array]:
        payloads, is_inline = self._payloads, self._is_inline[rows]
        num_rows = rows.stop - rows.start
        has_inline = bool(self._num_inline) and bool(is_inline.any())
        offset = payloads.offset[rows]
        times = payloads.last_modified[rows]
        return [
            pa.array(np.arange(rows.start, rows.stop, dtype=np.uint32)),
            pa.array(self._build_array_ids(rows)),
            self._build_coords(rows),
            self._build_inline(rows) if has_inline else pa.nulls(num_rows, pa.binary()),
            self._build_names(rows),
            pa.array(np.ascontiguousarray(offset), mask=is_inline if has_inline else None),
            pa.array(np.ascontiguousarray(payloads.length[rows])),
            self._build_etags(rows),
            pa.array(times, mask=(times == 0) | ~self._is_virtual[rows])
            if self._has_times
            else pa.nulls(num_rows, pa.uint32()),
        ]

    def _find_arrays(self, rows: slice) -> tuple[slice, NDArray[np.int64]]:
        """Return the arrays that have some of the rows, and the number of rows of each."""
        row_offsets = self._indices.row_offsets
        arrays = slice(
            int(np.searchsorted(row_offsets, rows.start, "right")) - 1,
            int(np.searchsorted(row_offsets, rows.stop, "left")),
        )
        bounds = row_offsets[arrays.start : arrays.stop + 1].clip(rows.start, rows.stop)
        return arrays, np.diff(bounds)

    def _build_array_ids(self, rows: slice) -> NDArray[np.uint32]:
        arrays, counts = self._find_arrays(rows)
        return np.repeat(self._array_ids[arrays], counts)

    def _build_coords(self, rows: slice) -> pa.Array:
        arrays, counts = self._find_arrays(rows)
        ndims = self._indices.ndims[arrays]
        skipped = rows.start - int(self._indices.row_offsets[arrays.start])
        first = int(self._coord_starts[arrays.start]) + skipped * int(ndims[0])
        pieces, lengths = [], []
        # Adjacent arrays of one rank are encoded together: there may be thousands of small arrays.
        bounds = np.concatenate([[0], np.flatnonzero(np.diff(ndims)) + 1, [len(ndims)]])
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            num_rows, ndim = int(counts[begin:end].sum()), int(ndims[begin])
            flat = self._indices.coords[first : first + num_rows * ndim]
            first += num_rows * ndim
            data, offsets = encode_coords(flat.reshape(num_rows, ndim))
            pieces.append(data)
            lengths.append(np.diff(offsets))
        data = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        offsets = to_offsets(np.concatenate(lengths)).astype(np.int32)
        return pa.Array.from_buffers(
            pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )

    def _build_inline(self, rows: slice) -> pa.Array:
        payloads, is_inline = self._payloads, self._is_inline[rows]
        selected = np.flatnonzero(is_inline)
        starts = payloads.offset[rows][selected].astype(np.int64)
        lengths = np.zeros(len(is_inline), np.int64)
        lengths[selected] = payloads.length[rows][selected]
        data = _gather_bytes(payloads.inline, starts, lengths[selected])
        offsets = to_offsets(lengths).astype(np.int32)
        validity = pa.py_buffer(np.packbits(is_inline, bitorder="little"))
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(is_inline), buffers)

    def _build_names(self, rows: slice) -> pa.Array:
        payloads, is_native = self._payloads, self._is_native[rows]
        codes = payloads.location_codes[rows]
        num_native = int(is_native.sum()) if self._num_native else 0
        if num_native == len(codes) and not self._has_dictionary:
            text = format_digits(payloads.chunk_id[rows])
            return _make_names(text)
        first = int(codes[0])
        is_run = first != NO_CODE and bool((codes == np.arange(first, first + len(codes))).all())
        if is_run and self._is_virtual[rows].all() and not self._has_dictionary:
            return _view_range(payloads.locations, first, len(codes))
        used, codes = _compact(np.where(self._is_virtual[rows], codes, NO_CODE))
        locations = _to_arrow(payloads.locations).take(pa.array(used)).cast(pa.string())
        if num_native:
            names = _make_names(format_digits(payloads.chunk_id[rows][is_native]))
            codes[is_native] = len(used) + np.arange(num_native)
            locations = pa.concat_arrays([locations, names])
        indices = pa.array(codes, mask=codes == NO_CODE)
        if self._has_dictionary:
            return pa.DictionaryArray.from_arrays(indices, locations)
        return locations.take(indices)

    def _build_etags(self, rows: slice) -> pa.Array:
        if not self._has_etags:
            return pa.nulls(rows.stop - rows.start, pa.string())
        is_virtual = self._is_virtual[rows]
        used, codes = _compact(np.where(is_virtual, self._payloads.etag_codes[rows], NO_CODE))
        etags = _to_arrow(self._payloads.etags).take(pa.array(used)).cast(pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes == NO_CODE), etags)


def _gather_bytes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint8]:
    if len(starts) and (starts[1:] == starts[:-1] + lengths[:-1]).all():
        return data[int(starts[0]) : int(starts[-1] + lengths[-1])]
    targets = np.cumsum(lengths) - lengths
    sources = np.arange(int(lengths.sum())) + np.repeat(starts - targets, lengths)
    return np.asarray(data[sources])


def _make_names(text: NDArray[np.uint8]) -> pa.Array:
    offsets = np.arange(len(text) + 1, dtype=np.int32) * np.int32(text.shape[1])
    return pa.StringArray.from_buffers(
        len(text), pa.py_buffer(offsets), pa.py_buffer(text.reshape(-1))
    )


def _view_range(table: Strings, first: int, count: int) -> pa.Array:
    bounds = table.offsets[first : first + count + 1]
    data = np.ascontiguousarray(table.data[bounds[0] : bounds[-1]])
    offsets = (bounds - bounds[0]).astype(np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


def _compact(codes: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the codes that occur, in order of value, and the position of each code in them."""
    is_used = np.zeros(int(codes.max(initial=NO_CODE)) + 2, bool)
    is_used[codes] = True
    is_used[-1] = False  # the entry of `NO_CODE`
    used = np.flatnonzero(is_used)
    positions = np.cumsum(is_used, dtype=np.int32) - np.int32(1)
    positions[-1] = NO_CODE
    return used, positions[codes]


def decode_inventory(data: bytes | memoryview, file: str, manifest_id: ManifestId) -> Manifest:
    """Decode an inventory."""
    with translate_errors(file):
        return _decode(_open(data, file, manifest_id), file, manifest_id)


def open_inventory(
    data: bytes | memoryview, file: str, manifest_id: ManifestId
) -> Manifest | InventoryFile:
    """Open an inventory for lookups; decode it if it has one row group."""
    with translate_errors(file):
        reader = _open(data, file, manifest_id)
        if reader.metadata.num_row_groups < 2:
            return _decode(reader, file, manifest_id)
        return InventoryFile(reader, file, manifest_id, len(data))


def _open(data: bytes | memoryview, file: str, manifest_id: ManifestId) -> ParquetReader:
    reader = ParquetReader(
        data, schemas.INVENTORY, file, limits=COLUMNAR_LIMITS, keep_dictionaries=True
    )
    require_id(reader.info, "manifest-id", manifest_id, file)
    return reader


def _decode(
    reader: ParquetReader, file: str, manifest_id: ManifestId, row_group: int | None = None
) -> Manifest:
    first_row = sum(reader.metadata.row_group(group).num_rows for group in range(row_group or 0))
    decoder = _Decoder(reader.read(row_group), file, first_row)
    payloads = decoder.read_payloads()
    return Manifest(manifest_id, decoder.read_indices(), payloads)


class InventoryFile(SearchedFile):
    """An inventory with several row groups; up to two of them are decoded for lookups."""

    __slots__ = ("_bounds", "_file", "_id", "_parts", "_reader", "_size")

    def __init__(
        self, reader: ParquetReader, file: str, manifest_id: ManifestId, size: int
    ) -> None:
        self._reader, self._file, self._id, self._size = reader, file, manifest_id, size
        metadata = reader.metadata
        self._bounds = [
            _read_bounds(metadata.row_group(group)) for group in range(metadata.num_row_groups)
        ]
        self._parts: dict[int, Manifest] = {}

    @property
    def nbytes(self) -> int:
        """The size in memory, in bytes."""
        return self._size + sum(part.nbytes for part in self._parts.values())

    def search(self, node_id: NodeId, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Search a reference in the row groups whose statistics include it."""
        data, _ = encode_coords(np.array([indices], np.uint32))
        row = int.from_bytes(node_id.raw, "big"), data.tobytes()
        for group, (first, last) in enumerate(self._bounds):
            if first <= row <= last:
                part = self._read_part(group)
                refs = None if part is None else part.get_array(node_id)
                found = None if refs is None else find_row(refs.coords, indices)
                if refs is not None and found is not None:
                    return refs.payloads[found]
        return None

    def read_manifest(self) -> Manifest:
        """Decode all references."""
        with translate_errors(self._file):
            return _decode(self._reader, self._file, self._id)

    def _read_part(self, group: int) -> Manifest | None:
        """Decode a row group; None if too many are decoded already."""
        part = self._parts.get(group)
        if part is None and len(self._parts) < _MAX_PARTS:
            with translate_errors(self._file):
                part = self._parts[group] = _decode(self._reader, self._file, self._id, group)
        return part


def _read_bounds(row_group: Any) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
    """Return the node and the coordinates of the first and the last row of a row group, or wider.

    Rows are sorted, so the coordinates of a row group with one array are within its statistics.
    """
    arrays, coords = (
        row_group.column(schemas.INVENTORY.get_field_index(name)).statistics for name in _SORTED_BY
    )
    if arrays is None or not arrays.has_min_max:
        return (0, b""), (MAX_U32 + 1, b"")
    first, last = int(arrays.min), int(arrays.max)
    if first != last or coords is None or not coords.has_min_max:
        return (first, b""), (last + 1, b"")
    return (first, bytes(coords.min)), (last, bytes(coords.max))


class _Decoder:
    """Checks and converts the columns of an inventory."""

    def __init__(self, table: pa.Table, file: str, first_row: int) -> None:
        self._table, self._file, self._first_row = table, file, first_row
        self._num_rows = table.num_rows

    def read_indices(self) -> ChunkIndexColumns:
        rows = np.arange(self._first_row, self._first_row + self._num_rows, dtype=np.uint32)
        if not np.array_equal(self._read_numbers("id"), rows):
            raise self._fail("the column 'id' does not have the row numbers")
        array_ids = self._read_numbers("array_id")
        changes = np.flatnonzero(array_ids[1:] != array_ids[:-1]) + 1
        starts = np.concatenate([[0], changes]) if self._num_rows else np.zeros(0, np.int64)
        row_offsets = np.append(starts, self._num_rows).astype(np.int64)
        numbers = array_ids[starts]
        if not (numbers[1:] > numbers[:-1]).all():
            raise self._fail("its rows are not sorted by array_id")
        row_ndims, coords = self._read_coords()
        ndims = row_ndims[starts]
        if not np.array_equal(np.repeat(ndims, np.diff(row_offsets)), row_ndims):
            raise self._fail("chunks of one array differ in their number of coordinates")
        node_ids = numbers.astype(">u8").view(np.uint8).reshape(-1, NodeId.SIZE)
        indices = ChunkIndexColumns(node_ids, row_offsets, ndims, coords)
        if not are_indices_sorted(indices):
            raise self._fail("its rows must be sorted by array_id and coord, without duplicates")
        return indices

    def read_payloads(self) -> ChunkPayloads:
        num_rows = self._num_rows
        offset, length = self._read_numbers("offset"), self._read_numbers("length")
        inline_codes, inline = self._read_strings("inline_data")
        is_inline = inline_codes != NO_CODE
        has_inline = bool(is_inline.any())
        kind, chunk_id, location_codes, locations = self._read_names(is_inline)
        offset_is_null = self._find_nulls("offset")
        if offset_is_null is None:
            offset_is_null = make_constant(0, num_rows, np.uint8).astype(bool)
        if not np.array_equal(offset_is_null, is_inline):
            raise self._fail("inline chunks, and only they, must have no offset")
        if has_inline:
            sizes = inline.lengths[inline_codes[is_inline]]
            if not np.array_equal(sizes.astype(np.uint64), length[is_inline]):
                raise self._fail("an inline chunk does not have the length that its row says")
            offset = offset.copy()
            offset[is_inline] = inline.offsets[inline_codes[is_inline]]
        etag_codes, etags = self._read_strings("etag")
        _to_arrow(etags).validate(full=True)
        last_modified = self._read_numbers("last_modified")
        is_virtual = kind == ChunkKind.VIRTUAL
        if len(etags) and (etag_codes[~is_virtual] != NO_CODE).any():
            raise self._fail("a chunk that is not virtual has an etag")
        if last_modified.any() and last_modified[~is_virtual].any():
            raise self._fail("a chunk that is not virtual has a time of last modification")
        return ChunkPayloads(
            kind=kind,
            offset=offset,
            length=length,
            chunk_id=chunk_id,
            location_codes=location_codes,
            locations=locations,
            etag_codes=etag_codes,
            etags=etags,
            last_modified=last_modified,
            inline=inline.data,
        )

    def _fail(self, problem: str) -> FormatError:
        return FormatError(problem, file=self._file)

    def _read_numbers(self, name: str) -> NDArray[Any]:
        """Return a column of numbers, with 0 for nulls."""
        column = self._table.column(name)
        dtype = np.dtype(column.type.to_pandas_dtype())
        if column.null_count == len(column):
            return make_constant(0, len(column), dtype.type)
        if column.null_count:
            column = column.fill_null(0)
        numbers: NDArray[Any] = column.to_numpy()
        return numbers

    def _find_nulls(self, name: str) -> NDArray[np.bool_] | None:
        column = self._table.column(name)
        return column.is_null().to_numpy() if column.null_count else None

    def _read_coords(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        codes, table = self._read_strings("coord")
        try:
            ndims, coords = decode_coords(table.data, table.offsets)
        except CoordError as error:
            raise self._fail(str(error)) from error
        if _is_range(codes, len(table)):
            return ndims, coords
        # A dictionary: repeated values take little space in the file, but not here.
        row_ndims = ndims[codes]
        total = int(row_ndims.sum())
        require_encodable(4 * total, self._file)
        starts = (np.cumsum(ndims) - ndims)[codes]
        targets = np.cumsum(row_ndims) - row_ndims
        return row_ndims, coords[np.arange(total) + np.repeat(starts - targets, row_ndims)]

    def _read_strings(self, name: str) -> tuple[NDArray[np.int32], Strings]:
        """Return the code of each value, `NO_CODE` for nulls, and values, maybe with duplicates."""
        column = self._table.column(name)
        if column.null_count == len(column):
            return make_constant(NO_CODE, len(column), np.int32), EMPTY
        parts = [_read_chunk(chunk) for chunk in column.chunks if len(chunk)]
        if len(parts) == 1:
            return parts[0]
        return merge_codes(parts)

    def _read_names(
        self, is_inline: NDArray[np.bool_]
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int32], Strings]:
        """Return kinds, ids of native chunks, and the locations of virtual chunks."""
        num_rows = self._num_rows
        codes, table = self._read_strings("chunk_file")
        if not np.array_equal(codes == NO_CODE, is_inline):
            raise self._fail("a chunk must have either inline_data or a chunk_file")
        is_name, ids = _parse_names(table)
        no_codes = make_constant(NO_CODE, num_rows, np.int32)
        is_range = _is_range(codes, len(table))
        if is_range and is_name.all():
            return make_constant(ChunkKind.NATIVE, num_rows, np.uint8), ids, no_codes, EMPTY
        # The last entry of each lookup is for inline chunks.
        kinds = np.append(np.where(is_name, ChunkKind.NATIVE, ChunkKind.VIRTUAL), ChunkKind.INLINE)
        kind = kinds.astype(np.uint8)[codes]
        chunk_id = np.broadcast_to(np.zeros(ChunkId.SIZE, np.uint8), (num_rows, ChunkId.SIZE))
        if len(ids):
            id_lookup = np.zeros((len(table) + 1, ChunkId.SIZE), np.uint8)
            id_lookup[:-1][is_name] = ids[is_name] if len(ids) == len(table) else ids
            chunk_id = id_lookup[codes]
        if is_name.all():
            return kind, chunk_id, no_codes, EMPTY
        urls = table if not is_name.any() else table.take(np.flatnonzero(~is_name))
        self._require_urls(urls)
        url_codes, locations = urls.unique()
        if is_range and not is_name.any():
            return kind, chunk_id, url_codes, locations
        lookup = np.full(len(table) + 1, NO_CODE, np.int32)
        lookup[:-1][~is_name] = url_codes
        return kind, chunk_id, lookup[codes], locations

    def _require_urls(self, table: Strings) -> None:
        strings = _to_arrow(table)
        strings.validate(full=True)
        is_url = _match_urls(strings)
        if not is_url.all():
            name = table.data[slice(*table.offsets[(row := int(np.argmin(is_url))) : row + 2])]
            raise self._fail(
                f"the chunk_file {name.tobytes().decode()!r:.100} is neither the name of a chunk "
                "nor a URL"
            )


def _parse_names(table: Strings) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
    """Return which strings are names of chunks, and the ids of these or of all strings."""
    is_candidate = table.lengths == _NAME_SIZE
    if is_candidate.all():
        return parse_digits(table.data.reshape(-1, _NAME_SIZE), ChunkId.SIZE)
    candidates = np.flatnonzero(is_candidate)
    text = table.data[table.offsets[candidates, np.newaxis] + np.arange(_NAME_SIZE)]
    is_id, ids = parse_digits(text, ChunkId.SIZE)
    is_name = np.zeros(len(table), bool)
    is_name[candidates[is_id]] = True
    return is_name, ids[is_id]


def _read_chunk(chunk: pa.Array) -> tuple[NDArray[np.int32], Strings]:
    """Return the code of each value, and the values, of a plain or a dictionary array."""
    if isinstance(chunk, pa.DictionaryArray):
        codes = chunk.indices.fill_null(NO_CODE).to_numpy(zero_copy_only=False)
        return codes.astype(np.int32), _view_strings(chunk.dictionary)
    strings = _view_strings(chunk)
    if not chunk.null_count:
        return np.arange(len(chunk), dtype=np.int32), strings
    # Nulls have no bytes, so the table of the other values shares the data.
    is_valid = chunk.is_valid().to_numpy(zero_copy_only=False)
    codes = np.where(is_valid, np.cumsum(is_valid, dtype=np.int32) - np.int32(1), NO_CODE)
    ends = np.append(strings.offsets[:-1][is_valid], strings.offsets[-1])
    return codes.astype(np.int32), Strings(strings.data, ends)


def _view_strings(array: pa.Array) -> Strings:
    _, offsets, data = array.buffers()
    if not len(array):
        return EMPTY
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    content = EMPTY.data if data is None else np.frombuffer(data, np.uint8)
    return Strings(content[ends[0] : ends[-1]], ends.astype(np.int64) - int(ends[0]))


def _is_range(codes: NDArray[np.int32], count: int) -> bool:
    return len(codes) == count and bool((codes == np.arange(count)).all())
