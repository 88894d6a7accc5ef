"""Codec of the file ``repo`` of generation v2 (Icechunk schema `repo.fbs`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icefloe.errors import ErrorKind, FormatError
from icefloe.format import config_flexbuffers, schema
from icefloe.format.envelope import DEFAULT_LEVEL, FileType, unpack
from icefloe.format.flatbuffer_reader import FlatBuffer
from icefloe.format.flatbuffer_writer import Layout, assign
from icefloe.format.ids import to_id_rows, to_ids
from icefloe.format.metadata import read_metadata, require_ascending, write_metadata
from icefloe.format.schema import Field
from icefloe.format.timestamps import from_microseconds, to_microseconds
from icefloe.model import repo_info as model
from icefloe.model.ids import SnapshotId
from icefloe.model.snapshot import SnapshotInfo
from icefloe.model.strings import Strings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.format.flatbuffer_reader import Tables
    from icefloe.format.flatbuffer_writer import Records

    Refs = Mapping[str, SnapshotId]
    Snapshots = Sequence[SnapshotInfo]

SPEC_VERSION = 2
_NO_PARENT = -1

_ID, _STRING, _STATUS = "id", "string", "status"


class _UpdateKind(NamedTuple):
    """The encoding of one kind of update: names and types of its fields, in slot order."""

    type: type[Any]
    fields: tuple[tuple[str, str], ...] = ()

    def iter_fields(self) -> Iterator[tuple[Field, str]]:
        for slot, (name, encoding) in enumerate(self.fields):
            if encoding == _ID:
                yield Field(name, slot, "<u1", SnapshotId.SIZE), encoding
            elif encoding in (_STRING, _STATUS):
                yield Field(name, slot), encoding
            else:
                yield Field(name, slot, encoding), encoding


# In the order of their numbers in the flatbuffers union, which start at 1.
_UPDATE_KINDS = (
    _UpdateKind(model.RepoInitialized),
    _UpdateKind(model.RepoMigrated, (("from_version", "<u1"), ("to_version", "<u1"))),
    _UpdateKind(model.ConfigChanged),
    _UpdateKind(model.MetadataChanged),
    _UpdateKind(model.TagCreated, (("name", _STRING),)),
    _UpdateKind(model.TagDeleted, (("name", _STRING), ("previous_snap_id", _ID))),
    _UpdateKind(model.BranchCreated, (("name", _STRING),)),
    _UpdateKind(model.BranchDeleted, (("name", _STRING), ("previous_snap_id", _ID))),
    _UpdateKind(model.BranchReset, (("name", _STRING), ("previous_snap_id", _ID))),
    _UpdateKind(model.NewCommit, (("branch", _STRING), ("new_snap_id", _ID))),
    _UpdateKind(
        model.CommitAmended, (("branch", _STRING), ("previous_snap_id", _ID), ("new_snap_id", _ID))
    ),
    _UpdateKind(model.NewDetachedSnapshot, (("new_snap_id", _ID),)),
    _UpdateKind(model.GCRan),
    _UpdateKind(model.ExpirationRan),
    _UpdateKind(model.FeatureFlagChanged, (("id", "<u2"), ("new_value", "<u1"), ("is_set", "<u1"))),
    _UpdateKind(model.RepoStatusChanged, (("status", _STATUS),)),
)


def decode_repo_info(data: bytes | memoryview, file: str) -> model.RepoInfo:
    """Decode the file ``repo``, or one of its backups."""
    header, body = unpack(data, FileType.REPO_INFO, file)
    root = FlatBuffer(body, file).get_root("Repo")
    table = schema.Repo
    spec_version = int(root.read_scalars(table.SPEC_VERSION)[0])
    if header.spec_version != SPEC_VERSION or spec_version != SPEC_VERSION:
        raise FormatError(
            f"has spec version {header.spec_version} in its header, {spec_version} in its content; "
            f"expected {SPEC_VERSION}",
            file=file,
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    snapshots = _read_snapshots(root, header.spec_version)
    branches = _read_refs(root, table.BRANCHES, snapshots)
    if "main" not in branches:
        root.buffer.fail("has no branch main")
    deleted_tags = root.read_string_vector(table.DELETED_TAGS)
    require_ascending(deleted_tags, table.DELETED_TAGS.name, file)
    return model.RepoInfo(
        spec_version=spec_version,
        branches=branches,
        tags=_read_refs(root, table.TAGS, snapshots),
        deleted_tags=frozenset(deleted_tags),
        snapshots=snapshots,
        status=_read_statuses(root.get_tables(table.STATUS, "RepoStatus"))[0],
        latest_updates=_read_updates(root),
        metadata=read_metadata(root, table.METADATA, header.spec_version, required=False)[0],
        repo_before_updates=root.read_texts(table.REPO_BEFORE_UPDATES, required=False)[0],
        config=_read_config(root),
        enabled_feature_flags=_read_flags(root, table.ENABLED_FEATURE_FLAGS),
        disabled_feature_flags=_read_flags(root, table.DISABLED_FEATURE_FLAGS),
    )


def _read_snapshots(root: Tables, spec_version: int) -> tuple[SnapshotInfo, ...]:
    table, file = schema.SnapshotInfo, root.buffer.file
    _, infos = root.get_children(schema.Repo.SNAPSHOTS, "SnapshotInfo")
    id_rows = infos.read_structs(table.ID)
    root.buffer.require_ascending(id_rows, "snapshots")
    parents = infos.read_scalars(table.PARENT_OFFSET).astype(np.int64)
    _require_ancestry(root.buffer, parents)
    ids = to_ids(id_rows, SnapshotId)
    field = table.PRUNED_ANCESTOR_TX_LOGS
    splits, pruned_id_rows = infos.read_id_vectors(field, SnapshotId.SIZE, required=False)
    pruned_ids = to_ids(pruned_id_rows, SnapshotId)
    times = infos.read_scalars(table.FLUSHED_AT).tolist()
    messages = infos.read_texts(table.MESSAGE)
    metadata = read_metadata(infos, table.METADATA, spec_version, required=False)
    return tuple(
        SnapshotInfo(
            snapshot_id,
            ids[parent] if parent >= 0 else None,
            from_microseconds(times[row], file),
            messages[row] or "",
            metadata[row],
            tuple(pruned_ids[splits[row] : splits[row + 1]]),
        )
        for row, (snapshot_id, parent) in enumerate(zip(ids, parents.tolist(), strict=True))
    )


def _require_ancestry(buffer: FlatBuffer, parents: NDArray[np.int64]) -> None:
    """Raise if the parents of snapshots form a cycle or are out of range."""
    num_snapshots = len(parents)
    if ((parents < _NO_PARENT) | (parents >= num_snapshots)).any():
        buffer.fail("has a snapshot whose parent is not in the list of snapshots")
    # Pointer doubling: each round doubles the number of steps. A path ends in a cycle, or in the
    # appended entry `num_snapshots`, which stands for no parent and points to itself.
    ancestors = np.append(np.where(parents == _NO_PARENT, num_snapshots, parents), num_snapshots)
    for _ in range(num_snapshots.bit_length()):
        ancestors = ancestors[ancestors]
    if (ancestors != num_snapshots).any():
        buffer.fail("has a snapshot that is its own ancestor")


def _read_refs(root: Tables, field: Field, snapshots: Snapshots) -> dict[str, SnapshotId]:
    _, refs = root.get_children(field, "Ref")
    names = [name or "" for name in refs.read_texts(schema.Ref.NAME)]
    require_ascending(names, field.name, root.buffer.file)
    positions = refs.read_scalars(schema.Ref.SNAPSHOT_INDEX)
    if (positions >= len(snapshots)).any():
        root.buffer.fail(f"has a ref in {field.name} to a missing snapshot")
    return {name: snapshots[position].id for name, position in zip(names, positions, strict=True)}


def _read_statuses(tables: Tables) -> list[model.RepoStatus]:
    table, file = schema.RepoStatus, tables.buffer.file
    numbers = tables.read_scalars(table.AVAILABILITY).tolist()
    times = [from_microseconds(time, file) for time in tables.read_scalars(table.SET_AT).tolist()]
    reasons = tables.read_texts(table.LIMITED_AVAILABILITY_REASON, required=False)
    try:
        availabilities = [model.RepoAvailability(number) for number in numbers]
        return list(map(model.RepoStatus, availabilities, times, reasons))
    except ValueError as error:
        raise FormatError(f"has an unknown status ({error})", file=file) from error


def _read_updates(root: Tables) -> tuple[model.OpsLogEntry, ...]:
    table, file = schema.Update, root.buffer.file
    _, updates = root.get_children(schema.Repo.LATEST_UPDATES, "Update")
    codes = updates.read_scalars(table.UPDATE_TYPE_TYPE)
    updates_by_row: dict[int, model.UpdateType] = {}
    for code, kind in enumerate(_UPDATE_KINDS, 1):
        rows = np.flatnonzero(codes == code)
        if len(rows):
            tables = updates.get_tables(table.UPDATE_TYPE, kind.type.__name__, rows)
            updates_by_row.update(zip(rows.tolist(), _read_update_kind(tables, kind), strict=True))
    if len(updates_by_row) < len(updates):
        code = next(int(code) for row, code in enumerate(codes) if row not in updates_by_row)
        root.buffer.fail(f"its ops log has an update of the unknown kind {code}: upgrade icefloe")
    times = updates.read_scalars(table.UPDATED_AT).tolist()
    return tuple(
        model.OpsLogEntry(updates_by_row[row], from_microseconds(times[row], file), backup_path)
        for row, backup_path in enumerate(updates.read_texts(table.BACKUP_PATH, required=False))
    )


def _read_update_kind(tables: Tables, kind: _UpdateKind) -> list[model.UpdateType]:
    columns: list[list[Any]] = []
    for field, encoding in kind.iter_fields():
        if encoding == _STRING:
            columns.append(tables.read_texts(field))
        elif encoding == _ID:
            columns.append(to_ids(tables.read_structs(field), SnapshotId))
        elif encoding == _STATUS:
            columns.append(_read_statuses(tables.get_tables(field, "RepoStatus")))
        else:
            columns.append(tables.read_scalars(field).tolist())
    if kind.type is model.FeatureFlagChanged:
        return [
            model.FeatureFlagChanged(flag, bool(value) if is_set else None)
            for flag, value, is_set in zip(*columns, strict=True)
        ]
    if not columns:
        return [kind.type() for _ in range(len(tables))]
    return [kind.type(*values) for values in zip(*columns, strict=True)]


def _read_config(root: Tables) -> Any:
    span = root.find_vectors(schema.Repo.CONFIG, 1, required=False)
    if not span.present[0] or not span.count[0]:
        return None
    blob = root.buffer.copy_bytes(int(span.start[0]), int(span.count[0]))
    return config_flexbuffers.loads(blob, file=root.buffer.file)


def _read_flags(root: Tables, field: Field) -> frozenset[int]:
    _, flags = root.read_numbers(root.find_vectors(field, 2, required=False), "<u2")
    if not (flags[:-1] < flags[1:]).all():
        root.buffer.fail(f"its {field.name} must be sorted, without duplicates")
    return frozenset(flags.tolist())


def encode_repo_info(info: model.RepoInfo, *, level: int = DEFAULT_LEVEL) -> bytes:
    """Encode the file ``repo``, with refs, snapshots and feature flags sorted."""
    _require_consistency(info)
    layout = Layout(f"the repository info with {len(info.snapshots)} snapshots")
    table = schema.Repo
    optional_fields = {
        table.REPO_BEFORE_UPDATES: info.repo_before_updates is not None,
        table.CONFIG: info.config is not None,
        table.ENABLED_FEATURE_FLAGS: bool(info.enabled_feature_flags),
        table.DISABLED_FEATURE_FLAGS: bool(info.disabled_feature_flags),
    }
    fields = [table.SPEC_VERSION, table.TAGS, table.BRANCHES, table.DELETED_TAGS, table.SNAPSHOTS]
    fields += [table.STATUS, table.METADATA, table.LATEST_UPDATES]
    fields += [field for field, is_present in optional_fields.items() if is_present]
    root = layout.add_records(1, fields)
    root.fill(table.SPEC_VERSION, info.spec_version)
    root.point(table.STATUS, _write_statuses(layout, [info.status]))
    root.point(table.METADATA, write_metadata(layout, [info.metadata], SPEC_VERSION))
    snapshots = sorted(info.snapshots, key=lambda snapshot: snapshot.id.raw)
    positions = {snapshot.id: position for position, snapshot in enumerate(snapshots)}
    _write_refs(layout, root, table.TAGS, info.tags, positions)
    _write_refs(layout, root, table.BRANCHES, info.branches, positions)
    position, names = layout.add_pointers([len(info.deleted_tags)])
    root.point(table.DELETED_TAGS, position)
    names.set_targets(layout.add_blobs(Strings.of(sorted(info.deleted_tags))))
    _write_snapshots(layout, root, snapshots, positions)
    _write_updates(layout, root, info.latest_updates)
    if info.repo_before_updates is not None:
        text = Strings.of([info.repo_before_updates])
        root.point(table.REPO_BEFORE_UPDATES, layout.add_blobs(text))
    if info.config is not None:
        blob = Strings.of([config_flexbuffers.dumps(info.config)])
        root.point(table.CONFIG, layout.add_blobs(blob))
    for field, flags in (
        (table.ENABLED_FEATURE_FLAGS, info.enabled_feature_flags),
        (table.DISABLED_FEATURE_FLAGS, info.disabled_feature_flags),
    ):
        if flags:
            position, items = layout.add_vectors(np.array([len(flags)]), "<u2")
            assign(items, sorted(flags), field.name)
            root.point(field, position)
    return layout.pack(root, file_type=FileType.REPO_INFO, spec_version=SPEC_VERSION, level=level)


def _require_consistency(info: model.RepoInfo) -> None:
    """Raise for a wrong spec version, duplicate or missing snapshots, or a missing branch main."""
    if info.spec_version != SPEC_VERSION:
        raise FormatError(
            f"expected spec version {SPEC_VERSION}, got {info.spec_version}",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    ids = {snapshot.id for snapshot in info.snapshots}
    if len(ids) < len(info.snapshots):
        raise FormatError(
            "the repository info has duplicate snapshot ids", kind=ErrorKind.DUPLICATE_SNAPSHOT_ID
        )
    parents = (snapshot.parent_id for snapshot in info.snapshots)
    referenced = {*info.branches.values(), *info.tags.values(), *filter(None, parents)}
    if "main" not in info.branches or not referenced <= ids:
        missing = ", ".join(f"snapshot {id_}" for id_ in sorted(referenced - ids)) or "branch main"
        raise FormatError(f"the repository info lacks {missing}", kind=ErrorKind.SERIALIZATION)


def _write_statuses(layout: Layout, statuses: Sequence[model.RepoStatus]) -> NDArray[np.int64]:
    table = schema.RepoStatus
    fields = [table.AVAILABILITY, table.SET_AT, table.LIMITED_AVAILABILITY_REASON]
    records = layout.add_records(len(statuses), fields)
    records.fill(table.AVAILABILITY, [status.availability for status in statuses])
    records.fill(table.SET_AT, [to_microseconds(status.set_at) for status in statuses])
    reasons = [status.limited_availability_reason for status in statuses]
    _add_texts(layout, records, table.LIMITED_AVAILABILITY_REASON, reasons)
    return records.positions


def _add_texts(layout: Layout, records: Records, field: Field, texts: Sequence[str | None]) -> None:
    """Add each distinct text once and point a field to it; omit the field where a text is None."""
    codes, distinct = Strings.of([text or "" for text in texts]).unique()
    positions = layout.add_blobs(distinct)
    present = np.array([text is not None for text in texts], bool)
    records.point(field, positions[codes], None if present.all() else present)


def _write_refs(
    layout: Layout, root: Records, field: Field, refs: Refs, positions: Mapping[SnapshotId, int]
) -> None:
    table = schema.Ref
    items = sorted(refs.items())
    position, records = layout.add_table_vectors([len(items)], [table.NAME, table.SNAPSHOT_INDEX])
    root.point(field, position)
    _add_texts(layout, records, table.NAME, [name for name, _ in items])
    records.fill(table.SNAPSHOT_INDEX, [positions[snapshot_id] for _, snapshot_id in items])


def _write_snapshots(
    layout: Layout, root: Records, snapshots: Snapshots, positions: Mapping[SnapshotId, int]
) -> None:
    table = schema.SnapshotInfo
    fields = [table.ID, table.PARENT_OFFSET, table.FLUSHED_AT, table.MESSAGE, table.METADATA]
    fields.append(table.PRUNED_ANCESTOR_TX_LOGS)
    position, records = layout.add_table_vectors([len(snapshots)], fields)
    root.point(schema.Repo.SNAPSHOTS, position)
    records.fill(table.ID, to_id_rows([info.id for info in snapshots], SnapshotId))
    parents = [info.parent_id for info in snapshots]
    offsets = [_NO_PARENT if parent is None else positions[parent] for parent in parents]
    records.fill(table.PARENT_OFFSET, offsets)
    records.fill(table.FLUSHED_AT, [to_microseconds(info.flushed_at) for info in snapshots])
    _add_texts(layout, records, table.MESSAGE, [info.message for info in snapshots])
    metadata = write_metadata(layout, [info.metadata for info in snapshots], SPEC_VERSION)
    records.point(table.METADATA, metadata)
    counts = np.array([len(info.pruned_ancestor_tx_logs) for info in snapshots], np.int64)
    log_ids = [log_id for info in snapshots for log_id in info.pruned_ancestor_tx_logs]
    vectors = layout.add_id_vectors(counts, to_id_rows(log_ids, SnapshotId))
    # Snapshots without pruned ancestors omit the field instead of writing an empty vector.
    records.point(table.PRUNED_ANCESTOR_TX_LOGS, vectors, counts > 0)


def _write_updates(layout: Layout, root: Records, updates: Sequence[model.OpsLogEntry]) -> None:
    table = schema.Update
    fields = [table.UPDATE_TYPE_TYPE, table.UPDATE_TYPE, table.UPDATED_AT, table.BACKUP_PATH]
    position, records = layout.add_table_vectors([len(updates)], fields)
    root.point(schema.Repo.LATEST_UPDATES, position)
    records.fill(table.UPDATED_AT, [to_microseconds(update.updated_at) for update in updates])
    _add_texts(layout, records, table.BACKUP_PATH, [update.backup_path for update in updates])
    codes = np.zeros(len(updates), np.uint8)
    targets = np.zeros(len(updates), np.int64)
    for code, kind in enumerate(_UPDATE_KINDS, 1):
        rows = [row for row, update in enumerate(updates) if type(update.kind) is kind.type]
        codes[rows] = code
        targets[rows] = _write_update_kind(layout, kind, [updates[row].kind for row in rows])
    records.fill(table.UPDATE_TYPE_TYPE, codes)
    records.point(table.UPDATE_TYPE, targets)


def _write_update_kind(
    layout: Layout, kind: _UpdateKind, values: Sequence[model.UpdateType]
) -> NDArray[np.int64]:
    records = layout.add_records(len(values), [field for field, _ in kind.iter_fields()])
    for field, encoding in kind.iter_fields():
        items = [_get_field_value(value, field.name) for value in values]
        if encoding == _STRING:
            _add_texts(layout, records, field, items)
        elif encoding == _ID:
            records.fill(field, to_id_rows(items, SnapshotId))
        elif encoding == _STATUS:
            records.point(field, _write_statuses(layout, items))
        else:
            records.fill(field, items)
    return records.positions


def _get_field_value(value: model.UpdateType, name: str) -> Any:
    if isinstance(value, model.FeatureFlagChanged):
        if name == "is_set":
            return value.new_value is not None
        if name == "new_value":
            return bool(value.new_value)
    return getattr(value, name)
