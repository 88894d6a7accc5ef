"""Splits the chunk references of an array over manifests. Pure.

A rule of the configuration gives each dimension a size in chunks. The sizes divide the grid into
cells, and the references of each cell go into one manifest.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model import manifest_config
from icefloe.model.manifest_config import ManifestSplitDimCondition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.model.manifest_config import (
        AnySplitDimCondition,
        ManifestSplitCondition,
        ManifestSplittingConfig,
    )
    from icefloe.model.node import ArrayNodeData, ManifestExtents
    from icefloe.model.path import Path

WHOLE_DIMENSION = 2**32 - 1


def compute_split_sizes(
    config: ManifestSplittingConfig, path: Path, array: ArrayNodeData
) -> tuple[int, ...]:
    """Return the number of chunks that a manifest spans along each dimension.

    A dimension takes its size from the first rule that matches the array and the dimension.
    """
    names = array.dimension_names or (None,) * len(array.shape)
    sizes: list[int | None] = [None] * len(array.shape)
    for condition, dimensions in config.effective_split_sizes:
        if None not in sizes:
            break
        if not matches(condition, path):
            continue
        for axis, name in enumerate(names):
            for dimension in dimensions:
                if sizes[axis] is None and _matches_dimension(dimension.condition, axis, name):
                    sizes[axis] = max(1, dimension.num_chunks)
    return tuple(WHOLE_DIMENSION if size is None else size for size in sizes)


def matches(condition: ManifestSplitCondition, path: Path) -> bool:
    """Whether a condition holds for the array at a path."""
    match condition:
        case manifest_config.SplitOr(conditions=conditions):
            return any(matches(part, path) for part in conditions)
        case manifest_config.SplitAnd(conditions=conditions):
            return all(matches(part, path) for part in conditions)
        case manifest_config.SplitPathMatches(regex=regex):
            return compile_regex(regex).search(path.value) is not None
        case manifest_config.SplitNameMatches(regex=regex):
            return compile_regex(regex).search(path.name) is not None
        case manifest_config.SplitAnyArray():
            return True
        case _:
            raise InvalidInputError(
                f"unknown condition in the manifest splitting rules: {condition!r}",
                kind=ErrorKind.STORAGE_CONFIG,
            )


def _matches_dimension(condition: AnySplitDimCondition, axis: int, name: str | None) -> bool:
    match condition:
        case ManifestSplitDimCondition.Axis(axis=number):
            return number == axis
        case ManifestSplitDimCondition.DimensionName(regex=regex):
            return name is not None and compile_regex(regex).search(name) is not None
        case _:
            return True


@lru_cache(maxsize=256)
def compile_regex(regex: str) -> re.Pattern[str]:
    """Compile a regular expression of the configuration.

    It is untrusted; its cost is bounded because paths and names are short.
    """
    try:
        return re.compile(regex)
    except re.error as error:
        raise InvalidInputError(
            f"invalid regular expression in the configuration: {regex!r} ({error})",
            kind=ErrorKind.STORAGE_CONFIG,
        ) from error


def find_cells(coords: NDArray[np.uint32], sizes: Sequence[int]) -> NDArray[np.uint32]:
    """Return the cell of each chunk, as a matrix of the same shape."""
    return coords // np.array(sizes, np.uint32)


def find_cell_boxes(
    extents: Sequence[ManifestExtents], sizes: Sequence[int], num_chunks: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and last cells (exclusive) that each of several extents overlaps.

    Boxes instead of lists of cells: a manifest may span more cells than fit in memory.
    """
    full_grid = [(0, count) for count in num_chunks]
    boxes = np.array([box.ranges or full_grid for box in extents], np.int64)
    boxes = boxes.reshape(len(extents), len(sizes), 2)
    width = np.array(sizes, np.int64)
    counts = -(-np.array(num_chunks, np.int64) // width)
    return boxes[:, :, 0] // width, np.minimum(-(-boxes[:, :, 1] // width), counts)
