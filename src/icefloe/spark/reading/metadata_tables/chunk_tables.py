"""Metadata tables of chunk references, from manifests: ``chunks`` and ``files``.

Values are computed from the columns of manifests, vectorized. ``chunks`` distributes manifests
over tasks. ``files`` reads all manifests in one task, because any of them may refer to a file; its
memory grows with the number of files, not of references.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from icefloe.model.arrow import to_dictionary_array
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.ids import ManifestId
from icefloe.session import contents
from icefloe.spark.reading.metadata_tables.table import (
    BATCH_ROWS,
    INT,
    INTS,
    TEXT,
    TIMESTAMP,
    Column,
    MetadataTable,
)
from icefloe.spark.reading.partitions import pack_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.model.manifest import ChunkPayloads
    from icefloe.spark.reading.metadata_tables.table import Partition
    from icefloe.spark.reading.read_options import ReadOptions
    from icefloe.spark.reading.snapshot_source import SnapshotSource


# -- chunks: chunk references


_REFS_PER_TASK: Final = 1_000_000
"""Enough work for a task, while its manifests fit into memory."""

_KINDS: Final = pa.array([kind.name.lower() for kind in ChunkKind])


class _Refs(NamedTuple):
    """References of one array in one manifest."""

    path: str
    manifest_id: str
    coords: NDArray[np.uint32]
    payloads: ChunkPayloads


def _repeat(text: str, refs: _Refs) -> pa.Array:
    return pa.repeat(text, len(refs.coords))


def _make_indices(refs: _Refs) -> pa.Array:
    count, ndim = refs.coords.shape
    return pa.ListArray.from_arrays(
        pa.array(np.arange(count + 1, dtype=np.int32) * ndim),
        pa.array(refs.coords.reshape(-1).astype(np.int64)),
    )


def _get_kinds(refs: _Refs) -> pa.Array:
    return _KINDS.take(pa.array(refs.payloads.kind.astype(np.int64) - min(ChunkKind)))


def _format_chunk_ids(refs: _Refs) -> pa.Array:
    return _format_ids(refs.payloads.chunk_id, refs.payloads.kind == ChunkKind.NATIVE)


def _get_offsets(refs: _Refs) -> pa.Array:
    # The offset of inline bytes within a manifest is an implementation detail.
    is_inline = refs.payloads.kind == ChunkKind.INLINE
    return pa.array(refs.payloads.offset.astype(np.int64), mask=is_inline)


class _ChunksTable(MetadataTable[_Refs]):
    def partitions(self, source: SnapshotSource) -> list[Partition]:
        """Distribute the manifests of the snapshot by their number of references."""
        files = contents.get_base_snapshot(source.open_session()).manifest_files
        manifests = ((str(info.id), info.num_chunk_refs) for info in files)
        return pack_tasks(manifests, _REFS_PER_TASK, min_size=0)

    def read(
        self, source: SnapshotSource, options: ReadOptions, partition: Partition
    ) -> Iterator[pa.RecordBatch]:
        del options
        manifest_ids = map(ManifestId.parse, partition)
        session = source.open_session()
        for manifest_id, node, refs in contents.fetch_chunk_refs_in_manifests(
            session, manifest_ids
        ):
            for first in range(0, len(refs), BATCH_ROWS):
                rows = slice(first, first + BATCH_ROWS)
                batch = _Refs(
                    node.path.value,
                    str(manifest_id),
                    refs.coords[rows],
                    refs.payloads.select_rows(rows),
                )
                arrays = [column.value(batch) for column in self.columns]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


CHUNKS: Final = _ChunksTable(
    Column("path", TEXT, lambda refs: _repeat(refs.path, refs)),
    Column("chunk", INTS, _make_indices),
    Column("type", TEXT, _get_kinds),
    Column("chunk_id", TEXT, _format_chunk_ids),
    Column(
        "location",
        TEXT,
        lambda refs: _to_texts(refs.payloads.location_codes, refs.payloads.locations),
    ),
    Column("offset", INT, _get_offsets),
    Column("length", INT, lambda refs: pa.array(refs.payloads.length.astype(np.int64))),
    Column("etag", TEXT, lambda refs: _to_texts(refs.payloads.etag_codes, refs.payloads.etags)),
    Column("last_modified", TIMESTAMP, lambda refs: _to_times(refs.payloads.last_modified)),
    Column("manifest_id", TEXT, lambda refs: _repeat(refs.manifest_id, refs)),
)


# -- files: files that virtual chunks refer to


_TOTALS: Final = {"num_chunks": "sum", "total_bytes": "sum", "etag": "max", "last_modified": "max"}
"""Aggregates of the rows of one file; if checksums differ, the largest is kept."""


class _VirtualRefs(NamedTuple):
    """Virtual references by file: reference ``i`` has the location ``locations[file[i]]``."""

    payloads: ChunkPayloads
    locations: NDArray[np.int32]
    first: NDArray[np.int64]
    file: NDArray[np.int64]

    @classmethod
    def group(cls, payloads: ChunkPayloads) -> _VirtualRefs:
        locations, first = np.unique(payloads.location_codes, return_index=True)
        return cls(payloads, locations, first, np.searchsorted(locations, payloads.location_codes))


def _count_chunks(refs: _VirtualRefs) -> pa.Array:
    return pa.array(np.bincount(refs.file, minlength=len(refs.locations)).astype(np.int64))


def _sum_bytes(refs: _VirtualRefs) -> pa.Array:
    totals = np.zeros(len(refs.locations), np.int64)
    np.add.at(totals, refs.file, refs.payloads.length.astype(np.int64))
    return pa.array(totals)


class _FilesTable(MetadataTable[_VirtualRefs]):
    def read(
        self, source: SnapshotSource, options: ReadOptions, partition: Partition
    ) -> Iterator[pa.RecordBatch]:
        del options, partition
        session = source.open_session()
        parts = [self.schema.empty_table()]
        num_pending = 0
        manifest_ids = [info.id for info in contents.get_base_snapshot(session).manifest_files]
        for _manifest_id, _node, refs in contents.fetch_chunk_refs_in_manifests(
            session, manifest_ids
        ):
            virtual_rows = np.flatnonzero(refs.payloads.kind == ChunkKind.VIRTUAL)
            if len(virtual_rows):
                grouped = _VirtualRefs.group(refs.payloads.select_rows(virtual_rows))
                arrays = [column.value(grouped) for column in self.columns]
                parts.append(pa.table(arrays, schema=self.schema))
                num_pending += len(parts[-1])
            # Amortized: each row is merged a few times, not once per manifest.
            if num_pending > max(BATCH_ROWS, len(parts[0])):
                parts, num_pending = [self._merge(pa.concat_tables(parts))], 0
        totals = self._merge(pa.concat_tables(parts))
        for batch in totals.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def _merge(self, rows: pa.Table) -> pa.Table:
        """Merge the rows of each file."""
        totals = rows.group_by("location").aggregate(list(_TOTALS.items()))
        totals = totals.select(["location", *("_".join(item) for item in _TOTALS.items())])
        return totals.rename_columns(self.schema.names).cast(self.schema)


FILES: Final = _FilesTable(
    Column("location", TEXT, lambda refs: _to_texts(refs.locations, refs.payloads.locations)),
    Column("num_chunks", INT, _count_chunks),
    Column("total_bytes", INT, _sum_bytes),
    Column(
        "etag",
        TEXT,
        lambda refs: _to_texts(refs.payloads.etag_codes[refs.first], refs.payloads.etags),
    ),
    Column(
        "last_modified", TIMESTAMP, lambda refs: _to_times(refs.payloads.last_modified[refs.first])
    ),
)


# -- columns of chunk payloads as Arrow arrays


_DIGITS: Final = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)


def _to_texts(codes: NDArray[np.int32], table: Any) -> pa.Array:
    if not len(table):
        return pa.nulls(len(codes), pa.string())
    return to_dictionary_array(codes, table).dictionary_decode().cast(pa.string())


def _to_times(seconds: NDArray[np.uint32]) -> pa.Array:
    return pa.array(seconds.astype(np.int64) * 1_000_000, TIMESTAMP, mask=seconds == 0)


def _format_ids(ids: NDArray[np.uint8], is_valid: NDArray[np.bool_]) -> pa.Array:
    """Format ids in Crockford base 32, vectorized; null where ``is_valid`` is False."""
    count = len(ids)
    if not is_valid.any():
        return pa.nulls(count, pa.string())
    bits = np.unpackbits(np.ascontiguousarray(ids), axis=1)
    length = -(-bits.shape[1] // 5)
    bits = np.pad(bits, ((0, 0), (0, length * 5 - bits.shape[1])))
    digits = bits.reshape(count, length, 5) @ np.array([16, 8, 4, 2, 1], np.uint8)
    text = np.ascontiguousarray(_DIGITS[digits])
    validity = np.packbits(is_valid, bitorder="little")
    offsets = np.arange(count + 1, dtype=np.int32) * length
    buffers = [pa.py_buffer(buffer) for buffer in (validity, offsets, text)]
    return pa.Array.from_buffers(pa.string(), count, buffers)
