"""Nodes of a large snapshot file, decoded on access.

The file is sorted by path, so that a node is found by bisection, without decoding others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.format import schema
from icefloe.format.direct_reader import DirectBuffer
from icefloe.format.direct_snapshot import read_node
from icefloe.format.flatbuffer_reader import FlatBuffer, Tables
from icefloe.format.ids import to_ids
from icefloe.format.node_columns import read_all_nodes, read_nodes
from icefloe.model.ids import NodeId
from icefloe.model.lazy_nodes import LazyNodes
from icefloe.model.lazy_sequence import LazySequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.format.direct_reader import DirectTable
    from icefloe.model.node import NodeSnapshot

# Fewer nodes are read row by row.
_MIN_COLUMN_ROWS: Final = 64
_MAX_FIRST_ROWS: Final = 4096


class EncodedNodes(LazyNodes):
    """The nodes of a decompressed snapshot file."""

    def __init__(self, body: bytes, file: str, *, is_v1: bool) -> None:
        self._buffer = DirectBuffer(body, file)
        self._is_v1 = is_v1
        self._root = self._buffer.get_root("Snapshot")
        span = self._root.find_vector(schema.Snapshot.NODES, 4) or (0, 0)
        self._start, self._count = span
        self._decoded: dict[int, NodeSnapshot] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NodeSnapshot]:
        # A caller may need only the first nodes.
        stop = 0
        for limit in (_MIN_COLUMN_ROWS, _MAX_FIRST_ROWS):
            if "_all" not in self.__dict__:
                start, stop = stop, min(limit, self._count)
                yield from self.get_range(start, stop)
        if stop < self._count:
            yield from islice(self._all, stop, None)

    @cached_property
    def _all(self) -> tuple[NodeSnapshot, ...]:
        nodes = read_all_nodes(self._columns, is_v1=self._is_v1)
        self._decoded.clear()
        return nodes

    @property
    def _columns(self) -> Tables:
        return FlatBuffer(self._buffer.data, self._buffer.file).get_root("Snapshot")

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return self._buffer.size

    @cached_property
    def paths(self) -> Sequence[str]:
        """The paths of all nodes, read on access."""
        return _Paths(self)

    @cached_property
    def by_id(self) -> Mapping[NodeId, NodeSnapshot]:
        """The nodes by id."""
        _, nodes = self._columns.get_children(schema.Snapshot.NODES, "NodeSnapshot")
        return _NodesById(self, nodes.read_structs(schema.NodeSnapshot.ID))

    def get_item(self, row: int) -> NodeSnapshot:
        """Return the node in a row."""
        if "_all" in self.__dict__:
            return self._all[row]
        node = self._decoded.get(row)
        if node is None:
            node = self._decoded[row] = read_node(self.get_table(row), is_v1=self._is_v1)
        return node

    def get_range(self, start: int, stop: int) -> Sequence[NodeSnapshot]:
        """Return the nodes in consecutive rows."""
        if "_all" in self.__dict__ or (start == 0 and stop == self._count):
            return self._all[start:stop]
        if stop - start <= _MIN_COLUMN_ROWS:
            return [self.get_item(row) for row in range(start, stop)]
        columns = self._columns
        _, positions = columns.find_children(schema.Snapshot.NODES)
        tables = Tables(columns.buffer, positions[start:stop], "NodeSnapshot", start)
        return read_nodes(tables, is_v1=self._is_v1)

    def get_table(self, row: int) -> DirectTable:
        """Return the table of a node."""
        return self._root.get_child(schema.Snapshot.NODES, row, "NodeSnapshot")

    def fail(self, reason: str) -> None:
        """Raise `FormatError` for this file."""
        self._buffer.fail(reason)


class _Paths(LazySequence[str]):
    def __init__(self, nodes: EncodedNodes) -> None:
        self._nodes = nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def get_item(self, row: int) -> str:
        """Return the path of the node in a row."""
        table = self._nodes.get_table(row)
        start, count = table.find_vector(schema.NodeSnapshot.PATH, 1) or (0, 0)
        try:
            return table.data[start : start + count].decode()
        except UnicodeDecodeError:
            table.fail("has a path that is not valid UTF-8")


class _NodesById(Mapping["NodeId", "NodeSnapshot"]):
    """Nodes by id: the sorted ids as numbers, and the row of each."""

    def __init__(self, nodes: EncodedNodes, ids: NDArray[np.uint8]) -> None:
        self._nodes, self._ids = nodes, ids
        numbers = np.ascontiguousarray(ids).view(np.uint64).reshape(-1)
        self._rows = np.argsort(numbers)
        self._numbers = numbers[self._rows]
        if (self._numbers[1:] == self._numbers[:-1]).any():
            nodes.fail("has two nodes with the same id")

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[NodeId]:
        return iter(to_ids(self._ids, NodeId))

    def __getitem__(self, node_id: NodeId) -> NodeSnapshot:
        if len(node_id.raw) == self._ids.shape[1]:
            number = np.frombuffer(node_id.raw, np.uint64)[0]
            position = int(np.searchsorted(self._numbers, number))
            if position < len(self._numbers) and self._numbers[position] == number:
                return self._nodes.get_item(int(self._rows[position]))
        raise KeyError(node_id)
