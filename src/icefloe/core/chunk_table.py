"""Chunk references of an array as Arrow record batches; vectorized, without one object per chunk.

`IcechunkStore.set_virtual_refs_table` accepts the virtual rows of such a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.model.arrow import load_pyarrow, to_dictionary_array
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.columns import to_offsets
from icefloe.model.id_columns import format_digits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.format.generation import FileKind
    from icefloe.model.manifest import ArrayManifest, ChunkPayloads

BATCH_ROWS: Final = 65_536
"""The maximum number of rows of a batch; the strings of a batch stay far below 2 GiB."""


def build_chunk_schema() -> Any:
    """Return the Arrow schema of chunk references."""
    pa = load_pyarrow()
    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            pa.field("index", pa.list_(pa.uint32()), nullable=False),
            pa.field("kind", text, nullable=False),
            pa.field("chunk_id", pa.string()),
            pa.field("key", pa.string()),
            pa.field("location", text),
            pa.field("offset", pa.uint64()),
            pa.field("length", pa.uint64(), nullable=False),
            pa.field("etag", text),
            pa.field("last_modified", pa.timestamp("s", tz="UTC")),
            pa.field("inline", pa.large_binary()),
        ]
    )


def iter_record_batches(refs: ArrayManifest, chunk_files: FileKind) -> Iterator[Any]:
    """Yield chunk references as record batches; ``chunk_files`` are the keys of native chunks."""
    for begin in range(0, len(refs), BATCH_ROWS):
        rows = slice(begin, begin + BATCH_ROWS)
        yield _build_batch(refs.coords[rows], refs.payloads.select_rows(rows), chunk_files)


def _build_batch(coords: NDArray[np.uint32], payloads: ChunkPayloads, chunk_files: FileKind) -> Any:
    pa = load_pyarrow()
    count, ndim = coords.shape
    is_native = payloads.kind == ChunkKind.NATIVE
    is_inline = payloads.kind == ChunkKind.INLINE
    seconds = payloads.last_modified
    columns = [
        pa.ListArray.from_arrays(
            pa.array(np.arange(count + 1, dtype=np.int32) * ndim),
            pa.array(np.ascontiguousarray(coords).reshape(-1)),
        ),
        pa.DictionaryArray.from_arrays(
            pa.array(payloads.kind.astype(np.int32) - min(ChunkKind)),
            pa.array([kind.name.lower() for kind in ChunkKind]),
        ),
        _format_ids(payloads.chunk_id, is_native, "", ""),
        _format_ids(payloads.chunk_id, is_native, chunk_files.prefix, chunk_files.suffix),
        to_dictionary_array(payloads.location_codes, payloads.locations),
        # The offset of inline bytes in the column of a manifest has no meaning outside of it.
        pa.array(payloads.offset, mask=is_inline),
        pa.array(payloads.length),
        to_dictionary_array(payloads.etag_codes, payloads.etags),
        pa.array(seconds.astype(np.int64), mask=seconds == 0).cast(pa.timestamp("s", tz="UTC")),
        _gather_inline(payloads, is_inline),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=build_chunk_schema())


def _format_ids(
    ids: NDArray[np.uint8], is_native: NDArray[np.bool_], prefix: str, suffix: str
) -> Any:
    """Return the text of ids between a prefix and a suffix, null where there is no id."""
    digits = format_digits(ids[is_native])
    parts = [
        np.broadcast_to(np.frombuffer(text.encode(), np.uint8), (len(digits), len(text)))
        for text in (prefix, suffix)
    ]
    data = np.concatenate([parts[0], digits, parts[1]], axis=1)
    offsets = to_offsets(np.where(is_native, data.shape[1], 0)).astype(np.int32)
    pa = load_pyarrow()
    buffers = [pa.py_buffer(np.packbits(is_native, bitorder="little")), pa.py_buffer(offsets)]
    return pa.StringArray.from_buffers(
        len(ids), buffers[1], pa.py_buffer(np.ascontiguousarray(data)), buffers[0]
    )


def _gather_inline(payloads: ChunkPayloads, is_inline: NDArray[np.bool_]) -> Any:
    """Return the bytes of inline chunks, null for other chunks."""
    sizes = np.where(is_inline, payloads.length, 0).astype(np.int64)
    ends = np.cumsum(sizes)
    starts = np.where(is_inline, payloads.offset, 0).astype(np.int64)
    source = np.arange(int(sizes.sum())) + np.repeat(starts - (ends - sizes), sizes)
    pa = load_pyarrow()
    buffers = [
        pa.py_buffer(np.packbits(is_inline, bitorder="little")),
        pa.py_buffer(to_offsets(sizes)),
        pa.py_buffer(payloads.inline[source]),
    ]
    return pa.Array.from_buffers(pa.large_binary(), len(sizes), buffers)
