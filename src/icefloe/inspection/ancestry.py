"""The commits of an ancestry graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.display import Commit
from icefloe.errors import StorageError
from icefloe.refs.lookup import find_names

if TYPE_CHECKING:
    from icefloe.model.ids import SnapshotId
    from icefloe.refs.interface import Refs


def fetch_commits(refs: Refs, start: SnapshotId | None = None) -> list[Commit]:
    """Fetch a snapshot and its ancestors, or those of all branches and tags, each once.

    Commits have the names of their branches and tags. These are omitted if ``start`` is given and
    the storage cannot list.
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
