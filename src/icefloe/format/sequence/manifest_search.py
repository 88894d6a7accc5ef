"""Lookups of single chunk references in the text of a manifest file.

In the layout that icefloe writes, each reference is a row of one JSON object, and the key of the
row occurs nowhere else in the text: quotes in strings are escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from icefloe.errors import FormatError
from icefloe.format.searched_refs import SearchedFile
from icefloe.format.sequence.chunk_keys import format_key
from icefloe.format.sequence.manifest import HEADER, TRAILER, decode_manifest

if TYPE_CHECKING:
    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.model.manifest import Manifest

# Decoding takes as long as some fifty searches, ...
_MAX_SEARCHES: Final = 8
# ... and in smaller files not long.
_MIN_BYTES: Final = 1 << 20
_ROW_ENDS: Final = (b'}},"', b']},"')


def open_manifest(
    data: bytes | memoryview, file: str, manifest_id: ManifestId
) -> Manifest | ManifestText:
    """Open a manifest file for lookups; decode it if it is small, or in another layout."""
    text = bytes(data)
    if len(text) < _MIN_BYTES or not (text.startswith(HEADER) and text.endswith(TRAILER)):
        return decode_manifest(text, file, manifest_id)
    return ManifestText(text, file, manifest_id)


class ManifestText(SearchedFile):
    """The text of a manifest file."""

    __slots__ = ("_file", "_id", "_num_searches", "_text")

    def __init__(self, text: bytes, file: str, manifest_id: ManifestId) -> None:
        self._text, self._file, self._id = text, file, manifest_id
        self._num_searches = 0

    @property
    def nbytes(self) -> int:
        """The size in memory, in bytes."""
        return len(self._text)

    def search(self, node_id: NodeId, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Find the row with a key, and decode it."""
        self._num_searches += 1
        if self._num_searches > _MAX_SEARCHES:
            return None
        key = format_key(int.from_bytes(node_id.raw, "big"), indices)
        start = f'"{key}":'.encode()
        begin = self._text.find(start)
        if begin < 0 or self._text.find(start, begin + 1) >= 0:
            return None
        ends = [self._text.find(end, begin) + 2 for end in _ROW_ENDS]
        end = min((end for end in ends if end > begin), default=len(self._text) - len(TRAILER))
        try:
            row = decode_manifest(HEADER + self._text[begin:end] + TRAILER, self._file, self._id)
        except FormatError:  # decoding the file reports it, if it is not the layout
            return None
        refs = row.get_array(node_id)
        return None if refs is None or len(refs) != 1 else refs.payloads[0]

    def read_manifest(self) -> Manifest:
        """Decode all references."""
        return decode_manifest(self._text, self._file, self._id)
