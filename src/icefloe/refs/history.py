"""Traversal of history, from a snapshot through its parents to the first snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo


def walk_history(
    start: SnapshotId, get_info: Callable[[SnapshotId], SnapshotInfo]
) -> Iterator[SnapshotInfo]:
    """Yield a snapshot and its ancestors, newest first; raise `FormatError` on a cycle."""
    seen = set()
    current: SnapshotId | None = start
    while current is not None:
        if current in seen:
            raise FormatError("the snapshot is its own ancestor", file=f"snapshot {current}")
        seen.add(current)
        info = get_info(current)
        yield info
        current = info.parent_id


def collect_reachable(
    tips: Iterable[SnapshotId], walk: Callable[[SnapshotId], Iterator[SnapshotInfo]]
) -> dict[SnapshotId, SnapshotInfo]:
    """Return the snapshots in the histories of ``tips``; no snapshot is visited twice."""
    reachable: dict[SnapshotId, SnapshotInfo] = {}
    for tip in tips:
        for info in walk(tip):
            if info.id in reachable:
                break
            reachable[info.id] = info
    return reachable
