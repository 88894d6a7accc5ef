"""The changes of commits: transaction logs, or comparisons of snapshots with their parents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.transaction.snapshot_comparison import compare_many

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.assets import Assets
    from icefloe.model.ids import SnapshotId
    from icefloe.model.transaction_log import TransactionLog

# Pairs of snapshots that are in memory at the same time.
_MAX_PAIRS = 8


def fetch_commit_logs(
    assets: Assets, commits: Iterable[tuple[SnapshotId, SnapshotId | None]]
) -> list[TransactionLog]:
    """Fetch the changes of commits, each given by its snapshot and the parent of that.

    Generations without transaction logs compare both snapshots, which reads the manifests that only
    one of them has. Requests are concurrent, so this must not be called from
    `Assets.run_concurrently`, whose threads would wait for each other.
    """
    pairs = list(commits)
    if assets.generation.has_transaction_logs:
        return assets.run_concurrently(assets.fetch_transaction_log, [id_ for id_, _ in pairs])
    logs: list[TransactionLog] = []
    for start in range(0, len(pairs), _MAX_PAIRS):
        logs += _compare(assets, pairs[start : start + _MAX_PAIRS])
    return logs


def _compare(
    assets: Assets, pairs: list[tuple[SnapshotId, SnapshotId | None]]
) -> list[TransactionLog]:
    """Compare snapshots with their parents, except those whose comparison is cached."""
    logs = {pair: log for pair in pairs if (log := assets.find_comparison(*pair)) is not None}
    missing = [pair for pair in dict.fromkeys(pairs) if pair not in logs]
    ids = list(dict.fromkeys(id_ for pair in missing for id_ in pair if id_ is not None))
    trees = dict(zip(ids, assets.run_concurrently(assets.fetch_tree, ids), strict=True))
    compared = compare_many(
        [(None if parent is None else trees[parent], trees[id_]) for id_, parent in missing], assets
    )
    for pair, log in zip(missing, compared, strict=True):
        assets.cache_comparison(*pair, log)
        logs[pair] = log
    return [logs[pair] for pair in pairs]
