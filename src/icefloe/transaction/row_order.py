"""Integer keys for rows of chunk indices: vectorized comparison of whole matrices.

Rows of ``u4[n, ndim]`` matrices are ordered lexicographically. `compute_row_keys` maps the rows of
one or several matrices to integers that compare as the rows do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_ROOM = 2**62


def compute_row_keys(matrices: Sequence[NDArray[np.uint32]]) -> list[NDArray[np.int64]]:
    """Return for each matrix an integer for each row; they compare as the rows do, across all."""
    sizes = [len(matrix) for matrix in matrices]
    filled = [matrix for matrix in matrices if len(matrix)]
    ndim = matrices[0].shape[1] if matrices else 0
    if not filled or not ndim:
        return [np.zeros(size, np.int64) for size in sizes]
    widths = [max(int(matrix[:, axis].max()) for matrix in filled) + 1 for axis in range(ndim)]
    keys = [matrix[:, 0].astype(np.int64) for matrix in matrices]
    span = widths[0]
    for axis in range(1, ndim):
        if span * widths[axis] > _ROOM:
            # Ranks are as good as the keys themselves, and there are no more than rows.
            distinct, ranks = np.unique(np.concatenate(keys), return_inverse=True)
            keys = np.split(ranks.astype(np.int64), np.cumsum(sizes)[:-1])
            span = len(distinct)
        keys = [
            key * widths[axis] + matrix[:, axis] for key, matrix in zip(keys, matrices, strict=True)
        ]
        span *= widths[axis]
    return keys


def find_common_rows(
    one: NDArray[np.uint32], other: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the rows that two matrices without repeated rows share: their places in each."""
    if one.shape[1] != other.shape[1]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    keys, other_keys = compute_row_keys([one, other])
    _, mine, theirs = np.intersect1d(keys, other_keys, assume_unique=True, return_indices=True)
    return mine, theirs
