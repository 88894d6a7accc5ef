"""The changes of a commit: its transaction log, or a comparison of its snapshot with the parent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.transaction.snapshot_comparison import compare_snapshots

if TYPE_CHECKING:
    from icefloe.assets import Assets
    from icefloe.model.ids import SnapshotId
    from icefloe.model.transaction_log import TransactionLog


def fetch_commit_log(
    assets: Assets, snapshot_id: SnapshotId, parent_id: SnapshotId | None
) -> TransactionLog:
    """Fetch the changes of a commit relative to its parent.

    Generations without transaction logs compare both snapshots, which reads the manifests that only
    one of them has.
    """
    if assets.generation.has_transaction_logs:
        return assets.fetch_transaction_log(snapshot_id)
    after = assets.fetch_tree(snapshot_id)
    before = None if parent_id is None else assets.fetch_tree(parent_id)
    return compare_snapshots(before, after, assets)
