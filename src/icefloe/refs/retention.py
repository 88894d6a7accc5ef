"""Plans the expiration and collection of snapshots. Pure, no I/O.

Expiration removes old snapshots from history; collection removes unreachable snapshots, so that
their files can be deleted. Children of removed snapshots get new parents. In generation v2 both
change ``repo``. In v1 a snapshot file records its parent, so expiration rewrites some files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from icefloe.errors import ConflictError, ErrorKind
from icefloe.model.repo_info import GCRan
from icefloe.refs.history import collect_reachable, walk_history
from icefloe.refs.names import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import RepoInfo
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.refs.changes import ChangeResult

    Infos = Mapping[SnapshotId, SnapshotInfo]


@dataclass(frozen=True, slots=True)
class ExpirationPolicy:
    """The age limit, and whether to delete branches and tags whose tip is older.

    The branch main is never deleted, nor is a branch or tag at the first snapshot.
    """

    older_than: datetime
    delete_expired_branches: bool = False
    delete_expired_tags: bool = False

    def expires(self, info: SnapshotInfo) -> bool:
        """Whether a snapshot is too old; the first snapshot of a repository never expires."""
        return info.flushed_at < self.older_than and info.parent_id is not None


@dataclass(frozen=True, slots=True)
class RefFilesExpiration:
    """Plan of an expiration in generation v1: new parents, and branches and tags to delete.

    ``expired`` is what Icechunk reports: it may include tips, and snapshots that other branches
    and tags still reach, although those stay.
    """

    expired: frozenset[SnapshotId]
    new_parents: Mapping[SnapshotId, SnapshotId]
    deleted_branches: tuple[str, ...]
    deleted_tags: tuple[str, ...]


def plan_ref_files_expiration(
    infos: Infos,
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    policy: ExpirationPolicy,
) -> RefFilesExpiration:
    """Plan an expiration in generation v1: shorten the history of each branch and tag.

    The oldest snapshot that does not expire, or the tip if all do, becomes a child of the first
    snapshot. ``infos`` must contain the complete history of all branches and tags.
    """
    current = dict(infos)
    deleted_branches, deleted_tags = _find_expired_refs(branches, tags, infos, policy)
    expired: set[SnapshotId] = set()
    new_parents = {}
    for refs, deleted in (tags, deleted_tags), (branches, deleted_branches):
        for name in sorted(refs):
            *history, root = walk_history(refs[name], current.__getitem__)
            kept = [index for index, info in enumerate(history) if not policy.expires(info)]
            oldest_kept = kept[-1] if kept else 0  # the history starts with the tip
            if len(history) < oldest_kept + 2:
                continue  # it is the first snapshot, or already a child of the first snapshot
            expired.update(info.id for info in history[oldest_kept:] if policy.expires(info))
            # A snapshot of a deleted ref is not rewritten: garbage collection would not delete the
            # rewritten file, because it is new.
            if name not in deleted:
                child = history[oldest_kept]
                new_parents[child.id] = root.id
                current[child.id] = replace(child, parent_id=root.id)
    return RefFilesExpiration(frozenset(expired), new_parents, deleted_branches, deleted_tags)


def plan_expiration(
    info: RepoInfo, policy: ExpirationPolicy
) -> tuple[frozenset[SnapshotId], RepoInfo]:
    """Plan an expiration in generation v2; return the expired snapshots and the new state.

    Every old snapshot expires, except the tips of main and of the branches and tags that stay.
    Children of expired snapshots become children of the first snapshot and record the transaction
    logs in between, oldest first, because rebases and diffs need those logs.
    """
    infos = {snapshot.id: snapshot for snapshot in info.snapshots}
    protected = {info.branches[MAIN]}
    if not policy.delete_expired_branches:
        protected |= set(info.branches.values())
    if not policy.delete_expired_tags:
        protected |= set(info.tags.values())
    expired = {snapshot.id for snapshot in infos.values() if policy.expires(snapshot)} - protected
    deleted_branches, deleted_tags = _find_expired_refs(info.branches, info.tags, infos, policy)
    return frozenset(expired), replace(
        info,
        snapshots=_drop_snapshots(infos, expired, lambda ancestor: ancestor.parent_id is None),
        branches=_drop_names(info.branches, deleted_branches),
        tags=_drop_names(info.tags, deleted_tags),
        deleted_tags=info.deleted_tags | set(deleted_tags),
    )


def collect_snapshots(
    info: RepoInfo, dropped: AbstractSet[SnapshotId], existing: AbstractSet[SnapshotId]
) -> ChangeResult:
    """Remove unreachable snapshots from the repo info; ignore those that it does not have.

    Children of dropped snapshots get the nearest remaining ancestor as parent, and record the
    transaction logs in between. ``existing`` are all snapshots that existed when ``dropped`` was
    computed. Raises `ConflictError` of kind ``REPO_INFO_UPDATED`` if a branch, a tag or a newer
    snapshot now refers to a dropped snapshot.
    """
    if not dropped:
        return GCRan(), info
    tips = {*info.branches.values(), *info.tags.values()}
    infos = {snapshot.id: snapshot for snapshot in info.snapshots}
    parents = {snapshot.parent_id for snapshot in infos.values() if snapshot.id not in existing}
    if in_use := dropped & (tips | parents):
        raise ConflictError(
            f"snapshots to delete are in use again: {', '.join(map(str, sorted(in_use)))}",
            kind=ErrorKind.REPO_INFO_UPDATED,
        )
    snapshots = _drop_snapshots(infos, dropped, lambda ancestor: ancestor.id not in dropped)
    return GCRan(), replace(info, snapshots=snapshots)


def find_reachable(info: RepoInfo) -> set[SnapshotId]:
    """Return the snapshots in the history of any branch or tag."""
    infos = {snapshot.id: snapshot for snapshot in info.snapshots}
    tips = (*info.branches.values(), *info.tags.values())
    return set(collect_reachable(tips, lambda tip: walk_history(tip, infos.__getitem__)))


def _drop_snapshots(
    infos: Infos, dropped: AbstractSet[SnapshotId], is_parent: Callable[[SnapshotInfo], bool]
) -> tuple[SnapshotInfo, ...]:
    """Drop snapshots; their children move to the nearest ancestor that satisfies ``is_parent``."""
    return tuple(
        _replace_parent(info, infos, is_parent) if info.parent_id in dropped else info
        for info in infos.values()
        if info.id not in dropped
    )


def _replace_parent(
    info: SnapshotInfo, infos: Infos, is_parent: Callable[[SnapshotInfo], bool]
) -> SnapshotInfo:
    """Replace the parent of a snapshot, and record the transaction logs in between, oldest first.

    The pruned logs of an ancestor are older than the ancestor's own log.
    """
    _, *ancestors = walk_history(info.id, infos.__getitem__)
    matches = (index for index, ancestor in enumerate(ancestors) if is_parent(ancestor))
    num_between = next(matches, None)  # None: no ancestor remains, and all are in between
    parent_id = None if num_between is None else ancestors[num_between].id
    logs = [
        log_id
        for ancestor in reversed(ancestors[:num_between])
        for log_id in (*ancestor.pruned_ancestor_tx_logs, ancestor.id)
    ]
    pruned = (*logs, *info.pruned_ancestor_tx_logs)
    return replace(info, parent_id=parent_id, pruned_ancestor_tx_logs=pruned)


def _find_expired_refs(
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


def _drop_names(refs: Mapping[str, SnapshotId], names: tuple[str, ...]) -> dict[str, SnapshotId]:
    return {name: target for name, target in refs.items() if name not in names}
