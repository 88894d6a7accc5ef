"""Moves the chunk references of an array to other coordinates. Pure."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.manifest import ArrayManifest
from icefloe.transaction import overlay
from icefloe.transaction.row_order import to_matrix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    IndexMapping = Callable[[Iterable[int]], Iterable[int] | None]


def shift_refs(
    refs: ArrayManifest, grid: tuple[int, ...], chunk_offset: Sequence[int]
) -> ArrayManifest:
    """Return the changes that shift all chunks by an offset and drop chunks that leave the grid."""
    if len(chunk_offset) != len(grid):
        raise InvalidInputError(
            f"an array of {len(grid)} dimensions cannot be shifted by {list(chunk_offset)}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    # Clipped to the grid, so that no sum overflows.
    pairs = zip(chunk_offset, grid, strict=True)
    offset = np.array([max(-size, min(shift, size)) for shift, size in pairs], np.int64)
    coords = refs.coords.astype(np.int64) + offset.reshape(1, -1)
    is_inside = np.all((coords >= 0) & (coords < np.array(grid, np.int64)), axis=1)
    rows = np.flatnonzero(is_inside)
    new_refs = ArrayManifest.of(coords[rows].astype(np.uint32), refs.payloads.select_rows(rows))
    empty_coords = refs.coords[~overlay.is_among(refs.coords, new_refs.coords)]
    return overlay.stack([overlay.mark_deleted(empty_coords), new_refs])


def reindex_refs(
    refs: ArrayManifest, grid: tuple[int, ...], forward: IndexMapping, backward: IndexMapping | None
) -> ArrayManifest:
    """Return the changes that give each chunk new coordinates; see `Session.reindex_array`."""
    rows = {tuple(indices): row for row, indices in enumerate(refs.coords.tolist())}
    new_rows: dict[tuple[int, ...], int] = {}  # rows of `refs` by new coordinates
    for indices, row in rows.items():
        target = forward(indices)
        if target is not None:
            target = parse_coordinates(target, "the result of forward")
            new_rows[_require_inside(target, grid)] = row
    empty_coords = []
    if backward is not None:
        for indices in rows.keys() - new_rows.keys():
            source = backward(indices)
            if source is None or parse_coordinates(source, "the result of backward") not in rows:
                empty_coords.append(indices)
    payloads = refs.payloads.select_rows(np.array(list(new_rows.values()), np.int64))
    new_refs = ArrayManifest.of(to_matrix(list(new_rows), len(grid)), payloads)
    return overlay.stack([overlay.mark_deleted(to_matrix(empty_coords, len(grid))), new_refs])


def parse_coordinates(values: Iterable[object], label: str) -> tuple[int, ...]:
    """Return chunk coordinates as integers; raise if a value is not an integer."""
    try:
        if isinstance(values, str | bytes):  # bytes are iterables of integers
            raise TypeError  # noqa: TRY301
        return tuple(map(operator.index, values))  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidInputError(
            f"{label} must have an integer for each dimension, not {values!r}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        ) from error


def _require_inside(indices: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, ...]:
    if len(indices) != len(grid) or not all(
        0 <= index < num_chunks for index, num_chunks in zip(indices, grid, strict=True)
    ):
        raise InvalidInputError(
            f"a chunk cannot move to {list(indices)}, outside the grid of "
            f"{' x '.join(map(str, grid))} chunks",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    return indices
