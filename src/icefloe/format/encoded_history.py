"""Snapshots and ops log of a decompressed file ``repo``, decoded on access.

A change of a repository adds a snapshot, an entry of the ops log or neither, so `repo_info` copies
the tables of all others as bytes. `HistoryColumns` has what it needs for that: where the tables
are, and the parents of the snapshots, whose numbers change because snapshots are ordered by id.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import numpy as np

from icefloe.format import schema
from icefloe.format.direct_reader import DirectBuffer, DirectTable
from icefloe.format.flatbuffer_reader import FlatBuffer
from icefloe.format.ids import to_ids
from icefloe.format.metadata import read_metadata, read_table_metadata
from icefloe.format.ops_log import STATUS_CHANGED, STATUS_FIELD, read_update
from icefloe.format.timestamps import from_microseconds
from icefloe.model.ids import SnapshotId
from icefloe.model.lazy_history import LazySnapshots, LazyUpdates, SnapshotReader
from icefloe.model.snapshot import SnapshotInfo, SnapshotLinks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.format.flatbuffer_reader import Tables
    from icefloe.model.repo_info import OpsLogEntry

    PrunedLogs = dict[bytes, tuple[SnapshotId, ...]]

SPEC_VERSION: Final = 2
NO_PARENT: Final = -1
HISTORY_ALIGN: Final = 8
"""The alignment of the bytes that are copied, which contain numbers of eight bytes."""

_NUM_SINGLE_UPDATES: Final = 4
# Reading one snapshot costs as much as reading two to ten of all.
_MIN_SINGLE: Final = 16
_COUNT_PER_SINGLE: Final = 64
_S = schema.SnapshotInfo


class HistoryColumns(NamedTuple):
    """Tables of a file ``repo`` that can be copied to another one; positions are in the file.

    All bytes from ``start`` can be moved together: no pointer from there leads out. Snapshots are
    ordered by id. ``parent_fields`` are the positions of their parents, 0 if the field is absent.
    ``updates`` are the entries of the ops log except the newest, which later files write again.
    """

    start: int
    ids: NDArray[np.uint8]
    snapshots: NDArray[np.int64]
    parents: NDArray[np.int64]
    parent_fields: NDArray[np.int64]
    updates: NDArray[np.int64]


class EncodedHistory:
    """The snapshots and the ops log of a decompressed file ``repo``.

    ``columns`` are known if this process encoded the file; otherwise they are read, with all
    checks, when they are needed.
    """

    def __init__(self, body: bytes, file: str, columns: HistoryColumns | None = None) -> None:
        self.body, self.file = body, file
        if columns is not None:
            self.columns = columns

    def get_root(self) -> DirectTable:
        """Return the root table; its buffer remembers what was read."""
        return DirectBuffer(self.body, self.file).get_root("Repo")

    def get_root_columns(self) -> Tables:
        """Return the root table for the columnar reader."""
        return FlatBuffer(self.body, self.file).get_root("Repo")

    def read_parents(self) -> NDArray[np.int64]:
        """Read the row of the parent of each snapshot, or `NO_PARENT`; they form no cycle."""
        if "columns" in self.__dict__:
            return self.columns.parents
        _, infos = self.get_root_columns().get_children(schema.Repo.SNAPSHOTS, "SnapshotInfo")
        return _read_parents(infos)

    @cached_property
    def columns(self) -> HistoryColumns:
        """The positions of the tables, and the columns that later files need."""
        return _read_columns(self.get_root_columns())


class EncodedSnapshots(LazySnapshots):
    """The snapshots of a file, and those in ``added``.

    Access checks the snapshots that it decodes; iteration and `EncodedHistory.columns` check all.
    """

    def __init__(
        self, history: EncodedHistory, count: int, added: tuple[SnapshotInfo, ...] = ()
    ) -> None:
        self.history, self._count, self.added = history, count, added

    def __len__(self) -> int:
        return self._count + len(self.added)

    def get_item(self, row: int) -> SnapshotInfo:
        """Return the snapshot in a row."""
        if row < self._count:
            root = self.history.get_root()
            return _read_snapshot(root, _get_snapshot(root, row), {})
        return self.added[row - self._count]

    def __iter__(self) -> Iterator[SnapshotInfo]:
        return chain(_read_snapshots(self.history.get_root_columns()), self.added)

    def find_row(self, snapshot_id: SnapshotId) -> int | None:
        """Return the row of a snapshot, or None; a binary search in the file."""
        for row, snapshot in enumerate(self.added, self._count):
            if snapshot.id == snapshot_id:
                return row
        root = self.history.get_root()
        rows = range(self._count)
        row = bisect_left(rows, snapshot_id.raw, key=lambda row: read_id(root, row))
        return row if row < self._count and read_id(root, row) == snapshot_id.raw else None

    def open_reader(self) -> SnapshotReader:
        """Return a reader of several snapshots."""
        return _Reader(self)

    def add(self, snapshot: SnapshotInfo) -> EncodedSnapshots:
        """Return these snapshots and another one."""
        return EncodedSnapshots(self.history, self._count, (*self.added, snapshot))


class _Reader(SnapshotReader):
    """Reads the first snapshots of a file one by one, and then all at once, which is faster."""

    def __init__(self, snapshots: EncodedSnapshots) -> None:
        self._snapshots, self._history = snapshots, snapshots.history
        self._num_encoded = len(snapshots) - len(snapshots.added)
        self._max_single = _MIN_SINGLE + self._num_encoded // _COUNT_PER_SINGLE
        self._num_single = 0
        self._root = self._history.get_root()
        self._vector, _ = self._root.find_vector(schema.Repo.SNAPSHOTS, 4) or (0, 0)
        self._pruned: PrunedLogs = {}
        self._all: list[SnapshotInfo] = []
        self._lock = threading.Lock()

    def iter_ancestry(self, row: int) -> Iterator[int]:
        """Yield the rows of a snapshot and its ancestors; reading all parents finds cycles."""
        while row >= self._num_encoded:
            yield row
            parent_id = self._snapshots.get_item(row).parent_id
            if parent_id is None:
                return
            parent = self._snapshots.find_row(parent_id)
            if parent is None:
                self._root.buffer.fail(f"lacks snapshot {parent_id}")
            row = parent
        for _ in range(self._max_single):
            yield row
            row = self._get_table(row).read_scalar(_S.PARENT_OFFSET)
            if row == NO_PARENT:
                return
            if not 0 <= row < self._num_encoded:
                _fail_missing_parent(self._root.buffer)
        parents = self._history.read_parents().tolist()
        while row != NO_PARENT:
            yield row
            row = parents[row]

    def read(self, row: int) -> SnapshotInfo:
        """Read a snapshot."""
        if row >= self._num_encoded:
            return self._snapshots.get_item(row)
        with self._lock:
            if self._num_single < self._max_single:
                self._num_single += 1
                return _read_snapshot(self._root, self._get_table(row), self._pruned)
            self._all = self._all or _read_snapshots(self._history.get_root_columns())
            return self._all[row]

    def read_links(self, row: int) -> SnapshotLinks:
        """Read to which snapshots and transaction logs a snapshot refers."""
        if row >= self._num_encoded:
            return self._snapshots.get_item(row).get_links()
        with self._lock:
            return _read_links(self._root, self._get_table(row), self._pruned)

    def _get_table(self, row: int) -> DirectTable:
        return self._root.buffer.get_table(self._vector + 4 * row, "SnapshotInfo", row)


class EncodedUpdates(LazyUpdates):
    """The ops log of a file; ``head`` is in place of the first ``num_replaced`` entries."""

    def __init__(
        self,
        history: EncodedHistory,
        count: int,
        head: tuple[OpsLogEntry, ...] = (),
        num_replaced: int = 0,
    ) -> None:
        self.history, self._count = history, count
        self.head, self.num_replaced = head, num_replaced

    def __len__(self) -> int:
        return len(self.head) + self._count - self.num_replaced

    def get_item(self, row: int) -> OpsLogEntry:
        """Return the entry in a row."""
        if row < len(self.head):
            return self.head[row]
        file_row = row - len(self.head) + self.num_replaced
        table = self.history.get_root().get_child(schema.Repo.LATEST_UPDATES, file_row, "Update")
        return read_update(table)

    def __iter__(self) -> Iterator[OpsLogEntry]:
        # A caller may need only the newest entries.
        first_rows = min(len(self), len(self.head) + _NUM_SINGLE_UPDATES)
        yield from map(self.get_item, range(first_rows))
        if first_rows < len(self):
            # Checks that the tables do not overlap, before they are made into objects.
            _, tables = self.history.get_root_columns().get_children(
                schema.Repo.LATEST_UPDATES, "Update"
            )
            buffer = DirectBuffer(self.history.body, self.history.file)
            first_row = self.num_replaced + _NUM_SINGLE_UPDATES
            for row, position in enumerate(tables.positions[first_row:].tolist(), first_row):
                yield read_update(DirectTable(buffer, position, "Update", row))

    def replace_first(self, entries: Sequence[OpsLogEntry]) -> EncodedUpdates:
        """Return the log with other entries in place of the first one."""
        if self.head:
            return EncodedUpdates(
                self.history, self._count, (*entries, *self.head[1:]), self.num_replaced
            )
        return EncodedUpdates(self.history, self._count, tuple(entries), 1)


def read_id(root: DirectTable, row: int) -> bytes:
    """Read the id of the snapshot in a row."""
    return _get_snapshot(root, row).read_struct(_S.ID)


def _get_snapshot(root: DirectTable, row: int) -> DirectTable:
    return root.get_child(schema.Repo.SNAPSHOTS, row, "SnapshotInfo")


def _read_snapshot(root: DirectTable, table: DirectTable, pruned: PrunedLogs) -> SnapshotInfo:
    links = _read_links(root, table, pruned)
    return SnapshotInfo(
        links.id,
        links.parent_id,
        from_microseconds(table.read_scalar(_S.FLUSHED_AT), root.buffer.file),
        table.read_string(_S.MESSAGE) or "",
        read_table_metadata(table, _S.METADATA, SPEC_VERSION, required=False),
        links.pruned_ancestor_tx_logs,
    )


def _read_links(root: DirectTable, table: DirectTable, pruned: PrunedLogs) -> SnapshotLinks:
    """Read links; equal vectors of pruned logs share one tuple of ``pruned``."""
    parent = table.read_scalar(_S.PARENT_OFFSET)
    if parent == table.row:
        root.buffer.fail("has a snapshot that is its own ancestor")
    span = table.find_vector(_S.PRUNED_ANCESTOR_TX_LOGS, SnapshotId.SIZE, required=False)
    logs: tuple[SnapshotId, ...] = ()
    if span is not None and span[1]:
        start, count = span
        raw = table.buffer.copy_bytes(start, count * SnapshotId.SIZE, "SnapshotInfo: a pruned log")
        if raw not in pruned:
            starts = range(0, len(raw), SnapshotId.SIZE)
            pruned[raw] = tuple([SnapshotId(raw[byte : byte + SnapshotId.SIZE]) for byte in starts])
        logs = pruned[raw]
    parent_id = None if parent == NO_PARENT else SnapshotId(read_id(root, parent))
    return SnapshotLinks(SnapshotId(table.read_struct(_S.ID)), parent_id, logs)


def _read_snapshots(root: Tables) -> list[SnapshotInfo]:
    file = root.buffer.file
    _, infos = root.get_children(schema.Repo.SNAPSHOTS, "SnapshotInfo")
    id_rows, parents = _read_ancestry(infos)
    ids = to_ids(id_rows, SnapshotId)
    field = _S.PRUNED_ANCESTOR_TX_LOGS
    splits, pruned_id_rows = infos.read_id_vectors(field, SnapshotId.SIZE, required=False)
    pruned_ids = to_ids(pruned_id_rows, SnapshotId)
    times = infos.read_scalars(_S.FLUSHED_AT).tolist()
    messages = infos.read_texts(_S.MESSAGE)
    metadata = read_metadata(infos, _S.METADATA, SPEC_VERSION, required=False)
    return [
        SnapshotInfo(
            snapshot_id,
            ids[parent] if parent >= 0 else None,
            from_microseconds(times[row], file),
            messages[row] or "",
            metadata[row],
            tuple(pruned_ids[splits[row] : splits[row + 1]]),
        )
        for row, (snapshot_id, parent) in enumerate(zip(ids, parents.tolist(), strict=True))
    ]


def _read_ancestry(infos: Tables) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read ids and parents; raise if ids are not sorted, or if parents form a cycle."""
    ids = infos.read_structs(_S.ID)
    infos.buffer.require_ascending(ids, "snapshots")
    return ids, _read_parents(infos)


def _read_parents(infos: Tables) -> NDArray[np.int64]:
    parents = infos.read_scalars(_S.PARENT_OFFSET).astype(np.int64)
    num_snapshots = len(parents)
    if ((parents < NO_PARENT) | (parents >= num_snapshots)).any():
        _fail_missing_parent(infos.buffer)
    # Pointer doubling: each round doubles the number of steps. A path ends in a cycle, or in the
    # appended entry `num_snapshots`, which stands for no parent and points to itself.
    ancestors = np.append(np.where(parents == NO_PARENT, num_snapshots, parents), num_snapshots)
    for _ in range(num_snapshots.bit_length()):
        ancestors = ancestors[ancestors]
    if (ancestors != num_snapshots).any():
        infos.buffer.fail("has a snapshot that is its own ancestor")
    return parents


def _fail_missing_parent(buffer: DirectBuffer | FlatBuffer) -> NoReturn:
    buffer.fail("has a snapshot whose parent is not in the list of snapshots")


def _read_columns(root: Tables) -> HistoryColumns:
    _, infos = root.get_children(schema.Repo.SNAPSHOTS, "SnapshotInfo")
    ids, parents = _read_ancestry(infos)
    _, metadata = infos.get_children(_S.METADATA, "MetadataItem", required=False)
    _, all_updates = root.get_children(schema.Repo.LATEST_UPDATES, "Update")
    updates = all_updates.select(slice(1, None))
    kinds = updates.get_tables(schema.Update.UPDATE_TYPE, "an update")
    codes = updates.read_scalars(schema.Update.UPDATE_TYPE_TYPE)
    statuses = kinds.select(codes == STATUS_CHANGED).get_tables(STATUS_FIELD, "RepoStatus")
    # Pointers lead forward, except those to vtables. So the tables can be moved together with
    # everything behind the vector of snapshots, if they and their vtables are there. Otherwise,
    # the complete file is copied.
    vector = root.find_vectors(schema.Repo.SNAPSHOTS, 4)
    start = int(vector.start[0] + 4 * vector.count[0])
    start += -start % HISTORY_ALIGN
    tables = (infos, metadata, updates, kinds, statuses)
    is_behind = all(part.find_first_byte() >= start for part in tables if len(part))
    return HistoryColumns(
        start if is_behind else 0,
        ids,
        infos.positions,
        parents,
        infos.locate_scalars(_S.PARENT_OFFSET),
        updates.positions,
    )
