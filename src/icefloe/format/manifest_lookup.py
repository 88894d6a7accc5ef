"""Lookups of single chunk references in the bytes of a manifest file.

References are sorted, so a binary search finds one without decoding the others: a manifest takes
the memory of its decompressed bytes, and the time to decompress them. If many chunks are looked up,
the whole manifest is decoded.

The file is untrusted. A lookup checks all that it reads. Damage elsewhere could hide a reference,
so the order of all indices is checked before a chunk is reported as missing.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import FormatError, InternalError
from icefloe.format import schema
from icefloe.format.chunk_indices import are_indices_sorted, read_indices
from icefloe.format.direct_indices import read_index
from icefloe.format.direct_reader import DirectBuffer, DirectTable
from icefloe.format.direct_writer import UNFIT
from icefloe.format.envelope import DEFAULT_LEVEL, FileType, unpack
from icefloe.format.flatbuffer_reader import FlatBuffer, Tables
from icefloe.format.location_compression import LocationDecompressor
from icefloe.format.manifest import MIN_REF_SIZE, ZSTD_DICTIONARY, read_manifest
from icefloe.format.manifest_edit import edit_manifest
from icefloe.format.manifest_insertion import insert_refs
from icefloe.format.metadata_codec import ManifestFile
from icefloe.model.chunk_payload import ChunkRef, ETag, InlineChunk, LastModified, VirtualChunkRef
from icefloe.model.ids import ChunkId, ManifestId, NodeId
from icefloe.model.ref_finder import IndexedRefs

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.model.chunk_payload import Checksum, ChunkPayload
    from icefloe.model.manifest import Manifest
    from icefloe.model.ref_finder import RefFinder

# Searching takes 0.1 times as long as decoding if this many references share one search, ...
_REFS_PER_SEARCH = 1024
# ... except in small files.
_MIN_SEARCHES = 8
_NOT_INSERTED: tuple[type[Exception], ...] = (FormatError, *UNFIT)

_M, _A, _R = schema.Manifest, schema.ArrayManifest, schema.ChunkRef
_PAYLOADS = (_R.INLINE, _R.CHUNK_ID, _R.LOCATION, _R.COMPRESSED_LOCATION)


def open_manifest_file(
    data: bytes | memoryview, file: str, *, spec_version: int
) -> FlatbuffersManifestFile:
    """Decompress a manifest file for lookups; its edits are written with ``spec_version``."""
    _, body = unpack(data, FileType.MANIFEST, file)
    return FlatbuffersManifestFile(body, file, spec_version)


class FlatbuffersManifestFile(ManifestFile):
    """A manifest file of generation v1 or v2."""

    __slots__ = ("_body", "_decompressor", "_file", "_is_sorted", "_spec_version")

    def __init__(
        self, body: bytes, file: str, spec_version: int, *, is_sorted: bool = False
    ) -> None:
        self._body, self._file, self._spec_version = body, file, spec_version
        self._is_sorted = is_sorted
        self._decompressor: LocationDecompressor | None = None

    @property
    def id(self) -> ManifestId:
        """The id in the file."""
        return ManifestId(self._get_root().read_struct(_M.ID))

    @property
    def nbytes(self) -> int:
        """The size in memory, in bytes."""
        return len(self._body)

    def open_buffer(self) -> DirectBuffer:
        """Return a buffer for one lookup: a buffer keeps the bytes that it copied."""
        return DirectBuffer(self._body, self._file)

    def open_columns(self) -> FlatBuffer:
        """Return a buffer for columnar reads."""
        return FlatBuffer(self._body, self._file)

    def find_refs(self, node_id: NodeId, decode: Callable[[], Manifest]) -> RefFinder | None:
        """Find the references of an array; None if there are none."""
        root = self._get_root()
        start, count = root.find_vector(_M.ARRAYS, 4) or (0, 0)

        def get_array(row: int) -> DirectTable:
            return root.buffer.get_table(start + 4 * row, "ArrayManifest", row)

        def read_node_id(row: int) -> bytes:
            return get_array(row).read_struct(_A.NODE_ID)

        row = bisect_left(range(count), node_id.raw, key=read_node_id)
        if row < count and read_node_id(row) == node_id.raw:
            return _FileRefFinder(_FileRefs(self, get_array(row)), node_id, decode)
        columns = self.open_columns()
        _, arrays = columns.get_root("Manifest").get_children(_M.ARRAYS, "ArrayManifest")
        columns.require_ascending(arrays.read_structs(_A.NODE_ID), "arrays")
        return None

    def read_manifest(self) -> Manifest:
        """Decode all references."""
        return read_manifest(self._body, self._file)

    def edit(self, changes: Manifest) -> bytes | None:
        """Encode the manifest with changes; None if the file must be rewritten."""
        root = self.open_columns().get_root("Manifest")
        return edit_manifest(root, changes, spec_version=self._spec_version)

    def insert(self, changes: Manifest, key: str) -> tuple[FlatbuffersManifestFile, bytes] | None:
        """Encode the manifest with more references; None if the file must be rewritten."""
        try:
            if not self._is_sorted and not self._are_refs_sorted():
                return None
            inserted = insert_refs(self._body, self._file, changes)
        except _NOT_INSERTED:  # decoding or encoding all references reports it
            return None
        if inserted is None:
            return None
        writer, root = inserted
        data = writer.pack(
            root,
            file_type=FileType.MANIFEST,
            spec_version=self._spec_version,
            level=DEFAULT_LEVEL,
        )
        body = bytes(writer.out)
        return FlatbuffersManifestFile(body, key, self._spec_version, is_sorted=True), data

    def _are_refs_sorted(self) -> bool:
        arrays = self._get_root().get_tables(_M.ARRAYS, "ArrayManifest")
        return len(arrays) == 1 and _FileRefs(self, arrays[0]).are_sorted()

    def read_payload(self, ref: DirectTable) -> ChunkPayload:
        """Read a reference."""
        present = [field for field in _PAYLOADS if ref.has(field)]
        if len(present) != 1:
            ref.fail(f"has {len(present)} payloads, expected 1")
        field = present[0]
        if field is _R.INLINE:
            return InlineChunk(ref.read_blob(field) or b"")
        offset, length = ref.read_scalar(_R.OFFSET), ref.read_scalar(_R.LENGTH)
        if field is _R.CHUNK_ID:
            return ChunkRef(ChunkId(ref.read_struct(field)), offset, length)
        if field is _R.LOCATION:
            location = ref.read_string(field) or ""
        else:
            location = self._decompress_location(ref.read_blob(field) or b"")
        return VirtualChunkRef(location, offset, length, _read_checksum(ref))

    def _decompress_location(self, frame: bytes) -> str:
        if self._decompressor is None:
            root = self._get_root()
            algorithm = root.read_scalar(_M.COMPRESSION_ALGORITHM, ZSTD_DICTIONARY)
            if algorithm != ZSTD_DICTIONARY:
                root.buffer.fail(f"unknown compression algorithm of locations: {algorithm}")
            dictionary = root.read_blob(_M.LOCATION_DICTIONARY, required=False)
            self._decompressor = LocationDecompressor(dictionary or b"", self._file)
        return self._decompressor.decompress(frame)

    def _get_root(self) -> DirectTable:
        return self.open_buffer().get_root("Manifest")


class _FileRefFinder:
    """Finds the references of one array in a file, until it pays off to decode the manifest."""

    __slots__ = ("_decode", "_indexed", "_is_sorted", "_node_id", "_num_searches", "_refs")

    def __init__(self, refs: _FileRefs, node_id: NodeId, decode: Callable[[], Manifest]) -> None:
        self._refs: _FileRefs | None = refs
        self._node_id, self._decode = node_id, decode
        self._num_searches = max(_MIN_SEARCHES, refs.count // _REFS_PER_SEARCH)
        self._is_sorted = False
        self._indexed: RefFinder | None = None

    def get(self, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Return the reference of a chunk, or None."""
        if self._indexed is not None:
            return self._indexed.get(indices)
        refs = self._refs
        if refs is not None and self._num_searches > 0:
            self._num_searches -= 1
            payload = refs.find(indices)
            if payload is not None:
                return payload
            self._is_sorted = self._is_sorted or refs.are_sorted()
            if self._is_sorted:
                return None
        self._indexed = indexed = self._index_manifest()
        self._refs = None  # releases the file
        return indexed.get(indices)

    def _index_manifest(self) -> IndexedRefs:
        # This raises if the file is damaged, and drops the duplicates of Icechunk 1.
        manifest = self._decode()
        array = manifest.get_array(self._node_id)
        if array is None:
            raise InternalError(f"the array {self._node_id} is missing in {manifest.id}")
        return IndexedRefs(array)


class _FileRefs:
    """The references of one array in a file."""

    __slots__ = ("_array", "_file", "_start", "count")

    def __init__(self, file: FlatbuffersManifestFile, array: DirectTable) -> None:
        self._file, self._array = file, array.position
        self._start, self.count = array.find_vector(_A.REFS, 4) or (0, 0)

    def find(self, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Search a reference; None if it is missing, duplicated, or not in order."""
        buffer = self._file.open_buffer()

        def get_ref(row: int) -> DirectTable:
            return buffer.get_table(self._start + 4 * row, "ChunkRef", row)

        def read(row: int) -> tuple[int, ...]:
            return read_index(get_ref(row), _R.INDEX)

        row = bisect_left(range(self.count), indices, key=read)
        if row == self.count or read(row) != indices:
            return None
        if row + 1 < self.count and read(row + 1) == indices:
            return None
        return self._file.read_payload(get_ref(row))

    def are_sorted(self) -> bool:
        """Whether the references are sorted and distinct."""
        buffer = self._file.open_columns()
        arrays = Tables(buffer, np.array([self._array], np.int64), "ArrayManifest")
        node_ids = arrays.read_structs(_A.NODE_ID)
        row_offsets, positions = arrays.find_children(_A.REFS, min_size=MIN_REF_SIZE)
        columns = read_indices(
            buffer, node_ids, row_offsets, positions, name="ChunkRef", field=_R.INDEX
        )
        return are_indices_sorted(columns)


def _read_checksum(ref: DirectTable) -> Checksum | None:
    etag = ref.read_string(_R.CHECKSUM_ETAG, required=False)
    if etag is not None:
        return ETag(etag)
    seconds = ref.read_scalar(_R.CHECKSUM_LAST_MODIFIED)
    return LastModified(seconds) if seconds else None
