"""All commits that branches and tags lead to, for a picture of history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.display import Commit
from icefloe.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.ids import SnapshotId
    from icefloe.refs.interface import Refs


def fetch_commits(refs: Refs, start: SnapshotId | None = None) -> list[Commit]:
    """Fetch the ancestors of one snapshot, or of all branches and tags, with the names they bear.

    Each commit is fetched once. Where the storage cannot list and a snapshot is given, the names
    are left out.
    """
    refs = refs.pin()
    try:
        branches, tags = refs.fetch_branches(), refs.fetch_tags()
    except StorageError:
        if start is None:
            raise
        branches, tags = {}, {}
    starts = {*branches.values(), *tags.values()} if start is None else {start}
    return [
        Commit(
            str(info.id),
            None if info.parent_id is None else str(info.parent_id),
            info.flushed_at,
            info.message,
            _names(branches, info.id),
            _names(tags, info.id),
        )
        for info in refs.fetch_reachable(starts).values()
    ]


def _names(refs: Mapping[str, SnapshotId], target: SnapshotId) -> tuple[str, ...]:
    return tuple(sorted(name for name, found in refs.items() if found == target))
