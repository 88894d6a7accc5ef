"""The arrays of a virtual dataset: Zarr metadata with chunk references or with loaded values.

Immutable values that pickle and do not depend on a repository. References are columnar
(`icefloe.model.manifest`). Array paths are relative to the dataset root: ``a/b``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.model.manifest import ArrayManifest

# zstd takes level 0 as its default level, 3.
_ZSTD: Final = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
_LOADED_CODECS: Final = ({"name": "bytes", "configuration": {"endian": "little"}}, _ZSTD)
_LOADED_STRING_CODECS: Final = ({"name": "vlen-utf8", "configuration": {}}, _ZSTD)
_MIN_CHUNK_ELEMENTS: Final = 1024
"""Approximate minimum for loaded arrays, so that appending a single value rarely adds a chunk."""


@dataclass(frozen=True, slots=True)
class _Array:
    """Base of virtual and loaded arrays; ``metadata`` is the parsed ``zarr.json`` (v3)."""

    metadata: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Array shape."""
        return tuple(self.metadata["shape"])

    @property
    def chunk_shape(self) -> tuple[int, ...] | None:
        """Chunk shape, None if the chunk grid is not regular."""
        grid = self.metadata["chunk_grid"]
        return tuple(grid["configuration"]["chunk_shape"]) if grid["name"] == "regular" else None

    @property
    def dimension_names(self) -> tuple[str | None, ...]:
        """Dimension names, None for unnamed dimensions."""
        names = self.metadata.get("dimension_names")
        return (None,) * len(self.shape) if names is None else tuple(names)

    @property
    def attributes(self) -> dict[str, Any]:
        """User attributes."""
        return cast("dict[str, Any]", self.metadata.get("attributes", {}))

    def metadata_with_shape(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """Return a copy of the metadata with another shape."""
        return {**self.metadata, "shape": list(shape)}


@dataclass(frozen=True, slots=True)
class VirtualArray(_Array):
    """An array whose chunks are referenced, not copied.

    Parameters
    ----------
    refs
        Chunk references; chunks without a reference are missing. Bytes embedded in a Kerchunk file
        are inline chunks.
    """

    refs: ArrayManifest

    def __repr__(self) -> str:
        return f"<VirtualArray {_describe(self)}: {len(self.refs)} references>"


@dataclass(frozen=True, slots=True, eq=False)
class LoadedArray(_Array):
    """An array whose values are in memory; writing it stores them as chunks of the repository.

    Parameters
    ----------
    values
        Encoded values: not scaled, not masked, times as numbers.
    """

    values: NDArray[Any]

    @classmethod
    def of(cls, metadata: Mapping[str, Any], values: NDArray[Any]) -> LoadedArray:
        """Build an array; shape, data type, codecs and chunks of the metadata follow ``values``."""
        is_string = values.dtype.kind in "OTU"  # objects are strings
        new_metadata: dict[str, Any] = {
            **metadata,
            "shape": list(values.shape),
            "chunk_grid": _choose_grid(values.shape),
            "codecs": [*(_LOADED_STRING_CODECS if is_string else _LOADED_CODECS)],
        }
        if is_string:
            new_metadata |= {"data_type": "string", "fill_value": ""}
        elif values.dtype.kind in "iuf" and values.dtype.name != metadata["data_type"]:
            # Times in converted units may need another type.
            new_metadata |= {"data_type": values.dtype.name, "fill_value": 0}
        return cls(new_metadata, values)

    def __repr__(self) -> str:
        return f"<LoadedArray {_describe(self)}>"


AnyArray: TypeAlias = VirtualArray | LoadedArray


def find_coordinate(arrays: Mapping[str, AnyArray], path: str, dim: str) -> str | None:
    """Return the path of a dimension's coordinate in the group of ``path`` or nearest ancestor."""
    group = path.rpartition("/")[0]
    while True:
        candidate = f"{group}/{dim}" if group else dim
        array = arrays.get(candidate)
        if array is not None and array.dimension_names == (dim,):
            return candidate
        if not group:
            return None
        group = group.rpartition("/")[0]


def are_arrays_equal(left: NDArray[np.generic], right: NDArray[np.generic]) -> bool:
    """Return whether two arrays have the same values; NaN equals NaN."""
    if left.shape != right.shape:
        return False
    is_equal = left == right
    if left.dtype.kind in "fc" and right.dtype.kind in "fc":
        is_equal |= (left != left) & (right != right)  # noqa: PLR0124 - only NaN differs from itself
    return bool(is_equal.all())


def _choose_grid(shape: tuple[int, ...]) -> dict[str, Any]:
    """Return a grid of one chunk, extended along the first dimension if it would be small."""
    chunk_shape = [max(1, length) for length in shape]
    if chunk_shape:
        min_length = _MIN_CHUNK_ELEMENTS // math.prod(chunk_shape[1:])
        chunk_shape[0] = max(chunk_shape[0], min_length)
    return {"name": "regular", "configuration": {"chunk_shape": chunk_shape}}


def _describe(array: _Array) -> str:
    named_lengths = zip(array.dimension_names, array.shape, strict=True)
    dims = ", ".join(f"{name}: {length}" for name, length in named_lengths)
    return f"{array.metadata['data_type']} ({dims})"
