"""Storage statistics: the size of all distinct chunks of a repository."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.maintenance.progress import ignore_progress
from icefloe.maintenance.repository_reader import RepositoryReader
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.manifest import ChunkPayloads
from icefloe.refs.opening import make_refs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from icefloe.format.generation import Generation
    from icefloe.maintenance.limits import ReadLimits
    from icefloe.maintenance.progress import Progress
    from icefloe.model.manifest import Manifest
    from icefloe.storage.interface import Storage

_MIN_MERGE_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class ChunkStorageStats:
    """Bytes of native, virtual and inline chunks."""

    native_bytes: int = 0
    virtual_bytes: int = 0
    inlined_bytes: int = 0

    def non_virtual_bytes(self) -> int:
        """Return the number of bytes inside the repository."""
        return self.native_bytes + self.inlined_bytes

    def total_bytes(self) -> int:
        """Return the number of bytes of all chunks."""
        return self.native_bytes + self.virtual_bytes + self.inlined_bytes

    def __add__(self, other: ChunkStorageStats) -> ChunkStorageStats:
        if not isinstance(other, ChunkStorageStats):
            return NotImplemented
        return ChunkStorageStats(
            self.native_bytes + other.native_bytes,
            self.virtual_bytes + other.virtual_bytes,
            self.inlined_bytes + other.inlined_bytes,
        )


def measure_chunks(
    storage: Storage,
    generation: Generation,
    *,
    limits: ReadLimits | None = None,
    progress: Progress = ignore_progress,
) -> ChunkStorageStats:
    """Sum the sizes of all chunks in the history of branches and tags.

    A byte range of a chunk file or virtual file counts once, even if it has several references. An
    inline chunk counts once for each manifest that stores it.
    """
    reader = RepositoryReader(storage, generation, limits, progress)
    infos = {}
    snapshot_ids = make_refs(storage, generation).fetch_live_snapshots()
    for files in reader.read_snapshots(snapshot_ids):
        infos.update({info.id: info for info in files.manifests})
    inlined_bytes = 0
    merged = ChunkPayloads.concatenate([])
    parts: list[ChunkPayloads] = []
    rows = 0
    for distinct, inline_bytes in reader.read_manifests(infos.values(), _summarize_manifest):
        inlined_bytes += inline_bytes
        parts.append(distinct)
        rows += len(distinct)
        # A merge copies all rows, so it waits for enough new ones.
        if rows > max(_MIN_MERGE_ROWS, len(merged)):
            merged, parts, rows = _find_distinct([merged, *parts]), [], 0
    merged = _find_distinct([merged, *parts])
    is_native = merged.kind == ChunkKind.NATIVE
    return ChunkStorageStats(
        int(merged.length[is_native].sum()), int(merged.length[~is_native].sum()), inlined_bytes
    )


def _summarize_manifest(manifest: Manifest) -> tuple[ChunkPayloads, int]:
    payloads = manifest.payloads
    is_inline = payloads.kind == ChunkKind.INLINE
    inline_bytes = int(payloads.length[is_inline].sum())
    rows = payloads.select_rows(np.flatnonzero(~is_inline))
    # Only the byte ranges are needed; other columns would take memory.
    ranges = replace(
        rows,
        etag_codes=np.full(len(rows), -1, np.int32),
        etags=ChunkPayloads.of([]).etags,
        last_modified=np.zeros(len(rows), np.uint32),
        inline=np.zeros(0, np.uint8),
    )
    return _find_distinct([ranges]), inline_bytes


def _find_distinct(parts: Iterable[ChunkPayloads]) -> ChunkPayloads:
    """Return one row for each byte range of each file."""
    payloads = ChunkPayloads.concatenate(list(parts))
    ids = np.ascontiguousarray(payloads.chunk_id)
    columns: tuple[NDArray[np.generic], ...] = (
        payloads.length,
        payloads.offset,
        payloads.location_codes,
        *(
            ids[:, start : start + 4].copy().view("<u4")[:, 0]
            for start in range(0, ids.shape[1], 4)
        ),
        payloads.kind,
    )
    order = np.lexsort(columns)
    is_first = np.ones(len(order), bool)
    is_first[1:] = False
    for column in columns:
        ordered = column[order]
        is_first[1:] |= ordered[1:] != ordered[:-1]
    return payloads.select_rows(order[is_first])
