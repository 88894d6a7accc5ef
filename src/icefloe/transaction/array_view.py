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
    """An array as a transaction sees it, with the change set that its manifests belong to.

    A commit replaces both at once, while other threads still read from the previous view.
    """

    __slots__ = ("changes", "index", "manifests", "node", "num_chunks")

    def __init__(
        self, node: NodeSnapshot, data: ArrayNodeData, base: NodeSnapshot | None, changes: ChangeSet
    ) -> None:
        self.node = node
        self.changes = changes
        self.num_chunks = tuple(dimension.num_chunks for dimension in data.shape)
        before = None if base is None else base.node_data
        # An array whose number of dimensions changed has lost all its chunks.
        if isinstance(before, ArrayNodeData) and len(before.shape) == len(data.shape):
            self.manifests = before.manifests
        else:
            self.manifests = ()
        self.manifests += tuple(manifest.ref for manifest in changes.adopted.get(node.id, ()))
        self.index = ManifestIndex(self.manifests, len(data.shape))

    def has_chunk(self, indices: tuple[int, ...]) -> bool:
        """Whether a chunk is inside the grid."""
        if len(indices) != len(self.num_chunks):
            return False
        for index, count in zip(indices, self.num_chunks, strict=True):
            if not 0 <= index < count:
                return False
        return True

    def outside_error(self, indices: tuple[int, ...]) -> InvalidInputError:
        """Return the error for a chunk outside the grid."""
        return InvalidInputError(
            f"chunk {list(indices)} is outside the grid of {self.node.path}, which has "
            f"{' x '.join(map(str, self.num_chunks)) or 'one'} chunks",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )

    def require_room(self, extents: ManifestExtents, others: Iterable[ManifestExtents]) -> None:
        """Raise if a manifest to adopt is outside the grid or overlaps one of ``others``."""
        fits = len(extents.ranges) == len(self.num_chunks) and all(
            box.stop <= count for box, count in zip(extents.ranges, self.num_chunks, strict=True)
        )
        if not fits or any(map(extents.overlaps, others)):
            raise InvalidInputError(
                f"a manifest for chunks {extents} of {self.node.path} cannot be adopted: "
                f"{'it overlaps another manifest' if fits else 'it is outside the grid'}",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
