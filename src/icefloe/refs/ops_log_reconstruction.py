"""Reconstructs an ops log from branches, tags and history, as Icechunk's upgrade does. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from icefloe.model.repo_info import (
    BranchCreated,
    NewCommit,
    OpsLogEntry,
    RepoInitialized,
    TagCreated,
    TagDeleted,
)
from icefloe.refs.history import walk_history
from icefloe.refs.names import MAIN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import UpdateType
    from icefloe.model.snapshot import SnapshotInfo

# Assumed delay of the creation of a branch or tag after its snapshot, and of the deletion of a tag.
_REF_DELAY = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)


def reconstruct_ops_log(
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    deleted_tag_targets: Mapping[str, SnapshotId],
    infos: Mapping[SnapshotId, SnapshotInfo],
) -> list[OpsLogEntry]:
    """Reconstruct the ops log, oldest first.

    A commit has the time of its snapshot. The creation time of a branch or tag is unknown, and set
    to right after the snapshot that it points at; so the commits of a branch precede its creation
    in the log.
    """
    *_, root = walk_history(branches[MAIN], infos.__getitem__)
    events: list[tuple[datetime, UpdateType]] = [(root.flushed_at, RepoInitialized())]
    logged = {root.id}
    other_branches = [branch for branch in sorted(branches) if branch != MAIN]
    for branch in (MAIN, *other_branches):
        history = list(walk_history(branches[branch], infos.__getitem__))
        if branch != MAIN:
            events.append((history[0].flushed_at + _REF_DELAY, BranchCreated(branch)))
        for info in reversed(history):
            if info.id not in logged:
                logged.add(info.id)
                events.append((info.flushed_at, NewCommit(branch, info.id)))

    def get_time(snapshot_id: SnapshotId) -> datetime:
        return infos[snapshot_id].flushed_at if snapshot_id in infos else root.flushed_at

    for tag, target in sorted(tags.items()):
        events.append((get_time(target) + _REF_DELAY, TagCreated(tag)))
    for tag, target in sorted(deleted_tag_targets.items()):
        events.append((get_time(target) + _REF_DELAY, TagCreated(tag)))
        events.append((get_time(target) + 2 * _REF_DELAY, TagDeleted(tag, target)))
    updates: list[OpsLogEntry] = []
    for time, kind in sorted(events, key=lambda event: event[0]):
        # Times in the log must ascend.
        earliest = updates[-1].updated_at + _MICROSECOND if updates else time
        updates.append(OpsLogEntry(kind, max(time, earliest)))
    return updates
