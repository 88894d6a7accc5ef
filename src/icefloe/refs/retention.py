"""Expiration and collection of snapshots, and the new parents of their descendants. Pure.

Expiration removes old snapshots from history; collection removes unreachable ones, so that their
files can be deleted. In generation v2 both are changes of ``repo``. In generation v1 snapshot files
record their own parents, and a plan says which of them are rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from icefloe.errors import ConflictError, ErrorKind
from icefloe.model.repo_info import GCRan
from icefloe.refs.history import collect_reachable, walk_history
from icefloe.refs.problems import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import RepoInfo
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.refs.changes import Changed

    Infos = Mapping[SnapshotId, SnapshotInfo]


@dataclass(frozen=True, slots=True)
class ExpirationPolicy:
    """The age limit, and whether branches and tags of expired snapshots are deleted.

    The branch main is never deleted, nor is a branch or tag at the first snapshot.
    """

    older_than: datetime
    delete_expired_branches: bool = False
    delete_expired_tags: bool = False

    def expires(self, info: SnapshotInfo) -> bool:
        """Whether a snapshot is too old; the first snapshot of a repository never is."""
        return info.flushed_at < self.older_than and info.parent_id is not None


@dataclass(frozen=True, slots=True)
class RefFilesExpiration:
    """Plan of an expiration in generation v1: new parents, and branches and tags to delete.

    ``released`` are the expired snapshots, as Icechunk counts them: tips stay in place, and so do
    snapshots in the history of other branches and tags.
    """

    released: frozenset[SnapshotId]
    new_parents: Mapping[SnapshotId, SnapshotId]
    branches: tuple[str, ...]
    tags: tuple[str, ...]


def plan_ref_files_expiration(
    infos: Infos,
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    policy: ExpirationPolicy,
) -> RefFilesExpiration:
    """Plan an expiration in generation v1: history is cut once for each branch and tag.

    The oldest snapshot that does not expire, or the tip if all do, becomes a child of the first
    snapshot. ``infos`` must hold the whole history of all branches and tags.
    """
    current = dict(infos)
    deleted_branches, deleted_tags = _find_expired(branches, tags, infos, policy)
    released: set[SnapshotId] = set()
    new_parents = {}
    for refs, deleted in (tags, deleted_tags), (branches, deleted_branches):
        for name in sorted(refs):
            *line, root = walk_history(refs[name], current.__getitem__)
            kept = [place for place, info in enumerate(line) if not policy.expires(info)]
            place = kept[-1] if kept else 0
            if len(line) < place + 2:
                continue  # the first snapshot, or a child of it
            released.update(info.id for info in line[place:] if policy.expires(info))
            # A snapshot of a deleted ref is not rewritten: its new file would be too young to
            # collect.
            if name not in deleted:
                child = line[place]
                new_parents[child.id] = root.id
                current[child.id] = replace(child, parent_id=root.id)
    return RefFilesExpiration(frozenset(released), new_parents, deleted_branches, deleted_tags)


def plan_expiration(
    info: RepoInfo, policy: ExpirationPolicy
) -> tuple[frozenset[SnapshotId], RepoInfo]:
    """Plan an expiration in generation v2; return the released snapshots and the new state.

    Every expired snapshot is released, except the tips of main and of the branches and tags that
    stay. Children of released snapshots become children of the first snapshot and record the
    transaction logs in between, oldest first, which rebases and diffs still need.
    """
    infos = {snapshot.id: snapshot for snapshot in info.snapshots}
    protected = {info.branches[MAIN]}
    if not policy.delete_expired_branches:
        protected |= set(info.branches.values())
    if not policy.delete_expired_tags:
        protected |= set(info.tags.values())
    released = {snapshot.id for snapshot in info.snapshots if policy.expires(snapshot)} - protected
    deleted_branches, deleted_tags = _find_expired(info.branches, info.tags, infos, policy)
    return frozenset(released), replace(
        info,
        snapshots=_drop_snapshots(infos, released, lambda ancestor: ancestor.parent_id is None),
        branches=_without(info.branches, deleted_branches),
        tags=_without(info.tags, deleted_tags),
        deleted_tags=info.deleted_tags | set(deleted_tags),
    )


def collect_snapshots(
    info: RepoInfo, dropped: AbstractSet[SnapshotId], known: AbstractSet[SnapshotId]
) -> Changed:
    """Remove unreachable snapshots from the list; missing ones are ignored.

    Children of dropped snapshots get the nearest remaining ancestor as parent, and record the
    transaction logs in between. ``known`` are all snapshots that existed when ``dropped`` was
    decided: `ConflictError` of kind ``REPO_INFO_UPDATED`` if a dropped one is in use by now.
    """
    targets = {*info.branches.values(), *info.tags.values()}
    new_parents = {snapshot.parent_id for snapshot in info.snapshots if snapshot.id not in known}
    if in_use := dropped & (targets | new_parents):
        raise ConflictError(
            f"snapshots to collect are in use again: {', '.join(map(str, sorted(in_use)))}",
            kind=ErrorKind.REPO_INFO_UPDATED,
        )
    infos = {snapshot.id: snapshot for snapshot in info.snapshots}
    snapshots = _drop_snapshots(infos, dropped, lambda parent: parent.id not in dropped)
    return GCRan(), replace(info, snapshots=snapshots)


def find_reachable(info: RepoInfo) -> set[SnapshotId]:
    """Return the snapshots in the history of any branch or tag."""
    infos = {snapshot.id: snapshot for snapshot in info.snapshots}
    tips = (*info.branches.values(), *info.tags.values())
    return set(collect_reachable(tips, lambda tip: walk_history(tip, infos.__getitem__)))


def _drop_snapshots(
    infos: Infos, dropped: AbstractSet[SnapshotId], is_parent: Callable[[SnapshotInfo], bool]
) -> tuple[SnapshotInfo, ...]:
    """Drop snapshots; their children get the nearest ancestor for which ``is_parent`` holds."""
    return tuple(
        _replace_parent(info, infos, is_parent) if info.parent_id in dropped else info
        for info in infos.values()
        if info.id not in dropped
    )


def _replace_parent(
    info: SnapshotInfo, infos: Infos, is_parent: Callable[[SnapshotInfo], bool]
) -> SnapshotInfo:
    """Replace the parent of a snapshot, and record the transaction logs in between.

    An ancestor in between may have pruned logs of its own; they come before its own log.
    """
    _, *ancestors = walk_history(info.id, infos.__getitem__)
    count = next((place for place, found in enumerate(ancestors) if is_parent(found)), None)
    parent = None if count is None else ancestors[count].id
    logs = [
        log_id
        for ancestor in reversed(ancestors[:count])
        for log_id in (*ancestor.pruned_ancestor_tx_logs, ancestor.id)
    ]
    pruned = (*logs, *info.pruned_ancestor_tx_logs)
    return replace(info, parent_id=parent, pruned_ancestor_tx_logs=pruned)


def _find_expired(
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    infos: Infos,
    policy: ExpirationPolicy,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the branches and tags to delete."""

    def select_expired(refs: Mapping[str, SnapshotId]) -> tuple[str, ...]:
        return tuple(name for name in sorted(refs) if policy.expires(infos[refs[name]]))

    others = {name: tip for name, tip in branches.items() if name != MAIN}
    return (
        select_expired(others) if policy.delete_expired_branches else (),
        select_expired(tags) if policy.delete_expired_tags else (),
    )


def _without(refs: Mapping[str, SnapshotId], names: tuple[str, ...]) -> dict[str, SnapshotId]:
    return {name: target for name, target in refs.items() if name not in names}
