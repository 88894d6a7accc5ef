"""The history and the nodes of a repository, as values for display."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from icefloe.assets import Assets
from icefloe.errors import InvalidInputError, NotFoundError, RefNotFoundError, StorageError
from icefloe.inspection.metadata_file import parse_json_or_base64
from icefloe.model.ids import SnapshotId
from icefloe.model.node import ArrayNodeData
from icefloe.refs.lookup import find_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icefloe.model.node import NodeSnapshot
    from icefloe.model.snapshot import Snapshot, SnapshotInfo
    from icefloe.refs import Refs
    from icefloe.storage.interface import Storage

_ANCESTOR: Final = re.compile(r"(?P<name>.+)~(?P<distance>[0-9]{0,9})")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A commit and the names of the branches and tags that point at it."""

    info: SnapshotInfo
    branches: tuple[str, ...]
    tags: tuple[str, ...]


def resolve_ref(refs: Refs, name: str) -> SnapshotId:
    """Resolve a branch, a tag, a snapshot id or ``NAME~N``, tried in this order.

    ``NAME~N`` is the N-th ancestor, ``NAME~`` the parent. Does not list names, except for the error
    message, because storages may forbid listing.
    """
    for fetch_ref in (refs.fetch_branch, refs.fetch_tag):
        with contextlib.suppress(NotFoundError, InvalidInputError):
            return fetch_ref(name)
    if match := _ANCESTOR.fullmatch(name):
        return _find_ancestor(refs, match["name"], int(match["distance"] or 1))
    try:
        return SnapshotId.parse(name)
    except InvalidInputError as error:
        branches, tags = _fetch_names(refs)
        names = ", ".join([*sorted(branches), *sorted(tags)])
        raise RefNotFoundError(
            f"{name!r} is neither a branch, nor a tag, nor a snapshot id"
            f"{f'; available: {names}' if names else ''}"
        ) from error


def _find_ancestor(refs: Refs, name: str, distance: int) -> SnapshotId:
    ancestors = refs.fetch_ancestry(resolve_ref(refs, name))
    ancestor = next(islice(ancestors, distance, None), None)
    if ancestor is None:
        raise RefNotFoundError(
            f"{name!r} has no ancestor number {distance}: its history is shorter"
        )
    return ancestor.id


def fetch_history(refs: Refs, name: str) -> Iterator[HistoryEntry]:
    """Yield the commits of a branch, tag or snapshot, newest first."""
    refs = refs.pin()
    branches, tags = _fetch_names(refs)
    for info in refs.fetch_ancestry(resolve_ref(refs, name)):
        yield HistoryEntry(info, find_names(branches, info.id), find_names(tags, info.id))


def _fetch_names(refs: Refs) -> tuple[Mapping[str, SnapshotId], Mapping[str, SnapshotId]]:
    """Fetch branches and tags; empty if listing fails, because they are optional information."""
    try:
        return refs.fetch_branches(), refs.fetch_tags()
    except StorageError:
        return {}, {}


def fetch_snapshot(storage: Storage, refs: Refs, name: str) -> Snapshot:
    """Fetch the snapshot of a branch, tag or snapshot id."""
    snapshot_id = resolve_ref(refs.pin(), name)
    return Assets(storage, refs.generation).require_tree(snapshot_id).snapshot


def summarize_node(node: NodeSnapshot) -> str:
    """Summarize an array in one line; return an empty string for a group."""
    if not isinstance(node.node_data, ArrayNodeData):
        return ""
    shape = [dimension.array_length for dimension in node.node_data.shape]
    names = node.node_data.dimension_names or (None,) * len(shape)
    dims = ", ".join(
        str(length) if name is None else f"{name}: {length}"
        for name, length in zip(names, shape, strict=False)
    )
    chunks = math.prod(dimension.num_chunks for dimension in node.node_data.shape)
    return f"{_format_data_type(node.user_data)} ({dims}) in {chunks} chunk{'s' * (chunks != 1)}"


def _format_data_type(user_data: bytes) -> str:
    metadata = parse_json_or_base64(user_data)
    data_type = metadata.get("data_type") if isinstance(metadata, dict) else None
    if isinstance(data_type, dict):
        data_type = data_type.get("name")
    return data_type if isinstance(data_type, str) else "?"
