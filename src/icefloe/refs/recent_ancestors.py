"""Reads history from snapshots that list their recent ancestors: one read for many commits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot, SnapshotInfo


class AncestorReader:
    """Fetches the history entries of a snapshot and its ancestors, for one walk.

    Parameters
    ----------
    fetch_snapshot
        Fetches a snapshot file.
    parents
        Parents that replace those in snapshot files.
    """

    def __init__(
        self,
        fetch_snapshot: Callable[[SnapshotId], Snapshot],
        parents: Mapping[SnapshotId, SnapshotId],
    ) -> None:
        self._fetch_snapshot = fetch_snapshot
        self._parents = parents
        # The entries of one snapshot file.
        self._recent: dict[SnapshotId, SnapshotInfo] = {}

    def fetch_info(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Fetch an entry; no request if the snapshot file that was read last lists it."""
        info = self._recent.get(snapshot_id)
        if info is None:
            snapshot = self._fetch_snapshot(snapshot_id)
            info = snapshot.get_info()
            self._recent = {entry.id: entry for entry in _find_complete_entries(snapshot)}
        return replace_parent(info, self._parents)


def replace_parent(info: SnapshotInfo, parents: Mapping[SnapshotId, SnapshotId]) -> SnapshotInfo:
    """Return a history entry with its parent according to ``parents``."""
    parent_id = parents.get(info.id, info.parent_id)
    return info if parent_id == info.parent_id else replace(info, parent_id=parent_id)


def _find_complete_entries(snapshot: Snapshot) -> Iterator[SnapshotInfo]:
    """Yield the recent ancestors whose parent is known: each is the child of the next one."""
    recent = snapshot.recent_ancestors
    for entry, parent in pairwise(recent):
        yield replace(entry, parent_id=parent.id)
    if recent and recent[-1].parent_id is not None:
        yield recent[-1]
    elif recent and len(recent) == snapshot.num_ancestors:
        yield recent[-1]  # the first snapshot
