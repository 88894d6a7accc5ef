"""An array prepared for access to its chunks: grid, manifests and their index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.node import ArrayNodeData
from icefloe.transaction.manifest_index import ManifestIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.model.node import ManifestExtents, NodeSnapshot
    from icefloe.transaction.change_set import ChangeSet


class ArrayView:
    """An array as a transaction sees it: its manifests, and the change set on top of them.

    A commit or rebase replaces both, while other threads may still read from an earlier view.
    """

    __slots__ = ("changes", "index", "manifests", "node", "num_chunks")

    def __init__(
        self, node: NodeSnapshot, data: ArrayNodeData, base: NodeSnapshot | None, changes: ChangeSet
    ) -> None:
        self.node = node
        self.changes = changes
        self.num_chunks = tuple(dimension.num_chunks for dimension in data.shape)
        base_data = None if base is None else base.node_data
        # An array whose number of dimensions changed has lost all its chunks.
        if isinstance(base_data, ArrayNodeData) and len(base_data.shape) == len(data.shape):
            self.manifests = base_data.manifests
        else:
            self.manifests = ()
        self.manifests += tuple(manifest.ref for manifest in changes.adopted.get(node.id, ()))
        self.index = ManifestIndex(self.manifests, len(data.shape))

    def is_in_grid(self, indices: tuple[int, ...]) -> bool:
        """Whether the grid has a chunk with these indices, stored or not."""
        if len(indices) != len(self.num_chunks):
            return False
        for index, num_chunks in zip(indices, self.num_chunks, strict=True):
            if not 0 <= index < num_chunks:
                return False
        return True

    def outside_error(self, indices: tuple[int, ...]) -> InvalidInputError:
        """Return the error for a chunk outside the grid."""
        size = f"{' x '.join(map(str, self.num_chunks))} chunks" if self.num_chunks else "one chunk"
        return InvalidInputError(
            f"chunk {list(indices)} is outside the grid of {self.node.path}, which has {size}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )

    def require_room(self, extents: ManifestExtents, others: Iterable[ManifestExtents]) -> None:
        """Raise if a manifest to adopt is outside the grid or overlaps one of ``others``."""
        is_inside = len(extents.ranges) == len(self.num_chunks) and all(
            indices.stop <= num_chunks
            for indices, num_chunks in zip(extents.ranges, self.num_chunks, strict=True)
        )
        if not is_inside or any(map(extents.overlaps, others)):
            raise InvalidInputError(
                f"a manifest for chunks {extents} of {self.node.path} cannot be adopted: "
                f"{'it overlaps another manifest' if is_inside else 'it is outside the grid'}",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
