"""Index of the nodes of a snapshot."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from typing import TYPE_CHECKING

from icefloe.model.lazy_nodes import LazyNodes, ManifestFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.path import Path
    from icefloe.model.snapshot import ManifestFileInfo, Snapshot

# The character after "/": all paths below "/a" are between "/a/" and "/a0".
_AFTER_SLASH = "0"


class Tree:
    """A snapshot with an index of its nodes; immutable.

    Queries decode only the nodes that they return, if the snapshot is large.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._nodes = snapshot.nodes

    @cached_property
    def _paths(self) -> Sequence[str]:
        if isinstance(self._nodes, LazyNodes):
            return self._nodes.paths
        return [node.path.value for node in self._nodes]

    def get(self, path: Path) -> NodeSnapshot | None:
        """Return the node at a path, or None."""
        row = bisect_left(self._paths, path.value)
        if row < len(self._paths) and self._paths[row] == path.value:
            return self._nodes[row]
        return None

    @cached_property
    def by_id(self) -> Mapping[NodeId, NodeSnapshot]:
        """All nodes by id."""
        if isinstance(self._nodes, LazyNodes):
            return self._nodes.by_id
        return {node.id: node for node in self._nodes}

    @cached_property
    def _files(self) -> dict[ManifestId, ManifestFileInfo]:
        return {info.id: info for info in self.snapshot.manifest_files}

    def get_manifest_file(self, manifest_id: ManifestId) -> ManifestFileInfo | None:
        """Return the manifest file with an id, or None."""
        files = self.snapshot.manifest_files
        if isinstance(files, ManifestFiles):
            return files.find(manifest_id)
        return self._files.get(manifest_id)

    def iter_below(self, path: Path) -> Iterator[NodeSnapshot]:
        """Yield the descendants of a path, ordered by path."""
        first, last = self._find_range("" if path.is_root else path.value)
        if path.is_root and first < last and self._paths[first] == "/":
            first += 1
        if isinstance(self._nodes, LazyNodes):
            yield from self._nodes.get_range(first, last)
        else:
            for row in range(first, last):
                yield self._nodes[row]

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
