"""The difference between two snapshots, from the transaction logs between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.transaction.diff import diff_across_history, diff_along_history

if TYPE_CHECKING:
    from icefloe.assets import Assets
    from icefloe.model.ids import SnapshotId
    from icefloe.refs.interface import Refs
    from icefloe.snapshots import Diff


def fetch_diff(refs: Refs, assets: Assets, before: SnapshotId, after: SnapshotId) -> Diff:
    """Compute the changes from one snapshot to another, through their latest common ancestor."""
    newer, older = [], []
    ancestors = {info.id: info for info in refs.fetch_ancestry(before)}
    for info in refs.fetch_ancestry(after):
        if info.id in ancestors:
            break
        newer.append(info)
    else:
        raise InvalidInputError(
            f"snapshots {before} and {after} have no common ancestor",
            kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    for ancestor in ancestors.values():
        if ancestor.id == info.id:
            break
        older.append(ancestor)
    ids = [
        log_id
        for commit in (*reversed(newer), *older)
        for log_id in (*commit.pruned_ancestor_tx_logs, commit.id)
    ]
    logs = assets.run_concurrently(assets.fetch_transaction_log, ids)
    nodes = assets.require_tree(before).by_id, assets.require_tree(after).by_id
    return (diff_across_history if older else diff_along_history)(logs, *nodes)
