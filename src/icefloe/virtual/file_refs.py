"""References into one file, as columns. Pure, no I/O.

All arrays of a file share the table with its one location, and what it must still be when it is
read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import ErrorKind, FormatError
from icefloe.model.chunk_payload import ETag, LastModified
from icefloe.model.columns import constant
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.model.strings import Strings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import Checksum
    from icefloe.virtual.dataset import SourceFile


class FileRefs:
    """Makes references into one file.

    Parameters
    ----------
    source
        The file.
    checksum
        What it must still be when it is read.
    """

    def __init__(self, source: SourceFile, checksum: Checksum | None) -> None:
        self._source = source
        self._locations = Strings.of([source.url])
        self._checksum = checksum
        self._etags = Strings.of([checksum.value]) if isinstance(checksum, ETag) else None

    def of(
        self,
        coords: NDArray[np.uint32],
        offsets: Sequence[int] | NDArray[Any],
        lengths: Sequence[int] | NDArray[Any],
    ) -> ArrayManifest:
        """Make the references of one array, from rows in any order.

        Raises
        ------
        FormatError
            If one of them ends behind the file.
        """
        offset, length = np.asarray(offsets, np.uint64), np.asarray(lengths, np.uint64)
        size = self._source.size_bytes
        if size is not None and len(offset) and int((offset + length).max()) > size:
            raise FormatError(
                f"is cut off: it has {size} bytes, and a chunk of it would end at byte "
                f"{int((offset + length).max())}",
                file=self._source.url,
                kind=ErrorKind.INVALID_FILE_FORMAT,
            )
        rows = len(offset)
        payloads = ChunkPayloads.virtual(
            constant(0, rows, np.int32), self._locations, offset, length
        )
        match self._checksum:
            case LastModified(seconds):
                payloads = replace(payloads, last_modified=constant(seconds, rows, np.uint32))
            case ETag() if self._etags is not None:
                payloads = replace(payloads, etag=constant(0, rows, np.int32), etags=self._etags)
        return ArrayManifest.of(coords, payloads)

    def none(self, ndim: int) -> ArrayManifest:
        """Make the references of an array without chunks."""
        return self.of(np.zeros((0, ndim), np.uint32), [], [])


def chunk_coords(starts: NDArray[np.int64], chunk_shape: Sequence[int]) -> NDArray[np.uint32]:
    """Turn the first element of each chunk into its place in the grid."""
    if not len(chunk_shape):
        return np.zeros((len(starts), 0), np.uint32)
    return (starts // np.asarray(chunk_shape, np.int64)).astype(np.uint32)
