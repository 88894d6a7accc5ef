"""The commits of a graph of history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.display import Commit
from icefloe.errors import StorageError
from icefloe.refs.lookup import find_names

if TYPE_CHECKING:
    from icefloe.model.ids import SnapshotId
    from icefloe.refs.interface import Refs


def fetch_commits(refs: Refs, start: SnapshotId | None = None) -> list[Commit]:
    """Fetch the ancestors of a snapshot, or of all branches and tags, with the names of each.

    Each commit is fetched once. If a snapshot is given and the storage cannot list, names are
    omitted.
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
            find_names(branches, info.id),
            find_names(tags, info.id),
        )
        for info in refs.fetch_reachable(starts).values()
    ]
