"""Lookup of snapshots by branch, tag, id or time, and of the branches and tags of a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, InvalidInputError, SnapshotNotFoundError
from icefloe.model.ids import SnapshotId
from icefloe.model.times import require_time_zone

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from icefloe.refs.interface import Refs


def find_snapshot(
    refs: Refs, branch: str | None, tag: str | None, snapshot_id: SnapshotId | str | None
) -> SnapshotId:
    """Return the snapshot of a branch, a tag or an id; exactly one must be given."""
    if [branch, tag, snapshot_id].count(None) != 2:
        raise InvalidInputError(
            "pass exactly one of branch, tag and snapshot_id", kind=ErrorKind.INVALID_REF_TYPE
        )
    if branch is not None:
        return refs.fetch_branch(branch)
    if tag is not None:
        return refs.fetch_tag(tag)
    return SnapshotId.parse(snapshot_id)


def find_snapshot_at(
    refs: Refs, branch: str | None, tag: str | None, snapshot_id: str | None, as_of: datetime
) -> SnapshotId:
    """Return the newest snapshot of a branch that was written at or before ``as_of``."""
    if branch is None or tag is not None or snapshot_id is not None:
        raise InvalidInputError(
            "as_of selects a snapshot of a branch: pass branch, and neither tag nor snapshot_id",
            kind=ErrorKind.INVALID_REF_TYPE,
        )
    require_time_zone("as_of", as_of)
    pinned = refs.pin()
    for info in pinned.fetch_ancestry(pinned.fetch_branch(branch)):
        if info.flushed_at <= as_of:
            return info.id
    raise SnapshotNotFoundError(
        f"branch {branch!r} begins after {as_of.isoformat()}", kind=ErrorKind.NO_SNAPSHOT_AT_TIME
    )


def find_names(refs: Mapping[str, SnapshotId], target: SnapshotId) -> tuple[str, ...]:
    """Return the branches or tags that point at a snapshot, sorted."""
    return tuple(sorted(name for name, snapshot_id in refs.items() if snapshot_id == target))
