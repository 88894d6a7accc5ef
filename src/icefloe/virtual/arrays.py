"""The arrays of a virtual dataset: Zarr metadata with chunk references or with loaded values.

Immutable values that pickle and do not depend on a repository. References are columnar
(`icefloe.model.manifest`). Array paths are relative to the dataset root: ``a/b``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.model.manifest import ArrayManifest

_LOADED_CODECS = (
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
)
_LOADED_STRING_CODECS = ({"name": "vlen-utf8", "configuration": {}}, _LOADED_CODECS[1])
_MIN_CHUNK_ELEMENTS = 1024
"""Minimum chunk size of loaded arrays: appending single steps must not create a chunk per step."""


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

    def with_shape(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """Return a copy of the metadata with another shape."""
        return {**self.metadata, "shape": list(shape)}


@dataclass(frozen=True, slots=True)
class VirtualArray(_Array):
    """An array whose chunks are referenced, not copied.

    Parameters
    ----------
    refs
        Chunk references; chunks without a row are missing. Data embedded in a Kerchunk file is
        stored as inline chunks.
    """

    refs: ArrayManifest

    def __repr__(self) -> str:
        return f"<VirtualArray {_describe(self)}: {len(self.refs)} references>"


@dataclass(frozen=True, slots=True, eq=False)
class LoadedArray(_Array):
    """An array whose values are loaded, to be stored in the repository.

    Parameters
    ----------
    values
        Encoded values: not scaled, not masked, times as numbers.
    """

    values: NDArray[Any]

    @classmethod
    def of(cls, metadata: Mapping[str, Any], values: NDArray[Any]) -> LoadedArray:
        """Build an array from the metadata of a file, with new codecs and chunks."""
        is_string = values.dtype.kind in "OTU"
        new_metadata: dict[str, Any] = {
            **metadata,
            "shape": list(values.shape),
            "chunk_grid": _choose_grid(values.shape),
            "codecs": [*(_LOADED_STRING_CODECS if is_string else _LOADED_CODECS)],
        }
        if is_string:
            new_metadata |= {"data_type": "string", "fill_value": ""}
        elif values.dtype.kind in "iuf" and values.dtype.name != metadata["data_type"]:
            # Combined times may need a wider type. _FillValue still has the old type and is
            # dropped: coordinates have no missing values.
            attributes = {**metadata.get("attributes", {})}
            attributes.pop("_FillValue", None)
            new_metadata |= {
                "data_type": values.dtype.name,
                "fill_value": 0,
                "attributes": attributes,
            }
        return cls(new_metadata, values)

    def with_values(self, values: NDArray[Any]) -> LoadedArray:
        """Return a copy with other values."""
        return type(self).of(self.metadata, values)

    def __repr__(self) -> str:
        return f"<LoadedArray {_describe(self)}>"


AnyArray: TypeAlias = VirtualArray | LoadedArray


def find_coordinate(arrays: Mapping[str, AnyArray], path: str, dim: str) -> str | None:
    """Find the coordinate of a dimension in the group of ``path`` or its nearest ancestor."""
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
    equal = left == right
    if left.dtype.kind in "fc" and right.dtype.kind in "fc":
        equal |= (left != left) & (right != right)  # noqa: PLR0124 - only NaN differs from itself
    return bool(equal.all())


def _choose_grid(shape: tuple[int, ...]) -> dict[str, Any]:
    """Return a grid of one chunk, large enough for the array to grow along the first dimension."""
    chunk = [max(1, length) for length in shape]
    if chunk:
        chunk[0] = max(chunk[0], _MIN_CHUNK_ELEMENTS // math.prod(chunk[1:]), 1)
    return {"name": "regular", "configuration": {"chunk_shape": chunk}}


def _describe(array: _Array) -> str:
    lengths = zip(array.dimension_names, array.shape, strict=True)
    dims = ", ".join(f"{name}: {length}" for name, length in lengths)
    return f"{array.metadata['data_type']} ({dims})"
