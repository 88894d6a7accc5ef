"""The commits of an ancestry graph."""

from __future__ import annotations

import heapq
from itertools import islice
from typing import TYPE_CHECKING

from icefloe.display import Commit
from icefloe.errors import StorageError
from icefloe.refs.lookup import find_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.refs.interface import Refs


def fetch_commits(
    refs: Refs, start: SnapshotId | None = None, *, limit: int | None = None
) -> list[Commit]:
    """Fetch a snapshot and its ancestors, or those of all branches and tags, each once.

    Commits have the names of their branches and tags. These are omitted if ``start`` is given and
    the storage cannot list. With ``limit``, only the newest are fetched.
    """
    refs = refs.pin()
    try:
        branches, tags = refs.fetch_branches(), refs.fetch_tags()
    except StorageError:
        if start is None:
            raise
        branches, tags = {}, {}
    starts = {*branches.values(), *tags.values()} if start is None else {start}
    infos: Iterable[SnapshotInfo]
    if limit is None:
        infos = refs.fetch_reachable(starts).values()
    else:
        infos = islice(_iter_newest_first(refs, starts), limit)
    return [
        Commit(
            str(info.id),
            None if info.parent_id is None else str(info.parent_id),
            info.flushed_at,
            info.message,
            find_names(branches, info.id),
            find_names(tags, info.id),
        )
        for info in infos
    ]


def _iter_newest_first(refs: Refs, starts: Iterable[SnapshotId]) -> Iterator[SnapshotInfo]:
    """Yield snapshots by time, a parent after at least one of its children."""
    seen = set(starts)
    pending = [
        (-info.flushed_at.timestamp(), info.id, info)
        for info in map(refs.fetch_snapshot_info, seen)
    ]
    heapq.heapify(pending)
    while pending:
        *_, info = heapq.heappop(pending)
        yield info
        parent_id = info.parent_id
        if parent_id is not None and parent_id not in seen:
            seen.add(parent_id)
            parent = refs.fetch_snapshot_info(parent_id)
            heapq.heappush(pending, (-parent.flushed_at.timestamp(), parent_id, parent))
