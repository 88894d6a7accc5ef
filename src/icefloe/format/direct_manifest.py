"""Row-wise codec of manifests, for few references; see `icefloe.format.manifest`."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.format import schema
from icefloe.format.direct_indices import (
    add_index,
    build_index_columns,
    iter_indices,
    read_index,
)
from icefloe.format.direct_reader import DirectBuffer
from icefloe.format.direct_writer import DirectWriter, TableLayout
from icefloe.format.envelope import FileType
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.columns import make_constant
from icefloe.model.ids import ChunkId, ManifestId
from icefloe.model.manifest import NO_CODE, ChunkPayloads, Manifest
from icefloe.model.strings import EMPTY, Strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.format.direct_reader import DirectTable

_M, _A, _R = schema.Manifest, schema.ArrayManifest, schema.ChunkRef
_ROOT = TableLayout(_M.ID, _M.COMPRESSION_ALGORITHM, _M.ARRAYS)
_ARRAY = TableLayout(_A.NODE_ID, _A.REFS)
_INLINE = TableLayout(_R.INDEX, _R.INLINE)
_NATIVE = TableLayout(_R.INDEX, _R.OFFSET, _R.LENGTH, _R.CHUNK_ID)
_VIRTUAL_LAYOUTS = {
    (has_etag, has_time): TableLayout(
        _R.INDEX,
        _R.OFFSET,
        _R.LENGTH,
        _R.LOCATION,
        *([_R.CHECKSUM_LAST_MODIFIED] if has_time else []),
        *([_R.CHECKSUM_ETAG] if has_etag else []),
    )
    for has_etag in (False, True)
    for has_time in (False, True)
}
_NO_COMPRESSION = 0
_NO_ID = bytes(ChunkId.SIZE)


class _Payloads:
    """Columns of chunk references, filled row by row."""

    def __init__(self) -> None:
        self.kinds: list[int] = []
        self.offsets: list[int] = []
        self.lengths: list[int] = []
        self.chunk_ids: list[bytes] = []
        self.location_codes: list[int] = []
        self.etag_codes: list[int] = []
        self.last_modified: list[int] = []
        self._locations: dict[str, int] = {}
        self._etags: dict[str, int] = {}
        self._inline = bytearray()

    def read(self, ref: DirectTable) -> None:
        """Append a reference."""
        payloads = [ref.has(field) for field in (_R.CHUNK_ID, _R.LOCATION, _R.INLINE)]
        if sum(payloads) != 1:
            ref.fail(f"has {sum(payloads)} payloads, expected 1")
        is_native, is_virtual, is_inline = payloads
        offset, length = ref.read_scalar(_R.OFFSET), ref.read_scalar(_R.LENGTH)
        location_code = etag_code = NO_CODE
        last_modified = 0
        if is_inline:
            chunk = ref.read_blob(_R.INLINE) or b""
            offset, length = len(self._inline), len(chunk)
            self._inline += chunk
        elif is_virtual:
            location = ref.read_string(_R.LOCATION) or ""
            location_code = self._locations.setdefault(location, len(self._locations))
            etag = ref.read_string(_R.CHECKSUM_ETAG, required=False)
            if etag is not None:
                etag_code = self._etags.setdefault(etag, len(self._etags))
            last_modified = ref.read_scalar(_R.CHECKSUM_LAST_MODIFIED)
        kind = ChunkKind.NATIVE if is_native else ChunkKind.VIRTUAL
        self.kinds.append(ChunkKind.INLINE if is_inline else kind)
        self.offsets.append(offset)
        self.lengths.append(length)
        self.chunk_ids.append(ref.read_struct(_R.CHUNK_ID) if is_native else _NO_ID)
        self.location_codes.append(location_code)
        self.etag_codes.append(etag_code)
        self.last_modified.append(last_modified)

    def build(self) -> ChunkPayloads:
        """Return the columns."""
        rows = len(self.kinds)
        return ChunkPayloads(
            np.array(self.kinds, np.uint8),
            np.array(self.offsets, np.uint64),
            np.array(self.lengths, np.uint64),
            np.frombuffer(b"".join(self.chunk_ids), np.uint8).reshape(rows, ChunkId.SIZE),
            *_build_strings(self.location_codes, self._locations),
            *_build_strings(self.etag_codes, self._etags),
            np.array(self.last_modified, np.uint32),
            np.frombuffer(bytes(self._inline), np.uint8),
        )


def _build_strings(codes: list[int], table: Iterable[str]) -> tuple[NDArray[np.int32], Strings]:
    strings = list(table)
    if not strings:
        return make_constant(NO_CODE, len(codes), np.int32), EMPTY
    return np.array(codes, np.int32), Strings.of(strings)


def read_manifest(body: bytes, file: str) -> Manifest | None:
    """Read a manifest from a decompressed file; None if it needs the columnar reader.

    That is the case for compressed locations, and for references that are not sorted.
    """
    root = DirectBuffer(body, file).get_root("Manifest")
    payloads = _Payloads()
    arrays = []
    for array in root.get_tables(_M.ARRAYS, "ArrayManifest"):
        refs = array.get_tables(_A.REFS, "ChunkRef")
        indices = [read_index(ref, _R.INDEX) for ref in refs]
        if any(ref.has(_R.COMPRESSED_LOCATION) for ref in refs):
            return None
        if any(a >= b for a, b in pairwise(indices)):
            return None
        for ref in refs:
            payloads.read(ref)
        arrays.append((array.read_struct(_A.NODE_ID), indices))
    if any(a[0] >= b[0] for a, b in pairwise(arrays)):
        root.buffer.fail("its arrays must be sorted by id, without duplicates")
    columns = build_index_columns(root.buffer, arrays, "ChunkRef")
    return Manifest(ManifestId(root.read_struct(_M.ID)), columns, payloads.build())


def write_manifest(manifest: Manifest, *, spec_version: int, level: int) -> bytes:
    """Encode a manifest file with plain locations."""
    writer = DirectWriter()
    arrays = list(iter_indices(manifest.indices))
    counts = [(raw_id, len(indices)) for raw_id, indices in arrays]
    root, vectors = begin_manifest(writer, manifest.id, counts)
    refs = iter(add_refs(writer, [i for _, rows in arrays for i in rows], manifest.payloads))
    for vector, (_, count) in zip(vectors, counts, strict=True):
        writer.point_items(vector, islice(refs, count))
    return writer.pack(root, file_type=FileType.MANIFEST, spec_version=spec_version, level=level)


def begin_manifest(
    writer: DirectWriter, manifest_id: ManifestId, arrays: Sequence[tuple[bytes, int]]
) -> tuple[int, list[int]]:
    """Add everything before the references of arrays, given as node id and number of references.

    Return the position of the root, and of the vector of each array, whose pointers are not set.
    """
    root = writer.add_table(_ROOT, manifest_id.raw, _NO_COMPRESSION, 0)
    vector = writer.add_pointers(len(arrays))
    writer.point_field(root, _ROOT, _M.ARRAYS, vector)
    tables = [writer.add_table(_ARRAY, raw_id, 0) for raw_id, _ in arrays]
    writer.point_items(vector, tables)
    vectors = []
    for table, (_, count) in zip(tables, arrays, strict=True):
        vectors.append(writer.add_pointers(count))
        writer.point_field(table, _ARRAY, _A.REFS, vectors[-1])
    return root, vectors


def add_refs(
    writer: DirectWriter, indices: Iterable[tuple[int, ...]], payloads: ChunkPayloads
) -> list[int]:
    """Add references; return their positions."""
    pointers: list[tuple[int, bytes]] = []
    refs = [
        _add_ref(writer, index, row, pointers)
        for index, row in zip(indices, _iter_rows(payloads), strict=True)
    ]
    # After all references, because pointers go forward; equal blobs are stored once.
    blobs: dict[bytes, int] = {}
    for pointer, blob in pointers:
        if blob not in blobs:
            blobs[blob] = writer.add_blob(blob)
        writer.point(pointer, blobs[blob])
    return refs


class _Row(NamedTuple):
    kind: int
    offset: int
    length: int
    last_modified: int
    chunk_id: bytes
    blob: bytes  # the inline chunk or the location
    etag: bytes | None


def _iter_rows(payloads: ChunkPayloads) -> Iterator[_Row]:
    chunk_ids, id_size = payloads.chunk_id.tobytes(), payloads.chunk_id.shape[1]
    locations = [location.encode() for location in payloads.locations]
    etags = [*[etag.encode() for etag in payloads.etags], None]  # the last is that of `NO_CODE`
    columns = (payloads.kind, payloads.offset, payloads.length, payloads.last_modified)
    codes = (payloads.location_codes, payloads.etag_codes)
    lists = [column.tolist() for column in (*columns, *codes)]
    for row, (kind, offset, length, last_modified, code, etag_code) in enumerate(
        zip(*lists, strict=True)
    ):
        blob = b""
        if kind == ChunkKind.INLINE:
            blob = payloads.inline[offset : offset + length].tobytes()
        elif kind == ChunkKind.VIRTUAL:
            blob = locations[code]
        chunk_id = chunk_ids[row * id_size : (row + 1) * id_size]
        yield _Row(kind, offset, length, last_modified, chunk_id, blob, etags[etag_code])


def _add_ref(
    writer: DirectWriter, index: tuple[int, ...], row: _Row, pointers: list[tuple[int, bytes]]
) -> int:
    """Add a reference; append the positions of its pointers to strings and inline chunks."""
    if row.kind == ChunkKind.INLINE:
        layout = _INLINE
        table = writer.add_table(layout, 0, 0)
        pointers.append((table + layout.offsets[_R.INLINE], row.blob))
    elif row.kind == ChunkKind.NATIVE:
        layout = _NATIVE
        table = writer.add_table(layout, 0, row.offset, row.length, row.chunk_id)
    else:
        layout = _VIRTUAL_LAYOUTS[row.etag is not None, row.last_modified != 0]
        checksum = [row.last_modified] if row.last_modified else []
        table = writer.add_table(layout, 0, row.offset, row.length, 0, *checksum, 0)
        pointers.append((table + layout.offsets[_R.LOCATION], row.blob))
        if row.etag is not None:
            pointers.append((table + layout.offsets[_R.CHECKSUM_ETAG], row.etag))
    writer.point_field(table, layout, _R.INDEX, add_index(writer, index))
    return table
