"""Moves the chunks of an array to other coordinates. Pure."""

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
    """Return the changes that shift all chunks by an offset, dropping those that leave the grid."""
    if len(chunk_offset) != len(grid):
        raise InvalidInputError(
            f"an array of {len(grid)} dimensions cannot be shifted by {list(chunk_offset)}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    # Clipped to the grid, so that no sum overflows.
    pairs = zip(chunk_offset, grid, strict=True)
    offset = np.array([max(-count, min(shift, count)) for shift, count in pairs], np.int64)
    moved = refs.coords.astype(np.int64) + offset.reshape(1, -1)
    fits = np.all((moved >= 0) & (moved < np.array(grid, np.int64)), axis=1)
    rows = np.flatnonzero(fits)
    shifted = ArrayManifest.of(moved[rows].astype(np.uint32), refs.payloads.select_rows(rows))
    vacated = refs.coords[~overlay.is_among(refs.coords, shifted.coords)]
    return overlay.stack([overlay.mark_deleted(vacated), shifted])


def reindex_refs(
    refs: ArrayManifest, grid: tuple[int, ...], forward: IndexMapping, backward: IndexMapping | None
) -> ArrayManifest:
    """Return the changes that move each chunk by ``forward``; see `Session.reindex_array`."""
    present = {tuple(indices): row for row, indices in enumerate(refs.coords.tolist())}
    targets: dict[tuple[int, ...], int] = {}
    for indices, row in present.items():
        target = forward(indices)
        if target is not None:
            target = parse_coordinates(target, "the result of forward")
            targets[_require_inside(target, grid)] = row
    deleted = []
    if backward is not None:
        for indices in present.keys() - targets.keys():
            source = backward(indices)
            if source is None or parse_coordinates(source, "the result of backward") not in present:
                deleted.append(indices)
    rows = np.array(list(targets.values()), np.int64)
    moved = ArrayManifest.of(to_matrix(list(targets), len(grid)), refs.payloads.select_rows(rows))
    return overlay.stack([overlay.mark_deleted(to_matrix(deleted, len(grid))), moved])


def parse_coordinates(values: Iterable[object], what: str) -> tuple[int, ...]:
    """Return chunk coordinates as integers; raise for fractions and strings."""
    try:
        if isinstance(values, str | bytes):
            raise TypeError  # noqa: TRY301
        return tuple(map(operator.index, values))  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidInputError(
            f"{what} must have an integer for each dimension, not {values!r}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        ) from error


def _require_inside(indices: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, ...]:
    if len(indices) != len(grid) or not all(
        0 <= index < count for index, count in zip(indices, grid, strict=True)
    ):
        raise InvalidInputError(
            f"a chunk cannot move to {list(indices)}, outside the grid of "
            f"{' x '.join(map(str, grid))} chunks",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    return indices
