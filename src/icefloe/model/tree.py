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
        """Yield the nodes below a path, ordered by path."""
        first, last = self._range("" if path.is_root else path.value)
        for place in range(first, last):
            if self._paths[place] != "/":
                yield self._nodes[self._paths[place]]

    def iter_children(self, path: Path) -> Iterator[str]:
        """Yield the names directly below a path, without visiting deeper nodes."""
        prefix = "" if path.is_root else path.value
        place, last = self._range(prefix)
        seen = set()
        while place < last:
            name, deeper, _ = self._paths[place][len(prefix) + 1 :].partition("/")
            if name and name not in seen:
                seen.add(name)
                yield name
            place += 1
            if deeper:  # skip the nodes below this child
                place = bisect_left(self._paths, f"{prefix}/{name}{_AFTER_SLASH}", place, last)

    def _range(self, prefix: str) -> tuple[int, int]:
        first = bisect_left(self._paths, prefix + "/")
        return first, bisect_left(self._paths, prefix + _AFTER_SLASH, first)
