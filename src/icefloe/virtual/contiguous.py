"""Splits contiguous arrays into chunks that match those of other files. Pure, no I/O.

Uncompressed values of a NetCDF3 file or of a contiguous HDF5 dataset can be referenced in pieces
of any length along the outermost dimension. Files of 31 and 28 daily steps can therefore form one
array whose chunk length divides both.
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
    """Split arrays so that all have the same chunk length along an axis.

    Returns the arrays unchanged if they need not or cannot be split.
    """
    shapes = [part.chunk_shape for part in parts]
    regular = [shape for shape in shapes if shape is not None]
    if len(regular) < len(shapes) or any(len(shape) <= axis for shape in regular):
        return list(parts)
    lengths = {shape[axis] for shape in regular}
    is_aligned = len(lengths) == 1 and all(
        part.shape[axis] % shape[axis] == 0
        for part, shape in zip(parts[:-1], regular[:-1], strict=True)
    )
    if is_aligned or not all(_is_splittable(part, axis) for part in parts):
        return list(parts)
    length = math.gcd(*lengths, *(part.shape[axis] for part in parts[:-1]))
    return [_split(part, axis, length) for part in parts]


def split_chunks(part: VirtualArray, axis: int, length: int) -> VirtualArray:
    """Split an array into chunks of a given length along an axis; unchanged if impossible."""
    chunk = part.chunk_shape
    if chunk is None or not length or chunk[axis] % length or not _is_splittable(part, axis):
        return part
    return _split(part, axis, length)


def _is_splittable(part: VirtualArray, axis: int) -> bool:
    """Return whether chunks are uncompressed and contiguous along the axis."""
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
    pieces = chunk[axis] // length
    if pieces <= 1:
        return part
    refs = part.refs
    # Contiguous values: all pieces of a chunk have the same number of bytes.
    size = refs.payloads.length // np.uint64(pieces)
    piece = np.tile(np.arange(pieces, dtype=np.uint64), len(refs))
    rows = np.repeat(np.arange(len(refs)), pieces)
    coords = refs.coords[rows]
    coords[:, axis] = coords[:, axis] * pieces + piece.astype(np.uint32)
    payloads = replace(
        refs.payloads.select_rows(rows),
        offset=refs.payloads.offset[rows] + piece * size[rows],
        length=size[rows],
    )
    # The last chunk may extend beyond the array.
    inside = np.flatnonzero(coords[:, axis].astype(np.int64) * length < part.shape[axis])
    shape = [*chunk[:axis], length, *chunk[axis + 1 :]]
    grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
    manifest = ArrayManifest.of(coords[inside], payloads.select_rows(inside))
    return VirtualArray({**part.metadata, "chunk_grid": grid}, manifest)
