"""Lookups of single chunk references in manifest files that are not made for them."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from icefloe.format.metadata_codec import ManifestFile
from icefloe.model.ref_finder import IndexedRefs

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import Manifest
    from icefloe.model.ref_finder import RefFinder

    Search = Callable[[tuple[int, ...]], ChunkPayload | None]


class SearchedFile(ManifestFile):
    """A manifest file in which references are searched, and that is rewritten to change it."""

    __slots__ = ()

    @abstractmethod
    def search(self, node_id: NodeId, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Return a reference; None if it is not found, or if decoding the file pays off.

        The file is untrusted: checks what it reads.
        """

    def find_refs(self, node_id: NodeId, decode: Callable[[], Manifest]) -> RefFinder:
        """Find the references of an array."""
        return SearchedRefs(node_id, partial(self.search, node_id), decode)

    def edit(self, changes: Manifest) -> None:
        """Return None: the file must be rewritten."""

    def insert(self, changes: Manifest, key: str) -> None:
        """Return None: the file must be rewritten."""


class SearchedRefs:
    """Searches the references of one array until a search finds nothing, then decodes all.

    Damage could hide a reference from a search, so only the decoded manifest tells that there is
    none.
    """

    __slots__ = ("_decode", "_indexed", "_node_id", "_search")

    def __init__(self, node_id: NodeId, search: Search, decode: Callable[[], Manifest]) -> None:
        self._node_id, self._decode = node_id, decode
        self._search: Search | None = search
        self._indexed: IndexedRefs | None = None

    def get(self, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Return the reference of a chunk, or None."""
        search = self._search
        if search is not None:
            if (payload := search(indices)) is not None:
                return payload
            refs = self._decode().get_array(self._node_id)
            self._indexed = None if refs is None else IndexedRefs(refs)
            self._search = None  # releases the file
        return None if self._indexed is None else self._indexed.get(indices)
