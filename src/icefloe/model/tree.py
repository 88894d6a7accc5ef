"""Index of the nodes of a snapshot."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.model.ids import NodeId
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.path import Path
    from icefloe.model.snapshot import Snapshot

# The character after "/": all paths below "/a" are between "/a/" and "/a0".
_AFTER_SLASH = "0"


class Tree:
    """A snapshot with an index of its nodes; immutable."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._nodes = {node.path.value: node for node in snapshot.nodes}
        self._paths = list(self._nodes)

    def get(self, path: Path) -> NodeSnapshot | None:
        """Return the node at a path, or None."""
        return self._nodes.get(path.value)

    @cached_property
    def by_id(self) -> dict[NodeId, NodeSnapshot]:
        """All nodes by id."""
        return {node.id: node for node in self.snapshot.nodes}

    def iter_below(self, path: Path) -> Iterator[NodeSnapshot]:
        """Yield the descendants of a path, ordered by path."""
        first, last = self._find_range("" if path.is_root else path.value)
        for position in range(first, last):
            if self._paths[position] != "/":
                yield self._nodes[self._paths[position]]

    def iter_children(self, path: Path) -> Iterator[str]:
        """Yield the names of the children of a path, without visiting their descendants."""
        prefix = "" if path.is_root else path.value
        position, last = self._find_range(prefix)
        seen = set()
        while position < last:
            name, has_descendants, _ = self._paths[position][len(prefix) + 1 :].partition("/")
            if name and name not in seen:
                seen.add(name)
                yield name
            position += 1
            if has_descendants:
                after = f"{prefix}/{name}{_AFTER_SLASH}"
                position = bisect_left(self._paths, after, position, last)

    def _find_range(self, prefix: str) -> tuple[int, int]:
        first = bisect_left(self._paths, prefix + "/")
        return first, bisect_left(self._paths, prefix + _AFTER_SLASH, first)
