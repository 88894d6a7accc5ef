"""Opens a state of a repository for reading, from one URL.

A URL pipeline, as other readers of Zarr use them, names the repository, the state and a group:
``s3://bucket/weather|icechunk:@tag.v1/maps``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.model.node import NodeKind
from icefloe.model.path import Path
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.session.contents import get_node, iter_nodes_below
from icefloe.storage import Storage, storage_from_url
from icefloe.storage.urls import redact_url

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from icefloe.storage import AnyCredential

    Readable: TypeAlias = str | os.PathLike[str] | Storage | Repository | Session

_PIPELINE: Final = re.compile(
    r"(?P<url>[^|]*)\|icechunk:(?:@(?P<ref>[^/|]+))?(?P<path>/?[^|]*)(?:\|zarr3?:(?P<below>[^|]*))?"
)


@dataclass(frozen=True, slots=True)
class State:
    """A state of a repository, and a group in it; ``main`` if nothing is given."""

    branch: str | None = None
    tag: str | None = None
    snapshot: str | None = None
    as_of: datetime | None = None
    group: str | None = None

    @property
    def names_snapshot(self) -> bool:
        """Whether it names a branch, a tag, a snapshot or a time."""
        return (self.branch, self.tag, self.snapshot, self.as_of) != (None,) * 4


def is_pipeline(place: object) -> bool:
    """Whether a value is a URL pipeline of a repository."""
    return isinstance(place, str) and "|icechunk:" in place


def open_state(
    place: Readable,
    state: State,
    *,
    authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
) -> tuple[Session, str | None]:
    """Open a session to read a state, and return it with the path of the group.

    Raises
    ------
    InvalidInputError
        If ``place`` cannot be opened, or names a state or a group that ``state`` names, too.
    NodeNotFoundError
        If there is no such group.
    """
    if isinstance(place, Session):
        if state.names_snapshot:
            raise _make_error("a session reads one state: leave out branch, tag, snapshot, as_of")
        _require_group(place, state.group)
        return place, state.group
    if isinstance(place, str) and is_pipeline(place):
        place, state = _split_pipeline(place, state)
    if isinstance(place, str | os.PathLike):
        place = storage_from_url(os.fspath(place))
    if isinstance(place, Storage):
        place = Repository.open(
            place, authorize_virtual_chunk_access=authorize_virtual_chunk_access
        )
    elif authorize_virtual_chunk_access is not None:
        raise _make_error(
            "the repository is open already: pass authorize_virtual_chunk_access to Repository.open"
        )
    if not isinstance(place, Repository):
        raise _make_error(
            f"expected a path, a URL, a storage, a repository or a session, got {place!r:.80}"
        )
    branch = state.branch if state.tag or state.snapshot else state.branch or "main"
    session = place.readonly_session(
        branch, tag=state.tag, snapshot_id=state.snapshot, as_of=state.as_of
    )
    _require_group(session, state.group)
    return session, state.group


def _require_group(session: Session, group: str | None) -> None:
    path = Path("/" + (group or "").strip("/"))
    node = get_node(session, path)
    if node is not None and node.kind is NodeKind.GROUP:
        return
    if node is not None:
        raise NodeNotFoundError(f"{path} in {session!r} is an array, not a group")
    groups = [
        below.path.value
        for below in iter_nodes_below(session, Path("/"))
        if below.kind is NodeKind.GROUP
    ]
    similar = get_close_matches(path.value, groups, n=1) or sorted(groups)[:5]
    hint = f"did you mean {' or '.join(similar)}?" if similar else "it has no groups"
    raise NodeNotFoundError(f"there is no group {path} in {session!r}; {hint}")


def _split_pipeline(pipeline: str, state: State) -> tuple[str, State]:
    match = _PIPELINE.fullmatch(pipeline)
    if match is None:
        raise _make_error(
            f"{redact_url(pipeline)!r} is not URL|icechunk:@branch.NAME/GROUP, where "
            "@branch.NAME may be @tag.NAME, a snapshot id after @, or left out"
        )
    parts = {name: unquote(text) for name, text in match.groupdict(default="").items()}
    if ref := parts["ref"]:
        if state.names_snapshot:
            raise _make_error(f"the URL names {ref!r}: leave out branch, tag, snapshot and as_of")
        kind, dot, name = ref.partition(".")
        if not dot:
            state = replace(state, snapshot=ref)
        elif kind == "branch":
            state = replace(state, branch=name)
        elif kind == "tag":
            state = replace(state, tag=name)
        else:
            raise _make_error(f"@{ref} is none of @branch.NAME, @tag.NAME and @SNAPSHOT")
    group = "/".join(part.strip("/") for part in (parts["path"], parts["below"])).strip("/")
    if group and state.group is not None:
        raise _make_error(f"the URL names the group {group!r}: leave out the argument group")
    return match["url"], replace(state, group=group or state.group)


def _make_error(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind=ErrorKind.NOT_ALLOWED)
