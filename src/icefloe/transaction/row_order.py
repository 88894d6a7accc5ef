"""Integer keys for rows of chunk indices: vectorized comparison of whole matrices.

Rows of ``u4[n, ndim]`` matrices are ordered lexicographically. `compute_row_keys` maps the rows of
one or several matrices to integers that compare as the rows do.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

# Upper bound on the number of possible keys, so that keys fit into int64.
_MAX_SPAN = 2**62


def to_matrix(rows: Collection[tuple[int, ...]], ndim: int) -> NDArray[np.uint32]:
    """Return chunk indices as a ``u4[n, ndim]`` matrix, even if there are none."""
    # Three times as fast as `numpy.array` of tuples.
    flat = np.fromiter(chain.from_iterable(rows), np.uint32, len(rows) * ndim)
    return flat.reshape(len(rows), ndim)


def compute_row_keys(matrices: Sequence[NDArray[np.uint32]]) -> list[NDArray[np.int64]]:
    """Return integer keys for the rows of each matrix, comparable across matrices."""
    sizes = [len(matrix) for matrix in matrices]
    nonempty = [matrix for matrix in matrices if len(matrix)]
    ndim = matrices[0].shape[1] if matrices else 0
    if not nonempty or not ndim:
        return [np.zeros(size, np.int64) for size in sizes]
    widths = [max(int(matrix[:, axis].max()) for matrix in nonempty) + 1 for axis in range(ndim)]
    keys = [matrix[:, 0].astype(np.int64) for matrix in matrices]
    span = widths[0]
    for axis in range(1, ndim):
        if span * widths[axis] > _MAX_SPAN:
            # The next product could overflow int64: replace the keys by their ranks, which have the
            # same order and are less than the number of rows.
            distinct, ranks = np.unique(np.concatenate(keys), return_inverse=True)
            keys = np.split(ranks.astype(np.int64), np.cumsum(sizes)[:-1])
            span = len(distinct)
        keys = [
            key * widths[axis] + matrix[:, axis] for key, matrix in zip(keys, matrices, strict=True)
        ]
        span *= widths[axis]
    return keys


def find_common_rows(
    left: NDArray[np.uint32], right: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row numbers, in ``left`` and in ``right``, of the rows that both contain.

    The rows of each matrix must be distinct.
    """
    if left.shape[1] != right.shape[1]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    left_keys, right_keys = compute_row_keys([left, right])
    _, left_rows, right_rows = np.intersect1d(
        left_keys, right_keys, assume_unique=True, return_indices=True
    )
    return left_rows, right_rows
