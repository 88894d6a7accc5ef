"""Metadata tables of a repository: ``snapshots``, ``history``, ``refs`` and ``ops_log``."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from icefloe.format.generation import get_generation
from icefloe.ops import Update, UpdateType
from icefloe.spark.reading.metadata_tables.table import (
    TEXT,
    TEXTS,
    TIMESTAMP,
    Column,
    RecordTable,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from icefloe.snapshots import SnapshotInfo
    from icefloe.spark.reading.read_options import ReadOptions
    from icefloe.spark.reading.snapshot_source import SnapshotSource


# -- snapshots: every snapshot that a branch or tag reaches, newest first


class _Snapshot(NamedTuple):
    info: Any
    branches: list[str]
    tags: list[str]


def _fetch_snapshots(source: SnapshotSource, _: ReadOptions) -> Iterator[_Snapshot]:
    refs = source.open_session().connection.refs.pin()
    branches, tags = refs.fetch_branches(), refs.fetch_tags()
    infos: dict[Any, Any] = {}
    for tip in {*branches.values(), *tags.values()}:
        for info in refs.fetch_ancestry(tip):
            if info.id in infos:
                break
            infos[info.id] = info
    for info in sorted(infos.values(), key=lambda info: info.flushed_at, reverse=True):
        yield _Snapshot(
            info,
            sorted(name for name, target in branches.items() if target == info.id),
            sorted(name for name, target in tags.items() if target == info.id),
        )


SNAPSHOTS: Final = RecordTable[_Snapshot](
    _fetch_snapshots,
    Column("committed_at", TIMESTAMP, lambda snapshot: snapshot.info.flushed_at),
    Column("snapshot_id", TEXT, lambda snapshot: str(snapshot.info.id)),
    Column(
        "parent_id",
        TEXT,
        lambda snapshot: None if snapshot.info.parent_id is None else str(snapshot.info.parent_id),
    ),
    Column("message", TEXT, lambda snapshot: snapshot.info.message),
    Column("metadata", TEXT, lambda snapshot: to_json(dict(snapshot.info.metadata))),
    Column("branches", TEXTS, lambda snapshot: snapshot.branches),
    Column("tags", TEXTS, lambda snapshot: snapshot.tags),
)


# -- history: ancestors of a branch, tag or snapshot, and former tips of a branch, newest first


class _HistoryEntry(NamedTuple):
    made_current_at: datetime
    is_ancestor: bool
    snapshot_id: str
    info: SnapshotInfo | None


def _fetch_history(source: SnapshotSource, options: ReadOptions) -> list[_HistoryEntry]:
    repository = source.repository
    entries = [
        _HistoryEntry(info.written_at, True, info.id, info)
        for info in repository.ancestry(snapshot_id=source.snapshot_id)
    ]
    is_tip = options.tag is None and options.snapshot is None and options.as_of is None
    if is_tip and get_generation(repository.generation).has_repo_info:
        seen = {entry.snapshot_id for entry in entries}
        for updated_at, snapshot_id in _fetch_former_tips(source, options.branch or "main"):
            if snapshot_id not in seen:
                seen.add(snapshot_id)
                info = _lookup_snapshot(source, snapshot_id)
                entries.append(_HistoryEntry(updated_at, False, snapshot_id, info))
    return sorted(entries, key=lambda entry: entry.made_current_at, reverse=True)


def _fetch_former_tips(source: SnapshotSource, branch: str) -> Iterator[tuple[datetime, str]]:
    """Yield the commits and amendments of a branch in the ops log."""
    for update in source.repository.ops_log():
        match update.kind:
            case UpdateType.NewCommit(name, snapshot_id) if name == branch:
                yield update.updated_at, snapshot_id
            case UpdateType.CommitAmended(name, _, snapshot_id) if name == branch:
                yield update.updated_at, snapshot_id


def _lookup_snapshot(source: SnapshotSource, snapshot_id: str) -> SnapshotInfo | None:
    try:
        return source.repository.lookup_snapshot(snapshot_id)
    except KeyError:  # the snapshot expired
        return None


HISTORY: Final = RecordTable[_HistoryEntry](
    _fetch_history,
    Column("made_current_at", TIMESTAMP, lambda entry: entry.made_current_at),
    Column("snapshot_id", TEXT, lambda entry: entry.snapshot_id),
    Column("parent_id", TEXT, lambda entry: entry.info and entry.info.parent_id),
    Column("is_current_ancestor", pa.bool_(), lambda entry: entry.is_ancestor),
    Column("message", TEXT, lambda entry: entry.info and entry.info.message),
    Column("metadata", TEXT, lambda entry: entry.info and to_json(dict(entry.info.metadata))),
)


# -- refs: branches and tags


class _Ref(NamedTuple):
    kind: str
    name: str
    target: Any
    info: Any


def _fetch_refs(source: SnapshotSource, _: ReadOptions) -> Iterator[_Ref]:
    refs = source.open_session().connection.refs.pin()
    for kind, targets in (("BRANCH", refs.fetch_branches()), ("TAG", refs.fetch_tags())):
        for name, target in sorted(targets.items()):
            yield _Ref(kind, name, target, refs.fetch_snapshot_info(target))


REFS: Final = RecordTable[_Ref](
    _fetch_refs,
    Column("name", TEXT, lambda ref: ref.name),
    Column("type", TEXT, lambda ref: ref.kind),
    Column("snapshot_id", TEXT, lambda ref: str(ref.target)),
    Column("committed_at", TIMESTAMP, lambda ref: ref.info.flushed_at),
    Column("message", TEXT, lambda ref: ref.info.message),
)


# -- ops_log: changes of the repository, newest first (spec version 2)


class _Operation(NamedTuple):
    update: Update
    details: dict[str, Any]


def _fetch_operations(source: SnapshotSource, _: ReadOptions) -> Iterator[_Operation]:
    for update in source.repository.ops_log():
        kind: Any = update.kind
        details = {field.name: getattr(kind, field.name) for field in fields(kind)}
        yield _Operation(update, {name: _to_json_value(value) for name, value in details.items()})


def _to_json_value(value: Any) -> Any:
    return value if value is None or isinstance(value, (int, str)) else str(value)


OPS_LOG: Final = RecordTable[_Operation](
    _fetch_operations,
    Column("updated_at", TIMESTAMP, lambda op: op.update.updated_at),
    Column("operation", TEXT, lambda op: type(op.update.kind).__name__),
    Column("ref", TEXT, lambda op: op.details.get("branch", op.details.get("name"))),
    Column("snapshot_id", TEXT, lambda op: op.details.get("new_snap_id")),
    Column("previous_snapshot_id", TEXT, lambda op: op.details.get("previous_snap_id")),
    Column("details", TEXT, lambda op: to_json(op.details)),
    Column("backup_path", TEXT, lambda op: op.update.backup_path),
)
