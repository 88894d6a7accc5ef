"""Differences between snapshots: computed from transaction logs, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.transaction.commit_log import fetch_commit_logs
from icefloe.transaction.diff import diff_across_history, diff_along_history
from icefloe.transaction.node_numbers import mark_branch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.assets import Assets
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.refs.interface import Refs
    from icefloe.snapshots import Diff


_PATHS: Final = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_groups",
    "updated_arrays",
)


def fetch_diff(refs: Refs, assets: Assets, before: SnapshotId, after: SnapshotId) -> Diff:
    """Compute the changes from one snapshot to another.

    Reads the logs of both snapshots back to their latest common ancestor. From a snapshot to a
    descendant, nothing older than the first is read.
    """
    before_commits: list[SnapshotInfo] = []
    after_commits: list[SnapshotInfo] = []  # both since the common ancestor, newest first
    common_id = before
    for info in refs.fetch_ancestry(after):
        if info.id == before:
            break
        after_commits.append(info)
    else:
        positions = {info.id: position for position, info in enumerate(after_commits)}
        for info in refs.fetch_ancestry(before):
            if info.id in positions:
                common_id = info.id
                del after_commits[positions[common_id] :]
                break
            before_commits.append(info)
        else:
            raise InvalidInputError(
                f"snapshots {before} and {after} have no common ancestor",
                kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
            )
    after_ids, before_ids = _list_logs(reversed(after_commits)), _list_logs(before_commits)
    logs = fetch_commit_logs(assets, [*after_ids, *before_ids])
    trees = assets.run_concurrently(assets.require_tree, [before, after])
    before_nodes, after_nodes = (tree.by_id for tree in trees)
    if not before_commits:
        return diff_along_history(logs, before_nodes, after_nodes)
    after_logs, before_logs = logs[: len(after_ids)], logs[len(after_ids) :]
    if assets.generation.numbers_nodes:
        # From here on, both branches gave the same numbers to different nodes.
        first = assets.fetch_snapshot(common_id).next_node_number
        before_logs, before_nodes = mark_branch(before_logs, before_nodes, first)
    return diff_across_history((*after_logs, *before_logs), before_nodes, after_nodes)


def describe_diff(diff: Diff) -> dict[str, Any]:
    """Describe changes for JSON: sorted paths, chunk indices by array, and moves."""
    moves = [{"from": before, "to": after} for before, after in diff.moved_nodes]
    paths = {name: sorted(getattr(diff, name)) for name in _PATHS}
    return {**paths, "updated_chunks": diff.updated_chunks, "moved_nodes": moves}


def count_changes(diff: Diff) -> dict[str, int]:
    """Count what `describe_diff` lists."""
    counts = {name: len(getattr(diff, name)) for name in _PATHS}
    counts["updated_chunks"] = sum(map(len, diff.updated_chunks.values()))
    return counts | {"moved_nodes": len(diff.moved_nodes)}


def _list_logs(
    commits: Iterable[SnapshotInfo],
) -> list[tuple[SnapshotId, SnapshotId | None]]:
    """Return the ids of the logs of commits, each with the parent of its commit."""
    return [
        (log_id, commit.parent_id)
        for commit in commits
        for log_id in (*commit.pruned_ancestor_tx_logs, commit.id)
    ]
