"""Makes snapshots without nodes, for tests that are about history alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.format.generation import find_generation
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.ids import NodeId, SnapshotId
from icefloe.model.snapshot import Snapshot, SnapshotInfo
from icefloe.model.transaction_log import TransactionLog

if TYPE_CHECKING:
    from icefloe.storage import Storage


def write_snapshot(
    storage: Storage, spec_version: int, parent: SnapshotId, message: str
) -> SnapshotInfo:
    """Write the files of an empty commit on ``parent``, which no branch shows yet."""
    none: frozenset[NodeId] = frozenset()
    assets = Assets(storage, find_generation(spec_version))
    snapshot = Snapshot(SnapshotId.random(), parent, datetime.now(UTC), message, {}, (), ())
    assets.write_transaction_log(
        TransactionLog(snapshot.id, none, none, none, none, none, none, ChunkIndexColumns.of({}))
    )
    assets.write_snapshot(snapshot)
    return snapshot.get_info()
