"""Which snapshots history gives up, and what becomes of those that were built on them. Pure.

Expiration takes old snapshots out of history; collection takes those out that nothing reaches, so
that their files can go. Generation v2 has both as changes of ``repo``; in generation v1, where
snapshot files say themselves which parent they have, a plan says which of them get another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from icefloe.errors import ConflictError, ErrorKind
from icefloe.model.repo_info import GCRan
from icefloe.refs.problems import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import RepoInfo, UpdateType
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.refs.changes import Change

    Infos = Mapping[SnapshotId, SnapshotInfo]


@dataclass(frozen=True, slots=True)
class ExpirationPolicy:
    """What is too old, and whether branches and tags that point at it go as well.

    The branch main never goes, nor does a branch or a tag of the repository's first snapshot.
    """

    older_than: datetime
    delete_expired_branches: bool = False
    delete_expired_tags: bool = False

    def expires(self, info: SnapshotInfo) -> bool:
        """Whether a snapshot is too old; the first one of a repository never is."""
        return info.flushed_at < self.older_than and info.parent_id is not None


@dataclass(frozen=True, slots=True)
class ExpiredRefFiles:
    """What expiration does to a repository of generation v1.

    Parameters
    ----------
    released
        The snapshots that are too old, as Icechunk counts them: a tip among them stays where it
        is, and so does what other branches and tags have in their history.
    adopted
        The snapshots that get another parent, and which.
    branches, tags
        Those that go.
    """

    released: frozenset[SnapshotId]
    adopted: Mapping[SnapshotId, SnapshotId]
    branches: tuple[str, ...]
    tags: tuple[str, ...]


def plan_ref_files_expiration(
    infos: Infos,
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    policy: ExpirationPolicy,
) -> ExpiredRefFiles:
    """Plan what happens in generation v1: history is cut off once for each branch and tag.

    The oldest snapshot that is young enough, or the tip where none is, becomes a child of the first
    snapshot of its history. ``infos`` must have the whole history of all branches and tags.
    """
    parents = {info.id: info.parent_id for info in infos.values()}
    gone_branches = _expired_branches(branches, infos, policy)
    gone_tags = _expired_tags(tags, infos, policy)
    released: set[SnapshotId] = set()
    adopted = {}
    for refs, gone in (tags, gone_tags), (branches, gone_branches):
        for name in sorted(refs):
            *line, root = _follow(refs[name], parents.__getitem__)
            young = [place for place, one in enumerate(line) if not policy.expires(infos[one])]
            place = young[-1] if young else 0
            if len(line) < place + 2:
                continue  # a child of the first snapshot, or that one itself
            released.update(one for one in line[place:] if policy.expires(infos[one]))
            # What goes is not written anew: a file of today would not be collected for a while.
            if name not in gone:
                adopted[line[place]] = parents[line[place]] = root
    return ExpiredRefFiles(frozenset(released), adopted, gone_branches, gone_tags)


def plan_expiration(
    info: RepoInfo, policy: ExpirationPolicy
) -> tuple[frozenset[SnapshotId], RepoInfo]:
    """Plan what happens in generation v2; returns the released snapshots and the new state.

    Everything too old is released but the tips of main and of the branches and tags that stay.
    Who was built on a released snapshot becomes a child of the first one, and knows the
    transaction logs in between, oldest first, so that it can still be rebased over and compared.
    """
    infos = {one.id: one for one in info.snapshots}
    branches, tags = set(info.branches.values()), set(info.tags.values())
    protected = {info.branches[MAIN]}
    protected |= set() if policy.delete_expired_branches else branches
    protected |= set() if policy.delete_expired_tags else tags
    released = {one.id for one in info.snapshots if policy.expires(one)} - protected
    gone_tags = _expired_tags(info.tags, infos, policy)
    gone_branches = _expired_branches(info.branches, infos, policy)
    return frozenset(released), replace(
        info,
        snapshots=tuple(
            _detached(one, infos, lambda ancestor: ancestor.parent_id is None)
            if one.parent_id in released
            else one
            for one in info.snapshots
            if one.id not in released
        ),
        branches=_without(info.branches, gone_branches),
        tags=_without(info.tags, gone_tags),
        deleted_tags=info.deleted_tags | set(gone_tags),
    )


def collect(dropped: AbstractSet[SnapshotId], known: AbstractSet[SnapshotId]) -> Change:
    """Take snapshots that nothing reaches out of the list.

    Who was built on one becomes a child of the nearest ancestor that stays, and knows the
    transaction logs in between.

    Parameters
    ----------
    dropped
        The snapshots that go; those that are not there any more are no problem.
    known
        All that were there when it was decided which ones go.

    Raises
    ------
    ConflictError
        Of kind ``REPO_INFO_UPDATED``: by now something needs one of them. Decide again.
    """

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        pointed = {*info.branches.values(), *info.tags.values()}
        built_on = {one.parent_id for one in info.snapshots if one.id not in known}
        if needed := dropped & (pointed | built_on):
            raise ConflictError(
                f"snapshots were to be collected that are in use again: "
                f"{', '.join(str(one) for one in sorted(needed))}",
                kind=ErrorKind.REPO_INFO_UPDATED,
            )
        infos = {one.id: one for one in info.snapshots}
        return GCRan(), replace(
            info,
            snapshots=tuple(
                _detached(one, infos, lambda ancestor: ancestor.id not in dropped)
                if one.parent_id in dropped
                else one
                for one in info.snapshots
                if one.id not in dropped
            ),
        )

    return change


def find_reachable(info: RepoInfo) -> set[SnapshotId]:
    """Find the snapshots that some branch or tag has in its history."""
    infos = {one.id: one for one in info.snapshots}
    found: set[SnapshotId] = set()
    for tip in (*info.branches.values(), *info.tags.values()):
        current: SnapshotId | None = tip
        while current is not None and current not in found:
            found.add(current)
            current = infos[current].parent_id
    return found


def _detached(
    info: SnapshotInfo, infos: Infos, is_parent: Callable[[SnapshotInfo], bool]
) -> SnapshotInfo:
    """Give a snapshot the nearest ancestor that may be its parent; the logs in between stay known.

    An ancestor in between may have had ancestors taken away before, whose logs come before its own.
    """
    between: list[SnapshotInfo] = []
    parent = None
    for ancestor_id in _follow(info.id, lambda one: infos[one].parent_id):
        if ancestor_id == info.id:
            continue
        if is_parent(infos[ancestor_id]):
            parent = ancestor_id
            break
        between.append(infos[ancestor_id])
    logs = [
        log_id
        for ancestor in reversed(between)
        for log_id in (*ancestor.pruned_ancestor_tx_logs, ancestor.id)
    ]
    pruned = (*logs, *info.pruned_ancestor_tx_logs)
    return replace(info, parent_id=parent, pruned_ancestor_tx_logs=pruned)


def _follow(
    start: SnapshotId, parent_of: Callable[[SnapshotId], SnapshotId | None]
) -> Iterator[SnapshotId]:
    current: SnapshotId | None = start
    while current is not None:
        yield current
        current = parent_of(current)


def _expired_branches(
    branches: Mapping[str, SnapshotId], infos: Infos, policy: ExpirationPolicy
) -> tuple[str, ...]:
    if not policy.delete_expired_branches:
        return ()
    return tuple(
        name for name in sorted(branches) if name != MAIN and policy.expires(infos[branches[name]])
    )


def _expired_tags(
    tags: Mapping[str, SnapshotId], infos: Infos, policy: ExpirationPolicy
) -> tuple[str, ...]:
    if not policy.delete_expired_tags:
        return ()
    return tuple(name for name in sorted(tags) if policy.expires(infos[tags[name]]))


def _without(refs: Mapping[str, SnapshotId], names: tuple[str, ...]) -> dict[str, SnapshotId]:
    return {name: target for name, target in refs.items() if name not in names}
