"""Makes snapshots without nodes, for tests that are about history alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.ids import NodeId, SnapshotId
from icefloe.model.snapshot import MAX_RECENT_ANCESTORS, Snapshot, SnapshotInfo
from icefloe.model.transaction_log import TransactionLog

if TYPE_CHECKING:
    from icefloe.format.generation import Generation
    from icefloe.storage import Storage


def write_snapshot(
    storage: Storage, generation: Generation, parent: SnapshotId, message: str
) -> SnapshotInfo:
    """Write the files of an empty commit on ``parent``, which no branch shows yet."""
    assets = Assets(storage, generation)
    snapshot_id = generation.make_id(SnapshotId)
    snapshot = Snapshot(snapshot_id, parent, datetime.now(UTC), message, {}, (), ())
    if generation.records_ancestors:
        base = assets.fetch_snapshot(parent)
        ancestors = (base.get_info(), *base.recent_ancestors)[:MAX_RECENT_ANCESTORS]
        snapshot = replace(
            snapshot, recent_ancestors=ancestors, num_ancestors=base.num_ancestors + 1
        )
    if generation.has_transaction_logs:
        none: frozenset[NodeId] = frozenset()
        no_chunks = ChunkIndexColumns.of({})
        assets.write_transaction_log(
            TransactionLog(snapshot.id, none, none, none, none, none, none, no_chunks)
        )
    assets.write_snapshot(snapshot)
    return snapshot.get_info()
