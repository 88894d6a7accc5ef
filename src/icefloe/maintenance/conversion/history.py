"""The state of the source: pinned branches and tags, and the snapshots to convert."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from icefloe.errors import ConflictError, ErrorKind, FormatError, InvalidInputError
from icefloe.refs.history import walk_history
from icefloe.refs.names import MAIN
from icefloe.refs.state import RefsState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.refs.interface import Refs

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Selection:
    """What to convert: everything, one branch with its history, or only its newest snapshot."""

    branch: str | None = None
    newest: bool = False

    @property
    def start(self) -> str | None:
        """The branch to convert; None for all branches."""
        return MAIN if self.branch is None and self.newest else self.branch

    def __str__(self) -> str:
        if self.newest:
            return f"the newest snapshot of branch {self.start}"
        return "all branches and tags" if self.branch is None else f"branch {self.branch}"


@dataclass(frozen=True, slots=True)
class PinnedRefs:
    """Branches, tags and configuration at one time."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    deleted_tags: frozenset[str]
    config: RepositoryConfig | None


def fetch_pinned_refs(refs: Refs) -> PinnedRefs:
    """Fetch one consistent state, also where each branch is a file of its own."""
    previous = None
    for _ in range(_TRIES):
        pinned = refs.pin()
        state = PinnedRefs(
            dict(pinned.fetch_branches()),
            dict(pinned.fetch_tags()),
            pinned.fetch_deleted_tags(),
            pinned.fetch_config(),
        )
        # A file per branch has no common state with others: two equal states in sequence had.
        if not refs.generation.has_parents_in_snapshots or state == previous:
            return state
        previous = state
    raise ConflictError(
        "branches or tags of the source changed whenever they were read: stop its writers, and "
        "convert again",
        kind=ErrorKind.REPO_INFO_UPDATED,
    )


def fetch_history(refs: Refs, pinned: PinnedRefs, selection: Selection) -> RefsState:
    """Fetch the snapshots to convert, parents first, and the branches and tags that stay."""
    start = selection.start
    if start is None:
        infos = refs.fetch_reachable({*pinned.branches.values(), *pinned.tags.values()})
        return _make_state(pinned, pinned.branches, infos)
    if start not in pinned.branches:
        raise InvalidInputError(
            f"there is no branch {start!r}; available: {', '.join(sorted(pinned.branches))}",
            kind=ErrorKind.BRANCH_NOT_FOUND,
        )
    tip = pinned.branches[start]
    infos = refs.fetch_reachable([tip])
    *_, root = walk_history(tip, infos.__getitem__)
    if selection.newest and tip != root.id:
        newest = replace(infos[tip], parent_id=root.id, pruned_ancestor_tx_logs=())
        infos = {root.id: root, tip: newest}
    # Every repository has a branch main.
    return _make_state(pinned, {MAIN: root.id, start: tip}, infos)


def count_children(snapshots: Iterable[SnapshotInfo]) -> Counter[SnapshotId]:
    """Count the children of each snapshot."""
    return Counter(info.parent_id for info in snapshots if info.parent_id is not None)


def hash_history(snapshots: Iterable[SnapshotInfo]) -> str:
    """Return a digest of ids and parents, to detect that the history was expired meanwhile."""
    digest = hashlib.sha256()
    for info in snapshots:
        digest.update(info.id.raw)
        digest.update(b"\0" if info.parent_id is None else info.parent_id.raw)
    return digest.hexdigest()


def _make_state(
    pinned: PinnedRefs,
    branches: Mapping[str, SnapshotId],
    infos: Mapping[SnapshotId, SnapshotInfo],
) -> RefsState:
    tags = {tag: target for tag, target in pinned.tags.items() if target in infos}
    return RefsState(branches, tags, pinned.deleted_tags, _sort_history(infos), pinned.config)


def _sort_history(infos: Mapping[SnapshotId, SnapshotInfo]) -> tuple[SnapshotInfo, ...]:
    """Sort snapshots so that parents come first, otherwise by time and id."""
    children = defaultdict(list)
    ready = []
    for info in infos.values():
        if info.parent_id is None:
            ready.append((info.flushed_at, info.id))
        else:
            children[info.parent_id].append(info)
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, snapshot_id = heapq.heappop(ready)
        ordered.append(infos[snapshot_id])
        for child in children[snapshot_id]:
            heapq.heappush(ready, (child.flushed_at, child.id))
    if len(ordered) < len(infos):
        raise FormatError("the history of the source has a cycle or a missing parent")
    return tuple(ordered)
