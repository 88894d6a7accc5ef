"""Codec of manifest files (Icechunk spec, "Chunk Manifest Files").

Reading and writing are vectorized in blocks that fit in the CPU cache, without a Python loop over
chunk references.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import ErrorKind, FormatError
from icefloe.format import direct_manifest, location_compression, schema
from icefloe.format.chunk_indices import (
    BLOCK_ROWS,
    IndexReader,
    are_indices_sorted,
    build_index_tail,
    drop_rows,
    fill_coords,
    find_repeated_rows,
    require_sorted,
)
from icefloe.format.direct_reader import DirectBuffer
from icefloe.format.direct_writer import UNFIT
from icefloe.format.envelope import FileType, unpack
from icefloe.format.flatbuffer_reader import FlatBuffer, Spans, Tables
from icefloe.format.flatbuffer_writer import Layout, LazyRecords, Records, Runs, get_blob_sizes
from icefloe.format.size_choice import is_small, is_small_file
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.columns import make_constant
from icefloe.model.ids import ChunkId, ManifestId
from icefloe.model.manifest import NO_CODE, ChunkPayloads, Manifest
from icefloe.model.strings import EMPTY, Strings, factorize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.format.direct_reader import DirectTable
    from icefloe.format.location_compression import CompressedLocations, LocationCompression

DEFAULT_LEVEL = 1
"""The default compression level of manifests.

Level 3, Icechunk's default, is slower and does not make files smaller: the layout is very regular.
"""

ZSTD_DICTIONARY = 1
"""The compression algorithm of locations; also the default if the field is absent."""

MIN_REF_SIZE = 12
"""The minimum size of a reference: the vtable offset, the index and one of the payload fields."""

_NO_COMPRESSION = 0
_NO_IDS = np.zeros((0, ChunkId.SIZE), np.uint8)
_OTHER_PAYLOADS = (
    schema.ChunkRef.INLINE,
    schema.ChunkRef.LOCATION,
    schema.ChunkRef.COMPRESSED_LOCATION,
)
_POINTER = np.dtype(schema.UOFFSET)
_MIN_RECORD_SIZE = 28  # a written reference: pointer, vtable, table and index


def decode_manifest(data: bytes | memoryview, file: str) -> Manifest:
    """Decode a manifest file."""
    _, body = unpack(data, FileType.MANIFEST, file)
    return read_manifest(body, file)


def read_manifest(body: bytes, file: str) -> Manifest:
    """Read a manifest from a decompressed file."""
    if is_small_file(body):
        manifest = direct_manifest.read_manifest(body, file)
        if manifest is not None:
            return manifest
    return _read_columns(FlatBuffer(body, file).get_root("Manifest"))


def decode_chunk_ids(data: bytes | memoryview, file: str) -> tuple[ManifestId, NDArray[np.uint8]]:
    """Decode the id of a manifest and the ids of its chunk files, a row each, with repeats.

    The rest of the file is not checked.
    """
    _, body = unpack(data, FileType.MANIFEST, file)
    root = DirectBuffer(body, file).get_root("Manifest")
    blocks = list(_iter_chunk_ids(root))
    ids = blocks[0] if len(blocks) == 1 else np.concatenate([_NO_IDS, *blocks])
    return ManifestId(root.read_struct(schema.Manifest.ID)), ids


def _iter_chunk_ids(root: DirectTable) -> Iterator[NDArray[np.uint8]]:
    buffer, field = FlatBuffer(root.data, root.buffer.file), schema.ChunkRef.CHUNK_ID
    room = buffer.size
    for array in root.get_tables(schema.Manifest.ARRAYS, "ArrayManifest"):
        start, count = array.find_vector(schema.ArrayManifest.REFS, 4) or (0, 0)
        # Many arrays that share one vector would take time out of proportion to the file.
        room -= count * (4 + MIN_REF_SIZE)
        if room < 0:
            buffer.fail("ArrayManifest: vectors overlap or have excessive counts")
        for begin in range(0, count, BLOCK_ROWS):
            end = min(begin + BLOCK_ROWS, count)
            positions = np.arange(start + 4 * begin, start + 4 * end, 4)
            targets = positions + buffer.gather(positions, _POINTER)
            refs = Tables(buffer, targets, "ChunkRef", first_row=begin)
            is_native = refs.has(field)
            is_known = is_native
            for other in () if is_native.all() else _OTHER_PAYLOADS:
                is_known = is_known | refs.has(other)
            if not is_known.all():
                # Its files are unknown, and garbage collection must not delete them.
                row = begin + int(np.argmin(is_known))
                buffer.fail(f"ChunkRef {row} has 0 payloads, expected 1")
            if is_native.any():
                ids = refs.read_structs(field, required=False)
                yield ids if is_native.all() else ids[is_native]


def _read_columns(root: Tables) -> Manifest:
    manifest_id = ManifestId(root.read_structs(schema.Manifest.ID).tobytes())
    _, arrays = root.get_children(schema.Manifest.ARRAYS, "ArrayManifest")
    node_ids = arrays.read_structs(schema.ArrayManifest.NODE_ID)
    root.buffer.require_ascending(node_ids, "arrays")
    row_offsets, positions = arrays.find_children(schema.ArrayManifest.REFS, min_size=MIN_REF_SIZE)
    indices = IndexReader(root.buffer, positions, row_offsets, "ChunkRef", schema.ChunkRef.INDEX)
    refs = _RefReader(root.buffer, len(positions))
    for begin in range(0, len(positions), BLOCK_ROWS):
        block_positions = positions[begin : begin + BLOCK_ROWS]
        block = Tables(root.buffer, block_positions, "ChunkRef", first_row=begin)
        indices.read_block(block)
        refs.read_block(block)
    columns = ChunkIndexColumns(node_ids, row_offsets, indices.ndims, indices.coords)
    payloads = refs.build_payloads(root)
    if not are_indices_sorted(columns):
        # Icechunk 1 duplicates references if the splitting rules change between commits.
        repeated = find_repeated_rows(columns)
        if payloads.select_rows(repeated) == payloads.select_rows(repeated - 1):
            unique = np.delete(np.arange(len(payloads)), repeated)
            columns, payloads = drop_rows(columns, repeated), payloads.select_rows(unique)
        require_sorted(root.buffer, columns, "chunk references")
    return Manifest(manifest_id, columns, payloads)


class _RefReader:
    """Reads the columns of chunk references, block by block."""

    def __init__(self, buffer: FlatBuffer, rows: int) -> None:
        self._buffer, self._rows = buffer, rows
        self._kind = np.empty(rows, np.uint8)
        self._offset = np.empty(rows, np.uint64)
        self._length = np.empty(rows, np.uint64)
        # Allocated on first use, because many manifests lack these columns.
        self._chunk_id: NDArray[np.uint8] | None = None
        self._last_modified: NDArray[np.uint32] | None = None
        self._spans: dict[schema.Field, Spans] = {}

    def read_block(self, block: Tables) -> None:
        """Read the next block."""
        begin, end = block.first_row, block.first_row + len(block)
        rows = slice(begin, end)
        ref = schema.ChunkRef
        is_native = block.has(ref.CHUNK_ID)
        is_compressed = block.has(ref.COMPRESSED_LOCATION)
        is_plain = block.has(ref.LOCATION)
        is_inline = block.has(ref.INLINE)
        counts = is_native.astype(np.uint8) + is_compressed + is_plain + is_inline
        if not (counts == 1).all():
            row = int(np.argmax(counts != 1))
            block.buffer.fail(f"ChunkRef {begin + row} has {counts[row]} payloads, expected 1")
        kind = np.full(end - begin, ChunkKind.VIRTUAL, np.uint8)
        kind[is_native] = ChunkKind.NATIVE
        kind[is_inline] = ChunkKind.INLINE
        self._kind[rows] = kind
        self._offset[rows] = block.read_scalars(ref.OFFSET)
        self._length[rows] = block.read_scalars(ref.LENGTH)
        if is_native.any():
            if self._chunk_id is None:
                self._chunk_id = np.zeros((self._rows, ChunkId.SIZE), np.uint8)
            self._chunk_id[rows] = block.read_structs(ref.CHUNK_ID, required=False)
        if is_plain.any():
            self._set_spans(ref.LOCATION, rows, block.find_strings(ref.LOCATION, required=False))
        if is_compressed.any():
            spans = block.find_vectors(ref.COMPRESSED_LOCATION, 1, required=False)
            self._set_spans(ref.COMPRESSED_LOCATION, rows, spans)
        if is_inline.any():
            self._set_spans(ref.INLINE, rows, block.find_vectors(ref.INLINE, 1, required=False))
        # Only virtual chunks have checksums; others are ignored.
        is_virtual = is_plain | is_compressed
        if (block.has(ref.CHECKSUM_ETAG) & is_virtual).any():
            etags = block.find_strings(ref.CHECKSUM_ETAG, required=False)
            etags = Spans(etags.start * is_virtual, etags.count * is_virtual)
            self._set_spans(ref.CHECKSUM_ETAG, rows, etags)
        if (block.has(ref.CHECKSUM_LAST_MODIFIED) & is_virtual).any():
            if self._last_modified is None:
                self._last_modified = np.zeros(self._rows, np.uint32)
            times = block.read_scalars(ref.CHECKSUM_LAST_MODIFIED)
            self._last_modified[rows] = times * is_virtual

    def build_payloads(self, root: Tables) -> ChunkPayloads:
        rows = self._rows
        location, locations = self._read_locations(root)
        etag, etags = self._factorize(schema.ChunkRef.CHECKSUM_ETAG)
        chunk_id, last_modified = self._chunk_id, self._last_modified
        if chunk_id is None:
            chunk_id = np.broadcast_to(np.zeros(ChunkId.SIZE, np.uint8), (rows, ChunkId.SIZE))
        if last_modified is None:
            last_modified = make_constant(0, rows, np.uint32)
        inline = self._read_inline()  # also sets offset and length
        ranges = self._offset, self._length
        strings = location, locations, etag, etags
        return ChunkPayloads(self._kind, *ranges, chunk_id, *strings, last_modified, inline)

    def _set_spans(self, field: schema.Field, rows: slice, spans: Spans) -> None:
        if field not in self._spans:
            column = np.zeros((2, self._rows), np.int64)
            self._spans[field] = Spans(column[0], column[1])
        self._spans[field].start[rows] = spans.start
        self._spans[field].count[rows] = spans.count

    def _factorize(
        self, field: schema.Field, *, utf8: bool = True
    ) -> tuple[NDArray[np.int32], Strings]:
        spans = self._spans.get(field)
        if spans is None:
            return make_constant(NO_CODE, self._rows, np.int32), EMPTY
        return self._buffer.factorize(spans, f"a chunk's {field.name}", utf8=utf8)

    def _read_locations(self, root: Tables) -> tuple[NDArray[np.int32], Strings]:
        plain = self._factorize(schema.ChunkRef.LOCATION)
        if schema.ChunkRef.COMPRESSED_LOCATION not in self._spans:
            return plain
        codes, frames = self._factorize(schema.ChunkRef.COMPRESSED_LOCATION, utf8=False)
        algorithm = int(
            root.read_scalars(schema.Manifest.COMPRESSION_ALGORITHM, ZSTD_DICTIONARY)[0]
        )
        if algorithm != ZSTD_DICTIONARY:
            root.buffer.fail(f"unknown compression algorithm of locations: {algorithm}")
        span = root.find_vectors(schema.Manifest.LOCATION_DICTIONARY, 1, required=False)
        dictionary = root.buffer.copy_bytes(int(span.start[0]), int(span.count[0]))
        table = location_compression.decompress(
            frames, dictionary, root.buffer.file, file_size=root.buffer.size
        )
        if not len(plain[1]):
            return codes, table
        # The format allows plain and compressed locations in one file; no known writer mixes them.
        locations = Strings.of([*plain[1], *table])
        return np.where(codes == NO_CODE, plain[0], codes + np.int32(len(plain[1]))), locations

    def _read_inline(self) -> NDArray[np.uint8]:
        """Return the distinct inline chunks, and set offset and length to ranges of them."""
        codes, table = self._factorize(schema.ChunkRef.INLINE, utf8=False)
        rows = codes != NO_CODE
        self._offset[rows] = table.offsets[codes[rows]]
        self._length[rows] = table.lengths[codes[rows]]
        return table.data


def encode_manifest(
    manifest: Manifest,
    *,
    spec_version: int,
    level: int = DEFAULT_LEVEL,
    location_compression: LocationCompression | None = None,
) -> bytes:
    """Encode a manifest file; spec version 1 ignores ``location_compression``."""
    indices, payloads = manifest.indices, manifest.payloads
    if len(indices) != len(payloads):
        raise FormatError(
            f"manifest {manifest.id} has {len(indices)} chunk indices and {len(payloads)} payloads",
            kind=ErrorKind.SERIALIZATION,
        )
    compressed = None
    if (
        spec_version > 1
        and location_compression is not None
        and _count_fewest_locations(manifest) >= location_compression.min_locations
    ):
        compressed = location_compression.compress(payloads.locations)
    if compressed is None and is_small(len(manifest)):
        with suppress(*UNFIT):
            return direct_manifest.write_manifest(manifest, spec_version=spec_version, level=level)
    return _write_columns(manifest, compressed, spec_version=spec_version, level=level)


def _write_columns(
    manifest: Manifest, compressed: CompressedLocations | None, *, spec_version: int, level: int
) -> bytes:
    layout = Layout(
        f"manifest {manifest.id} with {len(manifest)} chunk references",
        advice="split manifests (ManifestSplittingConfig)",
    )
    table = schema.Manifest
    columns = [table.ID, table.ARRAYS, table.COMPRESSION_ALGORITHM]
    if compressed is not None:
        columns.append(table.LOCATION_DICTIONARY)
    root = layout.add_records(1, columns)
    root.fill(table.ID, np.frombuffer(manifest.id.raw, np.uint8))
    algorithm = _NO_COMPRESSION if compressed is None else ZSTD_DICTIONARY
    root.fill(table.COMPRESSION_ALGORITHM, algorithm)
    if compressed is not None:
        dictionary = layout.add_blobs(Strings.of([compressed.dictionary]))
        root.point(table.LOCATION_DICTIONARY, dictionary)

    array_table = schema.ArrayManifest
    node_ids = manifest.indices.node_ids
    counts = [len(node_ids)]
    position, arrays = layout.add_table_vectors(counts, [array_table.NODE_ID, array_table.REFS])
    root.point(table.ARRAYS, position)
    arrays.fill(array_table.NODE_ID, node_ids)
    frames = None if compressed is None else compressed.frames
    vectors, _ = write_refs(layout, manifest, frames)
    arrays.point(array_table.REFS, vectors)
    return layout.pack(root, file_type=FileType.MANIFEST, spec_version=spec_version, level=level)


def _count_fewest_locations(manifest: Manifest) -> int:
    """Return the number of virtual chunks of the array that has the fewest, but some.

    Icechunk, which writes a file per array, compresses the locations of an array from a minimum
    number on. Some readers do not support compressed locations, so arrays with fewer that share a
    file are not compressed either.
    """
    has_location = manifest.payloads.location_codes != NO_CODE
    ends = np.concatenate([[0], np.cumsum(has_location)])
    counts = np.diff(ends[manifest.indices.row_offsets])
    return int(counts[counts > 0].min(initial=len(has_location)))


def _find_used_fields(
    payloads: ChunkPayloads, *, compressed: bool
) -> dict[schema.Field, NDArray[np.bool_]]:
    """Return the fields in use, except the index, each with a mask of its rows."""
    ref = schema.ChunkRef
    is_native = payloads.kind == ChunkKind.NATIVE
    is_inline = payloads.kind == ChunkKind.INLINE
    is_virtual = payloads.kind == ChunkKind.VIRTUAL
    optional = {
        ref.OFFSET: ~is_inline,
        ref.LENGTH: ~is_inline,
        ref.CHUNK_ID: is_native,
        ref.COMPRESSED_LOCATION if compressed else ref.LOCATION: is_virtual,
        ref.CHECKSUM_ETAG: is_virtual & (payloads.etag_codes != NO_CODE),
        ref.CHECKSUM_LAST_MODIFIED: is_virtual & (payloads.last_modified != 0),
        ref.INLINE: is_inline,
    }
    return {field: rows for field, rows in optional.items() if rows.any()}


def write_refs(
    layout: Layout, manifest: Manifest, frames: Strings | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Add all chunk references; return the positions of the vectors and of the references.

    ``frames`` are compressed locations, which replace the plain locations.
    """
    ref, indices, payloads = schema.ChunkRef, manifest.indices, manifest.payloads
    # A lower bound, before anything is allocated; the exact size is checked below.
    layout.require_room(len(manifest) * _MIN_RECORD_SIZE)
    present = _find_used_fields(payloads, compressed=frames is not None)
    records = Records([ref.INDEX, *present], build_index_tail(indices))
    layout.require_room(len(manifest) * (records.stride + 4))
    vectors, pointers = layout.add_pointers(np.diff(indices.row_offsets))
    location_field = ref.LOCATION if frames is None else ref.COMPRESSED_LOCATION
    starts, nbytes, runs = _reserve_refs(
        layout, records, payloads.location_codes, payloads.locations if frames is None else frames
    )
    values: dict[schema.Field, NDArray[np.generic]] = {
        ref.OFFSET: payloads.offset,
        ref.LENGTH: payloads.length,
        ref.CHUNK_ID: payloads.chunk_id,
        ref.CHECKSUM_LAST_MODIFIED: payloads.last_modified,
    }
    targets: dict[schema.Field, NDArray[np.int64]] = {}

    def fill(block: Records, rows: slice) -> None:
        fill_coords(block, ref.INDEX, indices, rows)
        for field, mask in present.items():
            block_mask = None if mask[rows].all() else mask[rows]
            if field in targets:
                block.point(field, targets[field][rows], block_mask)
            else:
                block.fill(field, values[field][rows], block_mask)

    layout.put(layout.size - nbytes, LazyRecords(records, starts, nbytes, fill, runs))
    if runs is not None:
        run_rows = np.diff(runs.ends, prepend=-1)
        targets[location_field] = np.repeat(starts[runs.ends] + records.stride, run_rows)
    elif location_field in present:
        pool = layout.add_blobs(payloads.locations if frames is None else frames)
        targets[location_field] = pool[payloads.location_codes]
    if ref.CHECKSUM_ETAG in present:
        targets[ref.CHECKSUM_ETAG] = layout.add_blobs(payloads.etags)[payloads.etag_codes]
    if ref.INLINE in present:
        targets[ref.INLINE] = _add_inline_chunks(layout, payloads, present[ref.INLINE])
    positions = records.locate_tables(starts)
    pointers.set_targets(positions)
    return vectors, positions


def _reserve_refs(
    layout: Layout, records: Records, codes: NDArray[np.int32], table: Strings
) -> tuple[NDArray[np.int64], int, Runs | None]:
    """Return the start of each reference, the total size, and the locations between references.

    A location follows the run of references that use it: the distance is then similar in all runs,
    and compresses better than the distance to a pool. If locations alternate, a pool is used.
    """
    rows = len(codes)
    starts = np.arange(rows, dtype=np.int64) * records.stride
    nbytes, runs = rows * records.stride, None
    is_end = np.ones(rows, bool)
    is_end[:-1] = codes[1:] != codes[:-1]
    ends = np.flatnonzero(is_end)
    if len(table) and len(ends) <= max(2 * len(table), rows // 8):
        runs = Runs(ends, codes[ends], table)
        sizes = -(-get_blob_sizes(table.lengths[runs.codes]) // 8) * 8
        sizes[runs.codes == NO_CODE] = 0
        starts += np.repeat(np.cumsum(sizes) - sizes, np.diff(ends, prepend=-1))
        nbytes += int(sizes.sum())
    starts += layout.reserve(nbytes, 8)
    return starts, nbytes, runs


def _add_inline_chunks(
    layout: Layout, payloads: ChunkPayloads, is_inline: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Add the distinct inline chunks; return the position of each chunk."""
    ranges = (column[is_inline].astype(np.int64) for column in (payloads.offset, payloads.length))
    codes, distinct = factorize(payloads.inline, *ranges)
    targets = np.zeros(len(payloads), np.int64)
    targets[is_inline] = layout.add_blobs(distinct)[codes]
    return targets
