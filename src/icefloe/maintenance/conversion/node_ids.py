"""Maps node ids between generations with random ids and generations that number nodes.

Numbers are given in the order in which nodes appear along the history, parents first, so they are
unique over all branches. In the other direction, a number can denote different nodes on divergent
branches: the id is derived from the number and the first snapshot that has the node. After an
expiration, the first snapshots of one node can differ between branches: nodes of one number that
share a manifest are the same node. Both maps are deterministic, so that an interrupted conversion
continues with the same ids.

A conversion adds all snapshots twice: the plan, which finds shared manifests, and the writer, which
starts again with what the plan has found.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, FormatError
from icefloe.model.chunk_payload import MAX_U32
from icefloe.model.ids import NodeId

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from icefloe.format.generation import Generation
    from icefloe.model.ids import ManifestId, SnapshotId
    from icefloe.model.snapshot import Snapshot


class NodeIds(ABC):
    """The node ids of a conversion; snapshots are added once each, parents first."""

    @abstractmethod
    def add_snapshot(
        self, snapshot: Snapshot, parent_id: SnapshotId | None
    ) -> Mapping[NodeId, NodeId] | None:
        """Return the ids of the nodes of a snapshot in the target; None if they do not change."""

    @abstractmethod
    def get_manifest_map(self, manifest_id: ManifestId) -> Mapping[NodeId, NodeId] | None:
        """Return the ids of the arrays of a manifest, after all snapshots were added.

        It may have other nodes too. None if no id changes.
        """

    @abstractmethod
    def get_next_number(self, snapshot: Snapshot) -> int:
        """Return a number above all node numbers in the history of the snapshot added last."""

    @abstractmethod
    def start_again(self) -> NodeIds:
        """Return the map to which the same snapshots are added again, after all were added."""


def make_node_ids(
    source: Generation, target: Generation, num_children: Counter[SnapshotId]
) -> NodeIds:
    """Return the map between two generations; ``num_children`` counts children by parent."""
    if source.numbers_nodes == target.numbers_nodes:
        return SameNodeIds()
    return NumberedNodeIds() if target.numbers_nodes else DerivedNodeIds(num_children)


class SameNodeIds(NodeIds):
    """Keeps node ids."""

    def add_snapshot(
        self,
        snapshot: Snapshot,  # noqa: ARG002
        parent_id: SnapshotId | None,  # noqa: ARG002
    ) -> None:
        return None

    def get_manifest_map(self, manifest_id: ManifestId) -> None:  # noqa: ARG002
        return None

    def get_next_number(self, snapshot: Snapshot) -> int:
        return snapshot.next_node_number

    def start_again(self) -> NodeIds:
        return self


class NumberedNodeIds(NodeIds):
    """Numbers nodes in the order of their first appearance."""

    def __init__(self) -> None:
        self._ids: dict[NodeId, NodeId] = {}

    def add_snapshot(
        self,
        snapshot: Snapshot,
        parent_id: SnapshotId | None,  # noqa: ARG002
    ) -> Mapping[NodeId, NodeId]:
        for node in snapshot.nodes:
            if node.id not in self._ids:
                if len(self._ids) >= MAX_U32:
                    raise FormatError(
                        f"the history has more than {MAX_U32} nodes, and node numbers end there: "
                        "convert one branch, or the newest snapshot",
                        kind=ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
                    )
                self._ids[node.id] = NodeId.from_number(len(self._ids))
        return self._ids

    def get_manifest_map(self, manifest_id: ManifestId) -> Mapping[NodeId, NodeId]:  # noqa: ARG002
        return self._ids

    def get_next_number(self, snapshot: Snapshot) -> int:  # noqa: ARG002
        return len(self._ids)

    def start_again(self) -> NodeIds:
        return NumberedNodeIds()


class DerivedNodeIds(NodeIds):
    """Derives an id from the number of a node and the first snapshot that has it.

    The id of a node is final once all snapshots were added: a manifest that two of them share may
    show that a node has several first snapshots, whose common ancestor has expired. The ids of such
    a node are replaced by one of them. They have the same number, of which a snapshot has one node,
    so no snapshot gets an id twice.

    ``replaced`` has the ids that are known to be replaced.
    """

    def __init__(
        self, num_children: Counter[SnapshotId], replaced: Mapping[NodeId, NodeId] | None = None
    ) -> None:
        self._num_children = num_children
        self._num_pending = num_children.copy()
        # Of snapshots with children that were not added yet.
        self._by_snapshot: dict[SnapshotId, dict[NodeId, NodeId]] = {}
        self._by_manifest: dict[ManifestId, dict[NodeId, NodeId]] = {}
        # A forest: the ids of one node lead to the same root.
        self._replaced = dict(replaced or {})

    def add_snapshot(
        self, snapshot: Snapshot, parent_id: SnapshotId | None
    ) -> Mapping[NodeId, NodeId]:
        """Return the ids of the nodes of the snapshot and of its parent."""
        inherited = self._release_parent(parent_id)
        ids = {}
        for node in snapshot.nodes:
            node_id = inherited.get(node.id)
            if node_id is None:
                node_id = self._resolve(_derive_id(snapshot.id, node.id))
            ids[node.id] = node_id
        if ids == inherited:
            ids = inherited  # most commits change no node, and share the map
        if self._num_children[snapshot.id]:
            self._by_snapshot[snapshot.id] = ids
        self._add_manifests(snapshot, ids)
        return inherited | ids

    def get_manifest_map(self, manifest_id: ManifestId) -> Mapping[NodeId, NodeId]:
        ids = self._by_manifest.get(manifest_id, {})
        return {number: self._resolve(node_id) for number, node_id in ids.items()}

    def get_next_number(self, snapshot: Snapshot) -> int:  # noqa: ARG002
        return 0

    def start_again(self) -> NodeIds:
        return DerivedNodeIds(self._num_children, self._replaced)

    def _release_parent(self, parent_id: SnapshotId | None) -> dict[NodeId, NodeId]:
        if parent_id is None:
            return {}
        self._num_pending[parent_id] -= 1
        if self._num_pending[parent_id]:
            return self._by_snapshot[parent_id]
        return self._by_snapshot.pop(parent_id)

    def _add_manifests(self, snapshot: Snapshot, ids: Mapping[NodeId, NodeId]) -> None:
        for node in snapshot.nodes:
            for ref in node.manifests:
                known = self._by_manifest.setdefault(ref.id, {})
                node_id = known.setdefault(node.id, ids[node.id])
                if node_id != ids[node.id]:
                    self._unite(node_id, ids[node.id])

    def _unite(self, first: NodeId, second: NodeId) -> None:
        """Give two ids of one node the same root."""
        first, second = self._resolve(first), self._resolve(second)
        if first != second:
            self._replaced[second] = first

    def _resolve(self, node_id: NodeId) -> NodeId:
        root = node_id
        while (replacement := self._replaced.get(root)) is not None:
            root = replacement
        if root != node_id:
            self._replaced[node_id] = root  # keeps paths short
        return root


def _derive_id(snapshot_id: SnapshotId, node_id: NodeId) -> NodeId:
    digest = hashlib.sha256(b"node" + snapshot_id.raw + node_id.raw).digest()
    return NodeId(digest[: NodeId.SIZE])
