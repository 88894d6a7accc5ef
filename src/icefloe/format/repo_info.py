"""Codec of the file ``repo`` of generation v2 (Icechunk schema `repo.fbs`).

Layout of the files that are written here::

    root, status, metadata, refs, configuration
    vector of the ops log, its newest entry
    vector of snapshots
    tables of snapshots and of older entries of the ops log

A file that follows another one copies the last part as bytes and appends to it, so that the work
does not grow with history. The newest entry of the ops log is not in that part, because the next
file adds a backup path to it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format import config_flexbuffers, schema
from icefloe.format.direct_writer import UNFIT, DirectWriter, TableLayout
from icefloe.format.encoded_history import (
    HISTORY_ALIGN,
    NO_PARENT,
    SPEC_VERSION,
    EncodedHistory,
    EncodedSnapshots,
    EncodedUpdates,
    HistoryColumns,
    read_id,
)
from icefloe.format.envelope import (
    DEFAULT_LEVEL,
    MAX_FLATBUFFER_SIZE,
    FileType,
    pack,
    unpack,
)
from icefloe.format.flatbuffer_reader import FlatBuffer, Tables
from icefloe.format.flatbuffer_writer import Layout
from icefloe.format.ids import to_id_rows, to_ids
from icefloe.format.keys import REPO
from icefloe.format.metadata import add_metadata, read_table_metadata, require_ascending
from icefloe.format.ops_log import read_status, write_status, write_update
from icefloe.format.size_choice import is_small
from icefloe.format.timestamps import to_microseconds
from icefloe.model import repo_info as model
from icefloe.model.id_columns import to_sort_keys
from icefloe.model.ids import SnapshotId
from icefloe.model.strings import Strings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.format.direct_reader import DirectTable
    from icefloe.format.schema import Field
    from icefloe.model.snapshot import SnapshotInfo

    Refs = Mapping[str, SnapshotId]

_R, _S = schema.Repo, schema.SnapshotInfo
_REF = TableLayout(schema.Ref.NAME, schema.Ref.SNAPSHOT_INDEX)
_FLAG = Struct("<H")
_SNAPSHOT_FIELDS = (_S.ID, _S.PARENT_OFFSET, _S.FLUSHED_AT, _S.MESSAGE, _S.METADATA)
_SNAPSHOT = TableLayout(*_SNAPSHOT_FIELDS)
_PRUNED_SNAPSHOT = TableLayout(*_SNAPSHOT_FIELDS, _S.PRUNED_ANCESTOR_TX_LOGS)
_PARENT_OFFSET = _SNAPSHOT.offsets[_S.PARENT_OFFSET]  # equal in both
_NO_POSITIONS = np.zeros(0, np.int64)
_NO_HISTORY = HistoryColumns(
    0,
    np.zeros((0, SnapshotId.SIZE), np.uint8),
    _NO_POSITIONS,
    _NO_POSITIONS,
    _NO_POSITIONS,
    _NO_POSITIONS,
)


def decode_repo_info(data: bytes | memoryview, file: str) -> model.RepoInfo:
    """Decode the file ``repo``, or one of its backups; snapshots and updates on access."""
    header, body = unpack(data, FileType.REPO_INFO, file)
    if header.spec_version != SPEC_VERSION:
        raise _spec_version_error(file, header.spec_version, "header")
    history = EncodedHistory(body, file)
    root = history.get_root()
    spec_version = root.read_scalar(_R.SPEC_VERSION)
    if spec_version != SPEC_VERSION:
        raise _spec_version_error(file, spec_version, "content")
    _, num_snapshots = root.find_vector(_R.SNAPSHOTS, 4) or (0, 0)
    _, num_updates = root.find_vector(_R.LATEST_UPDATES, 4) or (0, 0)
    branches = _read_refs(root, _R.BRANCHES)
    if "main" not in branches:
        root.buffer.fail("has no branch main")
    blob = root.read_blob(_R.CONFIG, required=False)
    return model.RepoInfo(
        spec_version=spec_version,
        branches=branches,
        tags=_read_refs(root, _R.TAGS),
        deleted_tags=_read_deleted_tags(root),
        snapshots=EncodedSnapshots(history, num_snapshots),
        status=read_status(root.get_table(_R.STATUS, "RepoStatus")),
        latest_updates=EncodedUpdates(history, num_updates),
        metadata=read_table_metadata(root, _R.METADATA, SPEC_VERSION, required=False),
        repo_before_updates=root.read_string(_R.REPO_BEFORE_UPDATES, required=False),
        config=config_flexbuffers.loads(blob, file=file) if blob else None,
        enabled_feature_flags=_read_flags(root, _R.ENABLED_FEATURE_FLAGS),
        disabled_feature_flags=_read_flags(root, _R.DISABLED_FEATURE_FLAGS),
    )


def _spec_version_error(file: str, spec_version: int, part: str) -> FormatError:
    return FormatError(
        f"has spec version {spec_version} in its {part}; expected {SPEC_VERSION}",
        file=file,
        kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
    )


def _read_refs(root: DirectTable, field: Field) -> dict[str, SnapshotId]:
    _, count = root.find_vector(field, 4) or (0, 0)
    if is_small(count):
        refs = root.get_tables(field, "Ref")
        names = [ref.read_string(schema.Ref.NAME) or "" for ref in refs]
        rows = [ref.read_scalar(schema.Ref.SNAPSHOT_INDEX) for ref in refs]
        _, num_snapshots = root.find_vector(_R.SNAPSHOTS, 4) or (0, 0)
        if max(rows, default=-1) >= num_snapshots:
            raise _missing_target_error(root, field)
        ids = [SnapshotId(read_id(root, row)) for row in rows]
    else:
        names, ids = _read_many_refs(root, field)
    require_ascending(names, field.name, root.buffer.file)
    return dict(zip(names, ids, strict=True))


def _missing_target_error(root: DirectTable, field: Field) -> FormatError:
    return FormatError(f"has a ref in {field.name} to a missing snapshot", file=root.buffer.file)


def _read_many_refs(root: DirectTable, field: Field) -> tuple[list[str], list[SnapshotId]]:
    columns = FlatBuffer(root.data, root.buffer.file).get_root("Repo")
    _, refs = columns.get_children(field, "Ref")
    names = [name or "" for name in refs.read_texts(schema.Ref.NAME)]
    rows = refs.read_scalars(schema.Ref.SNAPSHOT_INDEX).astype(np.int64)
    _, snapshots = columns.find_children(_R.SNAPSHOTS)
    if (rows >= len(snapshots)).any():
        raise _missing_target_error(root, field)
    targets = Tables(columns.buffer, snapshots[rows], "SnapshotInfo")
    return names, to_ids(targets.read_structs(_S.ID), SnapshotId)


def _read_deleted_tags(root: DirectTable) -> frozenset[str]:
    _, count = root.find_vector(_R.DELETED_TAGS, 4) or (0, 0)
    if not count:
        return frozenset()
    columns = FlatBuffer(root.data, root.buffer.file).get_root("Repo")
    names = columns.read_string_vector(_R.DELETED_TAGS)
    require_ascending(names, _R.DELETED_TAGS.name, root.buffer.file)
    return frozenset(names)


def _read_flags(root: DirectTable, field: Field) -> frozenset[int]:
    if not root.has(field):
        return frozenset()
    flags = [flag for (flag,) in root.read_items(field, _FLAG, align=2)]
    if any(flag >= following for flag, following in pairwise(flags)):
        root.buffer.fail(f"its {field.name} must be sorted, without duplicates")
    return frozenset(flags)


def encode_repo_info(info: model.RepoInfo, *, level: int = DEFAULT_LEVEL) -> bytes:
    """Encode the file ``repo``, with refs, snapshots and feature flags sorted."""
    return rewrite_repo_info(info, level=level)[1]


def rewrite_repo_info(
    info: model.RepoInfo, *, level: int = DEFAULT_LEVEL
) -> tuple[model.RepoInfo, bytes]:
    """Return the same state, but with the snapshots and updates of a new file, and that file.

    If the snapshots and updates are those of another file and some more, their tables are copied.
    """
    if info.spec_version != SPEC_VERSION:
        raise FormatError(
            f"expected spec version {SPEC_VERSION}, got {info.spec_version}",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    try:
        history = _write(info)
    except UNFIT as error:
        raise InvalidInputError(
            f"the repository info has a value that cannot be stored ({error})",
            kind=ErrorKind.SERIALIZATION,
        ) from error
    data = pack(
        [history.body],
        len(history.body),
        file_type=FileType.REPO_INFO,
        spec_version=SPEC_VERSION,
        level=level,
    )
    rewritten = replace(
        info,
        snapshots=EncodedSnapshots(history, len(info.snapshots)),
        latest_updates=EncodedUpdates(history, len(info.latest_updates)),
    )
    return rewritten, data


def _write(info: model.RepoInfo) -> EncodedHistory:
    base, added, head, num_replaced = _split_history(info)
    old = _NO_HISTORY if base is None else base.columns
    added = sorted(added, key=lambda snapshot: snapshot.id.raw)
    added_ids = to_id_rows([snapshot.id for snapshot in added], SnapshotId)
    insertions = np.searchsorted(to_sort_keys(old.ids), to_sort_keys(added_ids))
    # The rows of the snapshots of both, one after the other, in the order of ids.
    order = np.insert(np.arange(len(old.ids)), insertions, len(old.ids) + np.arange(len(added)))
    rows = _Rows(np.concatenate([old.ids, added_ids])[order])
    rows.require_distinct(added_ids)

    writer = DirectWriter()
    root, layout = _write_root(writer, info, rows)
    old_updates = old.updates[num_replaced - 1 :]
    updates_vector = writer.add_pointers(len(head) + len(old_updates))
    newest = [write_update(writer, entry) for entry in head[:1]]
    snapshots_vector = writer.add_pointers(len(rows))
    writer.point_field(root, layout, _R.LATEST_UPDATES, updates_vector)
    writer.point_field(root, layout, _R.SNAPSHOTS, snapshots_vector)
    writer.point(0, root)

    start = writer.align(HISTORY_ALIGN)
    if base is not None:
        writer.out += memoryview(base.body)[old.start :]
    shift = start - old.start
    snapshots = old.snapshots + shift
    parent_fields = old.parent_fields + shift
    # Icechunk omits parents that are 0, whose numbers may change, so those tables are rewritten.
    for row in np.flatnonzero(old.parent_fields == 0).tolist():
        snapshots[row] = _write_snapshot(writer, info.snapshots[row])
        parent_fields[row] = snapshots[row] + _PARENT_OFFSET
    parents = old.parents + np.searchsorted(insertions, old.parents, side="right")
    new_parents = rows.find([snapshot.parent_id for snapshot in added])
    new_snapshots = np.array([_write_snapshot(writer, snapshot) for snapshot in added], np.int64)
    new_updates = np.array([write_update(writer, entry) for entry in head[1:]], np.int64)
    columns = HistoryColumns(
        start,
        rows.ids,
        np.concatenate([snapshots, new_snapshots])[order],
        np.concatenate([parents, new_parents])[order],
        np.concatenate([parent_fields, new_snapshots + _PARENT_OFFSET])[order],
        np.concatenate([new_updates, old_updates + shift]),
    )
    writer.set_numbers(columns.parent_fields, columns.parents)
    writer.set_pointers(snapshots_vector, columns.snapshots)
    writer.set_pointers(updates_vector, np.concatenate([newest, columns.updates]))
    if len(writer.out) > MAX_FLATBUFFER_SIZE:
        raise FormatError(
            f"the repository info with {len(rows)} snapshots would exceed 2 GiB, the maximum of a "
            "metadata file: expire snapshots and collect garbage",
            kind=ErrorKind.SERIALIZATION,
        )
    return EncodedHistory(bytes(writer.out), REPO, columns)


def _split_history(
    info: model.RepoInfo,
) -> tuple[EncodedHistory | None, Sequence[SnapshotInfo], Sequence[model.OpsLogEntry], int]:
    """Return the file to copy from, the snapshots and entries to add, and those to leave out.

    Without a file to copy from, all snapshots and entries are added.
    """
    snapshots, updates = info.snapshots, info.latest_updates
    if (
        isinstance(snapshots, EncodedSnapshots)
        and isinstance(updates, EncodedUpdates)
        and snapshots.history is updates.history
        and updates.num_replaced
    ):
        return snapshots.history, snapshots.added, updates.head, updates.num_replaced
    return None, tuple(snapshots), tuple(updates), 1


class _Rows:
    """Finds the rows of snapshots by id."""

    def __init__(self, ids: NDArray[np.uint8]) -> None:
        self.ids = ids
        self._keys = to_sort_keys(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def require_distinct(self, ids: NDArray[np.uint8]) -> None:
        """Raise if one of the ids occurs twice."""
        keys = to_sort_keys(ids)
        first, last = (np.searchsorted(self._keys, keys, side) for side in ("left", "right"))
        if (last - first > 1).any():
            raise FormatError(
                "the repository info has duplicate snapshot ids",
                kind=ErrorKind.DUPLICATE_SNAPSHOT_ID,
            )

    def find(self, ids: Sequence[SnapshotId | None]) -> NDArray[np.int64]:
        """Return the rows of snapshots, `NO_PARENT` for None; raise if a snapshot is missing."""
        present = [snapshot_id for snapshot_id in ids if snapshot_id is not None]
        keys = to_sort_keys(to_id_rows(present, SnapshotId))
        found = np.searchsorted(self._keys, keys)
        is_missing = (
            self._keys[np.minimum(found, len(self) - 1)] != keys if len(self) else keys != b""
        )
        if is_missing.any():
            names = sorted({f"snapshot {present[row]}" for row in np.flatnonzero(is_missing)})
            raise _missing_error(", ".join(names))
        rows = np.full(len(ids), NO_PARENT, np.int64)
        rows[[snapshot_id is not None for snapshot_id in ids]] = found
        return rows


def _missing_error(what: str) -> FormatError:
    return FormatError(f"the repository info lacks {what}", kind=ErrorKind.SERIALIZATION)


@lru_cache
def _make_root_layout(*optional: Field) -> TableLayout:
    fields = (_R.TAGS, _R.BRANCHES, _R.DELETED_TAGS, _R.SNAPSHOTS, _R.STATUS, _R.METADATA)
    return TableLayout(_R.SPEC_VERSION, *fields, _R.LATEST_UPDATES, *optional)


def _write_root(writer: DirectWriter, info: model.RepoInfo, rows: _Rows) -> tuple[int, TableLayout]:
    """Write the root and everything but snapshots and updates; return its position."""
    if "main" not in info.branches:
        raise _missing_error("branch main")
    optional = {
        _R.REPO_BEFORE_UPDATES: info.repo_before_updates is not None,
        _R.CONFIG: info.config is not None,
        _R.ENABLED_FEATURE_FLAGS: bool(info.enabled_feature_flags),
        _R.DISABLED_FEATURE_FLAGS: bool(info.disabled_feature_flags),
    }
    present = [field for field, is_present in optional.items() if is_present]
    layout = _make_root_layout(*present)
    root = writer.add_table(layout, SPEC_VERSION, *[0] * (7 + len(present)))

    def point(field: Field, target: int) -> None:
        writer.point_field(root, layout, field, target)

    point(_R.STATUS, write_status(writer, info.status))
    point(_R.METADATA, add_metadata(writer, info.metadata, SPEC_VERSION))
    point(_R.TAGS, _write_refs(writer, info.tags, rows))
    point(_R.BRANCHES, _write_refs(writer, info.branches, rows))
    names = writer.add_pointers(len(info.deleted_tags))
    point(_R.DELETED_TAGS, names)
    writer.point_items(names, [writer.add_blob(tag.encode()) for tag in sorted(info.deleted_tags)])
    if info.repo_before_updates is not None:
        point(_R.REPO_BEFORE_UPDATES, writer.add_blob(info.repo_before_updates.encode()))
    if info.config is not None:
        point(_R.CONFIG, writer.add_blob(config_flexbuffers.dumps(info.config)))
    for field, flags in (
        (_R.ENABLED_FEATURE_FLAGS, info.enabled_feature_flags),
        (_R.DISABLED_FEATURE_FLAGS, info.disabled_feature_flags),
    ):
        if flags:
            data = b"".join([_FLAG.pack(flag) for flag in sorted(flags)])
            point(field, writer.add_items(len(flags), data))
    return root, layout


def _write_refs(writer: DirectWriter, refs: Refs, rows: _Rows) -> int:
    names = sorted(refs)
    targets = rows.find([refs[name] for name in names])
    table = schema.Ref
    if is_small(len(names)):
        vector = writer.add_pointers(len(names))
        tables = [writer.add_table(_REF, 0, row) for row in targets.tolist()]
        writer.point_items(vector, tables)
        for position, name in zip(tables, names, strict=True):
            writer.point_field(position, _REF, table.NAME, writer.add_blob(name.encode()))
        return vector
    layout = Layout("the refs", existing_size=len(writer.out))
    vectors, records = layout.add_table_vectors([len(names)], [table.NAME, table.SNAPSHOT_INDEX])
    records.point(table.NAME, layout.add_blobs(Strings.of(names)))
    records.fill(table.SNAPSHOT_INDEX, targets)
    for piece in layout.iter_pieces():
        writer.out += piece
    return int(vectors[0])


def _write_snapshot(writer: DirectWriter, info: SnapshotInfo) -> int:
    """Write a snapshot without its parent; return its position."""
    logs = info.pruned_ancestor_tx_logs
    # Snapshots without pruned ancestors omit the field instead of writing an empty vector.
    layout = _PRUNED_SNAPSHOT if logs else _SNAPSHOT
    values = [info.id.raw, 0, to_microseconds(info.flushed_at), *[0] * (3 if logs else 2)]
    position = writer.add_table(layout, *values)
    writer.point_field(position, layout, _S.MESSAGE, writer.add_blob(info.message.encode()))
    metadata = add_metadata(writer, info.metadata, SPEC_VERSION)
    writer.point_field(position, layout, _S.METADATA, metadata)
    if logs:
        vector = writer.add_items(len(logs), b"".join([log.raw for log in logs]))
        writer.point_field(position, layout, _S.PRUNED_ANCESTOR_TX_LOGS, vector)
    return position
