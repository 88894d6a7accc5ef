"""Rows that tasks stage in the repository for the process that commits.

Staged rows are Arrow IPC streams in chunk files that no snapshot refers to. Only garbage collection
deletes them, because another attempt, or a commit whose response was lost, may need them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from icefloe.model.chunk_payload import ChunkRef
from icefloe.model.ids import ChunkId
from icefloe.spark.option_parsing import input_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from icefloe.session.connection import Connection

_MIN_FILE_BYTES: Final = 64 << 20
"""A staged file is written when at least this many bytes are pending, before compression."""

_MAX_BYTES: Final = 4 << 30
"""Maximum size of the staged rows, which the committing process holds in memory."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows that one task staged; ``size_bytes`` is their size before compression."""

    files: tuple[ChunkRef, ...]
    num_rows: int
    size_bytes: int


def stage_rows(connection: Connection, batches: Iterable[pa.RecordBatch]) -> StagedRows:
    """Write rows to chunk files that no snapshot refers to."""
    files: list[ChunkRef] = []
    pending: list[pa.RecordBatch] = []
    pending_bytes = written_bytes = num_rows = 0
    for batch in batches:
        if not len(batch):
            continue
        pending.append(batch)
        pending_bytes += batch.nbytes
        num_rows += len(batch)
        if pending_bytes >= _MIN_FILE_BYTES:
            files.append(_write_file(connection, pending))
            written_bytes += pending_bytes
            pending, pending_bytes = [], 0
    if pending:
        files.append(_write_file(connection, pending))
    return StagedRows(tuple(files), num_rows, written_bytes + pending_bytes)


def fetch_rows(connection: Connection, staged: Sequence[StagedRows]) -> pa.Table:
    """Read staged rows; ``staged`` must have at least one row."""
    assets = connection.assets
    refs = [file for part in staged for file in part.files]
    files = assets.run_concurrently(assets.chunks.fetch, refs)
    return pa.concat_tables([pa.ipc.open_stream(pa.py_buffer(data)).read_all() for data in files])


def require_fits_in_memory(staged: Sequence[StagedRows]) -> None:
    """Raise if staged rows are too large for the process that commits."""
    size_bytes = sum(part.size_bytes for part in staged)
    if size_bytes > _MAX_BYTES:
        raise input_error(
            f"the staged rows take {size_bytes:,} bytes, more than the limit of {_MAX_BYTES:,} for "
            "the process that commits; nothing was committed. Use icefloe.spark.write(df, …), "
            "which shuffles rows to the tasks that write their chunks; or set the option 'coords' "
            "or 'replaceWhere' and repartition by chunk: a task that has all rows of a chunk "
            "writes it directly"
        )


def _write_file(connection: Connection, batches: list[pa.RecordBatch]) -> ChunkRef:
    sink = pa.BufferOutputStream()
    settings = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batches[0].schema, options=settings) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data = sink.getvalue()
    chunk_id = connection.generation.make_id(ChunkId)
    connection.assets.write_chunk(chunk_id, memoryview(data))
    return ChunkRef(chunk_id, 0, data.size)
