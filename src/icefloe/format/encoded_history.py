"""Snapshots and ops log of a decompressed file ``repo``, decoded on access.

A change of a repository adds a snapshot, an entry of the ops log or neither, so `repo_info` copies
the tables of all others as bytes. `HistoryColumns` has what it needs for that: where the tables
are, and the parents of the snapshots, whose numbers change because snapshots are ordered by id.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from icefloe.format import schema
from icefloe.format.direct_reader import DirectBuffer, DirectTable
from icefloe.format.flatbuffer_reader import FlatBuffer
from icefloe.format.ids import to_ids
from icefloe.format.metadata import read_metadata, read_table_metadata
from icefloe.format.ops_log import STATUS_CHANGED, STATUS_FIELD, read_update
from icefloe.format.timestamps import from_microseconds
from icefloe.model.ids import SnapshotId
from icefloe.model.lazy_history import LazySnapshots, LazyUpdates
from icefloe.model.snapshot import SnapshotInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.format.flatbuffer_reader import Tables
    from icefloe.model.repo_info import OpsLogEntry

SPEC_VERSION: Final = 2
NO_PARENT: Final = -1
HISTORY_ALIGN: Final = 8
"""The alignment of the bytes that are copied, which contain numbers of eight bytes."""

_NUM_SINGLE_UPDATES: Final = 4
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
            return _read_snapshot(self.history.get_root(), row)
        return self.added[row - self._count]

    def __iter__(self) -> Iterator[SnapshotInfo]:
        return chain(_read_snapshots(self.history.get_root_columns()), self.added)

    def find(self, snapshot_id: SnapshotId) -> SnapshotInfo | None:
        """Return a snapshot, or None; a binary search in the file."""
        for snapshot in self.added:
            if snapshot.id == snapshot_id:
                return snapshot
        root = self.history.get_root()
        rows = range(self._count)
        row = bisect_left(rows, snapshot_id.raw, key=lambda row: read_id(root, row))
        if row < self._count and read_id(root, row) == snapshot_id.raw:
            return _read_snapshot(root, row)
        return None

    def add(self, snapshot: SnapshotInfo) -> EncodedSnapshots:
        """Return these snapshots and another one."""
        return EncodedSnapshots(self.history, self._count, (*self.added, snapshot))


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
    return root.get_child(schema.Repo.SNAPSHOTS, row, "SnapshotInfo").read_struct(_S.ID)


def _read_snapshot(root: DirectTable, row: int) -> SnapshotInfo:
    table = root.get_child(schema.Repo.SNAPSHOTS, row, "SnapshotInfo")
    parent = table.read_scalar(_S.PARENT_OFFSET)
    if parent == row:
        root.buffer.fail("has a snapshot that is its own ancestor")
    pruned = table.find_vector(_S.PRUNED_ANCESTOR_TX_LOGS, SnapshotId.SIZE, required=False)
    start, count = pruned or (0, 0)
    raw = table.buffer.copy_bytes(start, count * SnapshotId.SIZE, "SnapshotInfo: a pruned log")
    return SnapshotInfo(
        SnapshotId(table.read_struct(_S.ID)),
        None if parent == NO_PARENT else SnapshotId(read_id(root, parent)),
        from_microseconds(table.read_scalar(_S.FLUSHED_AT), root.buffer.file),
        table.read_string(_S.MESSAGE) or "",
        read_table_metadata(table, _S.METADATA, SPEC_VERSION, required=False),
        tuple(
            SnapshotId(raw[byte : byte + SnapshotId.SIZE])
            for byte in range(0, len(raw), SnapshotId.SIZE)
        ),
    )


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
    parents = infos.read_scalars(_S.PARENT_OFFSET).astype(np.int64)
    num_snapshots = len(parents)
    if ((parents < NO_PARENT) | (parents >= num_snapshots)).any():
        infos.buffer.fail("has a snapshot whose parent is not in the list of snapshots")
    # Pointer doubling: each round doubles the number of steps. A path ends in a cycle, or in the
    # appended entry `num_snapshots`, which stands for no parent and points to itself.
    ancestors = np.append(np.where(parents == NO_PARENT, num_snapshots, parents), num_snapshots)
    for _ in range(num_snapshots.bit_length()):
        ancestors = ancestors[ancestors]
    if (ancestors != num_snapshots).any():
        infos.buffer.fail("has a snapshot that is its own ancestor")
    return ids, parents


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
