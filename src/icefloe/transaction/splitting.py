"""How the chunk references of an array spread over manifests (seed `000`, Why Multiple Manifests).

Pure. A rule of the configuration gives each dimension a size in chunks; together they cut the grid
into cells, and each cell's references go into one manifest.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.manifest_config import (
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    SplitAnd,
    SplitAnyArray,
    SplitNameMatches,
    SplitOr,
    SplitPathMatches,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.model.manifest_config import AnySplitDimCondition, ManifestSplittingConfig
    from icefloe.model.node import ArrayNodeData, ManifestExtents
    from icefloe.model.path import Path

WHOLE = 2**32 - 1


def split_sizes(
    config: ManifestSplittingConfig, path: Path, array: ArrayNodeData
) -> tuple[int, ...]:
    """Say how many chunks a manifest spans along each dimension.

    Rules are tried in their order; a dimension takes the first size that names it, also from a
    later rule that matches the array.
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
                if sizes[axis] is None and _names(dimension.condition, axis, name):
                    sizes[axis] = max(1, dimension.num_chunks)
    return tuple(WHOLE if size is None else size for size in sizes)


def matches(condition: ManifestSplitCondition, path: Path) -> bool:
    """Whether a rule is about the array at a path."""
    match condition:
        case SplitOr(conditions=conditions):
            return any(matches(one, path) for one in conditions)
        case SplitAnd(conditions=conditions):
            return all(matches(one, path) for one in conditions)
        case SplitPathMatches(regex=regex):
            return compile_regex(regex).search(path.value) is not None
        case SplitNameMatches(regex=regex):
            return compile_regex(regex).search(path.name) is not None
        case SplitAnyArray():
            return True
        case _:
            raise InvalidInputError(
                f"a rule for splitting manifests has an unknown condition: {condition!r}",
                kind=ErrorKind.STORAGE_CONFIG,
            )


def _names(condition: AnySplitDimCondition, axis: int, name: str | None) -> bool:
    match condition:
        case ManifestSplitDimCondition.Axis(axis=wanted):
            return wanted == axis
        case ManifestSplitDimCondition.DimensionName(regex=regex):
            return name is not None and compile_regex(regex).search(name) is not None
        case _:
            return True


@lru_cache(maxsize=256)
def compile_regex(regex: str) -> re.Pattern[str]:
    """Compile a regular expression of the configuration.

    They come with the repository; paths and names are short, which bounds what one can cost.
    """
    try:
        return re.compile(regex)
    except re.error as error:
        raise InvalidInputError(
            f"the configuration has a regular expression that Python cannot read: {regex!r} "
            f"({error})",
            kind=ErrorKind.STORAGE_CONFIG,
        ) from error


def find_cells(coords: NDArray[np.uint32], sizes: Sequence[int]) -> NDArray[np.uint32]:
    """Return for each chunk the place of its cell among the cells: a matrix of the same form."""
    return coords // np.array(sizes, np.uint32)


def find_cell_boxes(
    extents: Sequence[ManifestExtents], sizes: Sequence[int], num_chunks: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the cells inside the grid that each of several extents touches: from, to.

    Boxes, not lists: a manifest may span more cells than there is memory for.
    """
    whole = [(0, count) for count in num_chunks]
    boxes = np.array([one.ranges or whole for one in extents], np.int64)
    boxes = boxes.reshape(len(extents), len(sizes), 2)
    width = np.array(sizes, np.int64)
    counts = -(-np.array(num_chunks, np.int64) // width)
    return boxes[:, :, 0] // width, np.minimum(-(-boxes[:, :, 1] // width), counts)
