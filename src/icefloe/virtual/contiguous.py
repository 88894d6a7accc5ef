"""Splits contiguous arrays into chunks that match those of other files. Pure, no I/O.

Uncompressed values of a NetCDF3 file or of a contiguous HDF5 dataset can be referenced in pieces
of any length along the outermost dimension. Files of 30 and 36 steps can therefore form one array
with chunks of length 6.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.manifest import ArrayManifest
from icefloe.virtual.arrays import VirtualArray

if TYPE_CHECKING:
    from collections.abc import Sequence


def align_chunk_lengths(parts: Sequence[VirtualArray], axis: int) -> list[VirtualArray]:
    """Split arrays into chunks of one length along an axis, which divides all but the last array.

    Returns the arrays unchanged if that is the case already, or one of them cannot be split.
    """
    chunks = [part.chunk_shape for part in parts if part.chunk_shape is not None]
    if len(chunks) < len(parts) or any(len(chunk) <= axis for chunk in chunks):
        return list(parts)
    lengths = {chunk[axis] for chunk in chunks}
    is_aligned = len(lengths) == 1 and all(
        part.shape[axis] % chunk[axis] == 0
        for part, chunk in zip(parts[:-1], chunks[:-1], strict=True)
    )
    if is_aligned or not all(_is_splittable(part, axis) for part in parts):
        return list(parts)
    length = math.gcd(*lengths, *(part.shape[axis] for part in parts[:-1]))
    return [_split(part, axis, length) for part in parts]


def split_chunks(part: VirtualArray, axis: int, length: int) -> VirtualArray:
    """Split chunks to a length along an axis; return the array unchanged if that is impossible."""
    chunk = part.chunk_shape
    if chunk is None or not length or chunk[axis] % length or not _is_splittable(part, axis):
        return part
    return _split(part, axis, length)


def _is_splittable(part: VirtualArray, axis: int) -> bool:
    """Return whether chunks are virtual and uncompressed, and pieces along the axis contiguous."""
    chunk = part.chunk_shape
    return (
        chunk is not None
        and [codec["name"] for codec in part.metadata["codecs"]] == ["bytes"]
        and chunk[axis] > 0
        and all(length == 1 for length in chunk[:axis])
        and chunk[axis + 1 :] == tuple(max(1, length) for length in part.shape[axis + 1 :])
        and bool((part.refs.payloads.kind == ChunkKind.VIRTUAL).all())
    )


def _split(part: VirtualArray, axis: int, length: int) -> VirtualArray:
    chunk = part.chunk_shape or ()
    num_pieces = chunk[axis] // length
    if num_pieces <= 1:
        return part
    refs = part.refs
    # Contiguous values: all pieces of a chunk have the same number of bytes.
    piece_bytes = refs.payloads.length // np.uint64(num_pieces)
    numbers = np.tile(np.arange(num_pieces, dtype=np.uint64), len(refs))
    rows = np.repeat(np.arange(len(refs)), num_pieces)
    coords = refs.coords[rows]
    coords[:, axis] = coords[:, axis] * num_pieces + numbers.astype(np.uint32)
    payloads = replace(
        refs.payloads.select_rows(rows),
        offset=refs.payloads.offset[rows] + numbers * piece_bytes[rows],
        length=piece_bytes[rows],
    )
    # The last chunk may extend beyond the array: omit pieces outside.
    pieces = np.flatnonzero(coords[:, axis].astype(np.int64) * length < part.shape[axis])
    shape = [*chunk[:axis], length, *chunk[axis + 1 :]]
    grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
    manifest = ArrayManifest.of(coords[pieces], payloads.select_rows(pieces))
    return VirtualArray({**part.metadata, "chunk_grid": grid}, manifest)
