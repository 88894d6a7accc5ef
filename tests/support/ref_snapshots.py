"""Makes snapshots without nodes, for tests that are about history alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.ids import SnapshotId
from icefloe.model.snapshot import Snapshot, SnapshotInfo
from icefloe.model.transaction_log import TransactionLog

if TYPE_CHECKING:
    from icefloe.format.generation import Generation
    from icefloe.model.ids import NodeId
    from icefloe.storage import Storage


def write_snapshot(
    storage: Storage, generation: Generation, parent: SnapshotId, message: str
) -> SnapshotInfo:
    """Write the files of an empty commit on ``parent``, which no branch shows yet."""
    none: frozenset[NodeId] = frozenset()
    assets = Assets(storage, generation)
    snapshot_id = generation.make_id(SnapshotId)
    snapshot = Snapshot(snapshot_id, parent, datetime.now(UTC), message, {}, (), ())
    if generation.has_transaction_logs:
        chunks = ChunkIndexColumns.of({})
        log = TransactionLog(snapshot_id, none, none, none, none, none, none, chunks)
        assets.write_transaction_log(log)
    assets.write_snapshot(snapshot)
    return snapshot.get_info()
