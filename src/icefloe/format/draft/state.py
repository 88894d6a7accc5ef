"""Codec of ``state.json``, the mutable state of the generation draft (docs/format/draft.md).

The file has the members of the specification, and two more: ``deleted-tags``, the names that tags
cannot use again, and ``recent-changes``, ids of the last changes, by which a writer whose response
was lost recognizes its own change.

A key of ``refs`` is the name of the branch or tag. If a branch and a tag have the same name, or if
a name starts with ``branch.`` or ``tag.``, the key is ``branch.NAME`` or ``tag.NAME``. So keys are
unique, and the members ``name`` and ``type`` of an entry decide what it is.

``properties`` of a snapshot has ``message``, ``metadata`` and ``timestamp-us``, the time in
microseconds. Members of other writers count as metadata.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format import timestamps
from icefloe.format.generation import DRAFT
from icefloe.format.json_text import is_nested_deeply, parse_json
from icefloe.format.keys import STATE
from icefloe.model.ids import SnapshotId
from icefloe.model.repo_info import RepoAvailability, RepoInfo, RepoStatus
from icefloe.model.snapshot import SnapshotInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

MAX_STATE_BYTES: Final = 64 * 1024 * 1024
"""Enough for some 200,000 commits; every change rewrites the file."""

MAX_RECENT_CHANGES: Final = 64
MAX_METADATA_DEPTH: Final = 100
_MAX_COUNTER: Final = 2**53 - 1  # the integers that every JSON reader keeps exact
_MAX_TIME: Final = 2**63 - 1
_BRANCH, _TAG = "branch", "tag"
_MAIN: Final = "main"
_MESSAGE, _METADATA, _MICROSECONDS = "message", "metadata", "timestamp-us"
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class State:
    """The content of a ``state.json``.

    Parameters
    ----------
    id
        Id of the repository.
    counter
        The member ``generation``: the number of changes since the creation.
    store_root
        URL of the root of all other files; None if it is the directory of the state.
    info
        Branches, tags and snapshots.
    recent_changes
        Ids of the last changes, newest first.
    """

    id: str
    counter: int
    store_root: str | None
    info: RepoInfo
    recent_changes: tuple[str, ...] = ()


def make_uid() -> str:
    """Make a random id of a repository or a change: the text form of 12 bytes."""
    return str(DRAFT.make_id(SnapshotId))


def make_repo_info(
    snapshots: Iterable[SnapshotInfo],
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    deleted_tags: frozenset[str],
    created_at: datetime,
) -> RepoInfo:
    """Make the repo info of a repository without status, ops log and feature flags."""
    return RepoInfo(
        spec_version=DRAFT.spec_version,
        branches=branches,
        tags=tags,
        deleted_tags=deleted_tags,
        snapshots=tuple(snapshots),
        status=RepoStatus(RepoAvailability.online, created_at),
        latest_updates=(),
    )


def encode_state(state: State) -> bytes:
    """Encode a state; raise if it cannot be stored."""
    if state.counter > _MAX_COUNTER:
        raise FormatError(f"the member generation cannot exceed {_MAX_COUNTER}", file=STATE)
    info = state.info
    content: dict[str, Any] = {"id": state.id, "generation": state.counter}
    if state.store_root is not None:
        content["store_root"] = state.store_root
    content |= {
        "snapshots": [_encode_snapshot(snapshot) for snapshot in info.snapshots],
        "refs": {
            _format_ref_key(name, kind, others): {
                "name": name,
                "snapshot-id": str(refs[name]),
                "type": kind,
            }
            for refs, kind, others in (
                (info.branches, _BRANCH, info.tags),
                (info.tags, _TAG, info.branches),
            )
            for name in sorted(refs)
        },
        "deleted-tags": sorted(info.deleted_tags),
        "recent-changes": state.recent_changes[:MAX_RECENT_CHANGES],
    }
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        data = text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"the metadata of a snapshot cannot be stored as JSON: {error}",
            kind=ErrorKind.BAD_METADATA,
        ) from error
    if len(data) > MAX_STATE_BYTES:
        raise FormatError(
            f"the state would have {len(data)} bytes, more than the limit of {MAX_STATE_BYTES}: "
            "expire old snapshots and collect garbage, or convert the repository with "
            "`icefloe convert SOURCE TARGET --to v2`",
            file=STATE,
            kind=ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )
    return data


def decode_state(data: bytes | memoryview) -> State:
    """Decode a state; raise `FormatError` if it is invalid.

    Whether histories end is not checked: `icefloe.refs.history` finds cycles.
    """
    root = _require_object(_parse(data), "the file")
    branches: dict[str, SnapshotId] = {}
    tags: dict[str, SnapshotId] = {}
    snapshots: dict[SnapshotId, SnapshotInfo] = {}
    for index, entry in enumerate(_get(root, "snapshots", list, "the file")):
        snapshot = _decode_snapshot(entry, f"snapshots[{index}]")
        if snapshot.id in snapshots:
            raise _state_error(f"snapshot {snapshot.id} is listed twice")
        snapshots[snapshot.id] = snapshot
    for key, entry in _get(root, "refs", dict, "the file", {}).items():
        _add_ref(key, entry, branches, tags)
    for name, target in (*branches.items(), *tags.items()):
        if target not in snapshots:
            raise _state_error(f"{name!r} points at {target}, which is not in snapshots")
    if _MAIN not in branches:
        raise _state_error(f"there is no branch {_MAIN}")
    deleted = _get_distinct_texts(root, "deleted-tags")
    if used := tags.keys() & set(deleted):
        raise _state_error(f"the tag {min(used)!r} is also one of deleted-tags")
    first = min(snapshots.values(), key=lambda snapshot: snapshot.flushed_at)
    return State(
        _get_uid(root, "id", "the file"),
        _get_integer(root, "generation", "the file", _MAX_COUNTER),
        _get(root, "store_root", str | None, "the file", None) or None,
        make_repo_info(snapshots.values(), branches, tags, frozenset(deleted), first.flushed_at),
        tuple(_get_distinct_texts(root, "recent-changes")),
    )


def _parse(data: bytes | memoryview) -> object:
    if len(data) > MAX_STATE_BYTES:
        raise _state_error(f"{len(data)} bytes exceed the limit of {MAX_STATE_BYTES}")
    content: object = parse_json(data, STATE)
    if _SURROGATE_ESCAPE.search(data) is not None:
        # Only an escape can make a lone surrogate, which is not a character.
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise _state_error(f"not valid JSON ({error!s:.200})") from error
    return content


def _encode_snapshot(info: SnapshotInfo) -> dict[str, Any]:
    microseconds = timestamps.to_microseconds(info.flushed_at)
    metadata = dict(info.metadata)
    if is_nested_deeply(metadata, MAX_METADATA_DEPTH):
        raise InvalidInputError(
            f"the metadata of snapshot {info.id} is nested more than {MAX_METADATA_DEPTH} levels "
            "deep",
            kind=ErrorKind.BAD_METADATA,
        )
    entry: dict[str, Any] = {"snapshot-id": str(info.id)}
    if info.parent_id is not None:
        entry["parent-snapshot-id"] = str(info.parent_id)
    return entry | {
        "timestamp-ms": microseconds // 1000,
        "structure-file": _format_structure_file(info.id),
        "properties": {
            _MESSAGE: info.message,
            _METADATA: metadata,
            _MICROSECONDS: microseconds,
        },
    }


def _decode_snapshot(entry: object, where: str) -> SnapshotInfo:
    fields = _require_object(entry, where)
    snapshot_id = _get_snapshot_id(fields, "snapshot-id", where)
    parent_id = None
    if fields.get("parent-snapshot-id") is not None:
        parent_id = _get_snapshot_id(fields, "parent-snapshot-id", where)
    structure_file = _get(fields, "structure-file", str, where)
    if structure_file != _format_structure_file(snapshot_id):
        raise _state_error(
            f"{where}.structure-file is {structure_file!r:.80}, expected "
            f"{_format_structure_file(snapshot_id)!r}"
        )
    milliseconds = _get_integer(fields, "timestamp-ms", where, _MAX_TIME // 1000)
    properties = dict(_get(fields, "properties", dict | None, where, None) or {})
    where = f"{where}.properties"
    microseconds = milliseconds * 1000
    if _MICROSECONDS in properties:
        microseconds = _get_integer(properties, _MICROSECONDS, where, _MAX_TIME)
        if microseconds // 1000 != milliseconds:
            raise _state_error(
                f"{where}.{_MICROSECONDS} is {microseconds}, but timestamp-ms is {milliseconds}"
            )
    message = _get(properties, _MESSAGE, str, where, "")
    own_metadata = _get(properties, _METADATA, dict, where, {})
    others = {
        name: value
        for name, value in properties.items()
        if name not in (_MESSAGE, _METADATA, _MICROSECONDS)
    }
    metadata = others | own_metadata
    if is_nested_deeply(metadata, MAX_METADATA_DEPTH):
        raise _state_error(f"{where} is nested more than {MAX_METADATA_DEPTH} levels deep")
    flushed_at = timestamps.from_microseconds(microseconds, STATE)
    return SnapshotInfo(snapshot_id, parent_id, flushed_at, message, metadata)


def _format_structure_file(snapshot_id: SnapshotId) -> str:
    return f"{snapshot_id}{DRAFT.layout.snapshots.suffix}"


def _format_ref_key(name: str, kind: str, others: Mapping[str, SnapshotId]) -> str:
    if name in others or name.startswith((f"{_BRANCH}.", f"{_TAG}.")):
        return f"{kind}.{name}"
    return name


def _add_ref(
    key: str, entry: object, branches: dict[str, SnapshotId], tags: dict[str, SnapshotId]
) -> None:
    where = f"refs[{key!r:.80}]"
    fields = _require_object(entry, where)
    name = _get(fields, "name", str, where)
    kind = _get(fields, "type", str, where)
    if kind not in (_BRANCH, _TAG):
        raise _state_error(f"{where}.type is {kind!r:.80}, neither 'branch' nor 'tag'")
    if not name or key not in (name, f"{kind}.{name}"):
        raise _state_error(f"{where}.name is {name!r:.80}, which does not match its key")
    refs = branches if kind == _BRANCH else tags
    if name in refs:
        raise _state_error(f"the {kind} {name!r:.80} is listed twice")
    refs[name] = _get_snapshot_id(fields, "snapshot-id", where)


_REQUIRED: Final = object()


def _get(
    fields: Mapping[str, Any], name: str, kind: Any, where: str, default: Any = _REQUIRED
) -> Any:
    value = fields.get(name, default)
    if value is _REQUIRED:
        raise _state_error(f"{where} has no member {name!r}")
    if not isinstance(value, kind) or isinstance(value, bool):
        expected = " or ".join(_NAMES[part] for part in getattr(kind, "__args__", (kind,)))
        raise _state_error(
            f"{where}: the member {name!r} is {_describe(value)}, expected {expected}"
        )
    return value


_NAMES: Final = {
    str: "a string",
    int: "an integer",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def _get_integer(fields: Mapping[str, Any], name: str, where: str, maximum: int) -> int:
    value: int = _get(fields, name, int, where)
    if not 0 <= value <= maximum:
        raise _state_error(f"{where}: the member {name!r} is not between 0 and {maximum}")
    return value


def _get_uid(fields: Mapping[str, Any], name: str, where: str) -> str:
    return str(_get_snapshot_id(fields, name, where))


def _get_snapshot_id(fields: Mapping[str, Any], name: str, where: str) -> SnapshotId:
    text: str = _get(fields, name, str, where)
    try:
        snapshot_id = SnapshotId.parse(text)
    except InvalidInputError as error:
        raise _state_error(f"{where}: the member {name!r}: {error.message:.200}") from error
    if len(snapshot_id.raw) != DRAFT.id_size or str(snapshot_id) != text:
        raise _state_error(
            f"{where}: the member {name!r} is {text!r}, expected an id of {DRAFT.id_size} bytes in "
            "upper case"
        )
    return snapshot_id


def _get_distinct_texts(fields: Mapping[str, Any], name: str) -> list[str]:
    texts: list[str] = _get(fields, name, list, "the file", [])
    if not all(isinstance(text, str) for text in texts) or len(set(texts)) < len(texts):
        raise _state_error(f"the member {name!r} is not an array of distinct strings")
    return texts


def _require_object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _state_error(f"{where} is {_describe(value)}, expected an object")
    return value


def _describe(value: object) -> str:
    # The repr of a container could be large or exhaust the stack.
    return _NAMES[type(value)] if isinstance(value, (list, dict)) else f"{value!r:.80}"


def _state_error(problem: str) -> FormatError:
    return FormatError(problem, file=STATE)
