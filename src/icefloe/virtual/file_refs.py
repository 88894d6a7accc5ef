"""Builds columnar references into one file. Pure, no I/O.

All arrays of a file share one location table and one checksum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.model.chunk_payload import ETag, LastModified
from icefloe.model.columns import make_constant
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.model.strings import Strings
from icefloe.virtual.parse_errors import file_format_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import Checksum
    from icefloe.virtual.sources import SourceFile


class FileRefBuilder:
    """Builds references into one file, all with the same checksum."""

    def __init__(self, source: SourceFile, checksum: Checksum | None) -> None:
        self._source = source
        self._locations = Strings.of([source.url])
        self._checksum = checksum

    def build(
        self,
        coords: NDArray[np.uint32],
        offsets: Sequence[int] | NDArray[Any],
        lengths: Sequence[int] | NDArray[Any],
    ) -> ArrayManifest:
        """Build the references of one array, from rows in any order.

        Raises `FormatError` if a chunk ends after the end of the file.
        """
        offset, length = np.asarray(offsets, np.uint64), np.asarray(lengths, np.uint64)
        size = self._source.size_bytes
        if size is not None and len(offset) and int((offset + length).max()) > size:
            end = int((offset + length).max())
            reason = f"is truncated: it has {size} bytes, but a chunk ends at byte {end}"
            raise file_format_error(self._source.url, reason)
        codes = make_constant(0, len(offset), np.int32)
        payloads = ChunkPayloads.make_virtual(codes, self._locations, offset, length)
        return ArrayManifest.of(coords, with_checksum(payloads, self._checksum))

    def build_empty(self, ndim: int) -> ArrayManifest:
        """Build the empty references of an array without chunks."""
        return self.build(np.zeros((0, ndim), np.uint32), [], [])


def with_checksum(payloads: ChunkPayloads, checksum: Checksum | None) -> ChunkPayloads:
    """Return virtual payloads with the same checksum for all chunks."""
    rows = len(payloads)
    match checksum:
        case LastModified(seconds):
            return replace(payloads, last_modified=make_constant(seconds, rows, np.uint32))
        case ETag(value):
            return replace(
                payloads, etag_codes=make_constant(0, rows, np.int32), etags=Strings.of([value])
            )
        case _:
            return payloads


def compute_chunk_indices(
    starts: NDArray[np.int64], chunk_shape: Sequence[int]
) -> NDArray[np.uint32]:
    """Convert the array index of each chunk's first element to the chunk index."""
    if not len(chunk_shape):
        return np.zeros((len(starts), 0), np.uint32)
    return (starts // np.asarray(chunk_shape, np.int64)).astype(np.uint32)
