"""Codec of the entries of the ops log in the file ``repo`` (Icechunk schema `repo.fbs`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from icefloe.errors import FormatError
from icefloe.format import schema
from icefloe.format.direct_writer import TableLayout
from icefloe.format.schema import Field
from icefloe.format.timestamps import from_microseconds, to_microseconds
from icefloe.model import repo_info as model
from icefloe.model.ids import SnapshotId

if TYPE_CHECKING:
    from icefloe.format.direct_reader import DirectTable
    from icefloe.format.direct_writer import DirectWriter

_ID, _STRING, _STATUS = "id", "string", "status"
_U, _S = schema.Update, schema.RepoStatus


class _FieldKind(NamedTuple):
    field: Field
    encoding: str


class _UpdateKind:
    """The encoding of one kind of update: names and types of its fields, in slot order."""

    def __init__(self, kind: type[Any], *fields: tuple[str, str]) -> None:
        self.type = kind
        self.fields = [
            _FieldKind(_make_field(name, slot, encoding), encoding)
            for slot, (name, encoding) in enumerate(fields)
        ]
        self.layout = TableLayout(*[field for field, _ in self.fields])


def _make_field(name: str, slot: int, encoding: str) -> Field:
    if encoding == _ID:
        return Field(name, slot, "<u1", SnapshotId.SIZE)
    return Field(name, slot) if encoding in (_STRING, _STATUS) else Field(name, slot, encoding)


# In the order of their numbers in the flatbuffers union, which start at 1.
_KINDS = (
    _UpdateKind(model.RepoInitialized),
    _UpdateKind(model.RepoMigrated, ("from_version", "<u1"), ("to_version", "<u1")),
    _UpdateKind(model.ConfigChanged),
    _UpdateKind(model.MetadataChanged),
    _UpdateKind(model.TagCreated, ("name", _STRING)),
    _UpdateKind(model.TagDeleted, ("name", _STRING), ("previous_snap_id", _ID)),
    _UpdateKind(model.BranchCreated, ("name", _STRING)),
    _UpdateKind(model.BranchDeleted, ("name", _STRING), ("previous_snap_id", _ID)),
    _UpdateKind(model.BranchReset, ("name", _STRING), ("previous_snap_id", _ID)),
    _UpdateKind(model.NewCommit, ("branch", _STRING), ("new_snap_id", _ID)),
    _UpdateKind(
        model.CommitAmended, ("branch", _STRING), ("previous_snap_id", _ID), ("new_snap_id", _ID)
    ),
    _UpdateKind(model.NewDetachedSnapshot, ("new_snap_id", _ID)),
    _UpdateKind(model.GCRan),
    _UpdateKind(model.ExpirationRan),
    _UpdateKind(model.FeatureFlagChanged, ("id", "<u2"), ("new_value", "<u1"), ("is_set", "<u1")),
    _UpdateKind(model.RepoStatusChanged, ("status", _STATUS)),
)
_CODES = {kind.type: code for code, kind in enumerate(_KINDS, 1)}
STATUS_CHANGED, STATUS_FIELD = _CODES[model.RepoStatusChanged], _KINDS[-1].fields[0].field
"""The number of the only kind that refers to another table, and the field that does."""

_UPDATE = TableLayout(_U.UPDATE_TYPE_TYPE, _U.UPDATED_AT, _U.UPDATE_TYPE)
_SAVED_UPDATE = TableLayout(_U.UPDATE_TYPE_TYPE, _U.UPDATED_AT, _U.UPDATE_TYPE, _U.BACKUP_PATH)
_STATUS_TABLE = TableLayout(_S.AVAILABILITY, _S.SET_AT)
_LIMITED_STATUS_TABLE = TableLayout(_S.AVAILABILITY, _S.SET_AT, _S.LIMITED_AVAILABILITY_REASON)


def read_update(table: DirectTable) -> model.OpsLogEntry:
    """Read an entry."""
    backup_path = table.read_string(_U.BACKUP_PATH, required=False)
    updated_at = from_microseconds(table.read_scalar(_U.UPDATED_AT), table.buffer.file)
    kind = _get_kind(table)
    fields = table.get_table(_U.UPDATE_TYPE, kind.type.__name__)
    values = [_read_value(fields, field, encoding) for field, encoding in kind.fields]
    if kind.type is model.FeatureFlagChanged:
        flag, value, is_set = values
        values = [flag, bool(value) if is_set else None]
    return model.OpsLogEntry(kind.type(*values), updated_at, backup_path)


def _get_kind(table: DirectTable) -> _UpdateKind:
    code = table.read_scalar(_U.UPDATE_TYPE_TYPE)
    if not 0 < code <= len(_KINDS):
        table.buffer.fail(f"its ops log has an update of the unknown kind {code}: upgrade icefloe")
    return _KINDS[code - 1]


def _read_value(table: DirectTable, field: Field, encoding: str) -> Any:
    if encoding == _STRING:
        return table.read_string(field)
    if encoding == _ID:
        return SnapshotId(table.read_struct(field))
    if encoding == _STATUS:
        return read_status(table.get_table(field, "RepoStatus"))
    return table.read_scalar(field)


def read_status(table: DirectTable) -> model.RepoStatus:
    """Read the status of a repository."""
    try:
        availability = model.RepoAvailability(table.read_scalar(_S.AVAILABILITY))
    except ValueError as error:
        raise FormatError(f"has an unknown status ({error})", file=table.buffer.file) from error
    set_at = from_microseconds(table.read_scalar(_S.SET_AT), table.buffer.file)
    reason = table.read_string(_S.LIMITED_AVAILABILITY_REASON, required=False)
    return model.RepoStatus(availability, set_at, reason)


def write_update(writer: DirectWriter, entry: model.OpsLogEntry) -> int:
    """Write an entry; return the position of its table."""
    code = _CODES[type(entry.kind)]
    kind = _KINDS[code - 1]
    time = to_microseconds(entry.updated_at)
    if entry.backup_path is None:
        layout, position = _UPDATE, writer.add_table(_UPDATE, code, time, 0)
    else:
        layout, position = _SAVED_UPDATE, writer.add_table(_SAVED_UPDATE, code, time, 0, 0)
        path = writer.add_blob(entry.backup_path.encode())
        writer.point_field(position, layout, _U.BACKUP_PATH, path)
    values = [_get_value(entry.kind, field.name) for field, _ in kind.fields]
    fields = writer.add_table(
        kind.layout,
        *[
            _get_inline(value, item.encoding)
            for value, item in zip(values, kind.fields, strict=True)
        ],
    )
    writer.point_field(position, layout, _U.UPDATE_TYPE, fields)
    for value, (field, encoding) in zip(values, kind.fields, strict=True):
        if encoding == _STRING:
            writer.point_field(fields, kind.layout, field, writer.add_blob(value.encode()))
        elif encoding == _STATUS:
            writer.point_field(fields, kind.layout, field, write_status(writer, value))
    return position


def _get_inline(value: Any, encoding: str) -> Any:
    if encoding == _ID:
        return value.raw
    return 0 if encoding in (_STRING, _STATUS) else value


def write_status(writer: DirectWriter, status: model.RepoStatus) -> int:
    """Write the status of a repository; return the position of its table."""
    time, reason = to_microseconds(status.set_at), status.limited_availability_reason
    if reason is None:
        return writer.add_table(_STATUS_TABLE, status.availability, time)
    position = writer.add_table(_LIMITED_STATUS_TABLE, status.availability, time, 0)
    field = _S.LIMITED_AVAILABILITY_REASON
    writer.point_field(position, _LIMITED_STATUS_TABLE, field, writer.add_blob(reason.encode()))
    return position


def _get_value(kind: model.UpdateType, name: str) -> Any:
    if isinstance(kind, model.FeatureFlagChanged):
        if name == "is_set":
            return kind.new_value is not None
        if name == "new_value":
            return bool(kind.new_value)
    return getattr(kind, name)
