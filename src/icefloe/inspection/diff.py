"""Fetches the transaction logs between two snapshots and computes the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.transaction.commit_log import fetch_commit_log
from icefloe.transaction.diff import diff_across_history, diff_along_history

if TYPE_CHECKING:
    from icefloe.assets import Assets
    from icefloe.model.ids import SnapshotId
    from icefloe.refs.interface import Refs
    from icefloe.snapshots import Diff


def fetch_diff(refs: Refs, assets: Assets, before: SnapshotId, after: SnapshotId) -> Diff:
    """Compute the changes from one snapshot to another.

    Reads the logs of both snapshots back to their latest common ancestor.
    """
    before_commits, after_commits = [], []  # since the common ancestor, newest first
    history = {info.id: info for info in refs.fetch_ancestry(before)}
    for info in refs.fetch_ancestry(after):
        if info.id in history:
            common_id = info.id
            break
        after_commits.append(info)
    else:
        raise InvalidInputError(
            f"snapshots {before} and {after} have no common ancestor",
            kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    for info in history.values():
        if info.id == common_id:
            break
        before_commits.append(info)
    log_ids = [
        (log_id, commit.parent_id)
        for commit in (*reversed(after_commits), *before_commits)
        for log_id in (*commit.pruned_ancestor_tx_logs, commit.id)
    ]
    logs = assets.run_concurrently(lambda ids: fetch_commit_log(assets, *ids), log_ids)
    compute_diff = diff_across_history if before_commits else diff_along_history
    return compute_diff(logs, assets.require_tree(before).by_id, assets.require_tree(after).by_id)
