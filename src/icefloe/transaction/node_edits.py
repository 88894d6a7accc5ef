"""The edited nodes of a transaction, by path.

An edit is the current node at a path, or None if the node was deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.model.path import Path
from icefloe.model.path_set import PathSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.model.ids import NodeId
    from icefloe.model.node import NodeSnapshot


class Unedited:
    """Marks a path that the transaction did not edit."""


UNEDITED: Final = Unedited()


class NodeEdits:
    """Nodes that were created, updated, moved or deleted.

    Queries about a path do not visit the edits of other paths, so that the time of a transaction
    grows linearly with the nodes that it creates. Only `get` may run while another thread edits.
    """

    __slots__ = ("_by_id", "_deleted", "_edits", "_present")

    def __init__(self, edits: Iterable[tuple[Path, NodeSnapshot | None]] = ()) -> None:
        self._edits: dict[str, NodeSnapshot | None] = {}
        self._by_id: dict[bytes, NodeSnapshot] = {}
        self._present, self._deleted = PathSet(), PathSet()
        for path, node in edits:
            self.put(path, node)

    def put(self, path: Path, node: NodeSnapshot | None) -> None:
        """Record the node at a path, or None if there is none now."""
        before = self._edits.get(path.value)
        self._edits[path.value] = node
        # A moved node may be recorded at its new path already.
        if before is not None and self._by_id.get(before.id.raw) is before:
            del self._by_id[before.id.raw]
        if node is None:
            self._present.discard(path)
            self._deleted.add(path)
        else:
            self._by_id[node.id.raw] = node
            if before is None:
                self._deleted.discard(path)
                self._present.add(path)

    def get(self, path: Path) -> NodeSnapshot | Unedited | None:
        """Return the node at a path, None if it was deleted, or `UNEDITED`."""
        return self._edits.get(path.value, UNEDITED)

    def find(self, node_id: NodeId) -> NodeSnapshot | None:
        """Return the edited node with an id, or None."""
        return self._by_id.get(node_id.raw)

    def __contains__(self, path: Path) -> bool:
        return path.value in self._edits

    def __len__(self) -> int:
        return len(self._edits)

    def items(self) -> Iterator[tuple[Path, NodeSnapshot | None]]:
        """Yield all edits."""
        for value, node in self._edits.items():
            yield (Path(value) if node is None else node.path), node

    def iter_nodes(self) -> Iterator[NodeSnapshot]:
        """Yield the edited nodes that exist."""
        return (node for node in self._edits.values() if node is not None)

    def list_below(self, path: Path) -> list[NodeSnapshot]:
        """Return the edited nodes below a path, in no particular order."""
        nodes = [self._edits[below.value] for below in self._present.iter_below(path)]
        return [node for node in nodes if node is not None]

    def list_deleted_below(self, path: Path) -> list[Path]:
        """Return the deleted paths below a path, in no particular order."""
        return list(self._deleted.iter_below(path))

    def has_from(self, path: Path) -> bool:
        """Whether there is an edited node at a path or below it."""
        return self._present.has_from(path)

    def list_children(self, path: Path) -> set[str]:
        """Return the names directly below a path, of edited nodes and implicit groups."""
        return self._present.list_children(path)

    def list_deleted_children(self, path: Path) -> set[str]:
        """Return the names directly below a path that were deleted, or have deleted descendants."""
        return self._deleted.list_children(path)

    def copy(self) -> NodeEdits:
        """Return an independent copy."""
        other = NodeEdits()
        other._edits, other._by_id = dict(self._edits), dict(self._by_id)
        other._present, other._deleted = self._present.copy(), self._deleted.copy()
        return other

    def __reduce__(self) -> Any:
        return NodeEdits, (tuple(self.items()),)
