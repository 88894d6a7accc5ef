"""The nodes of a Zarr hierarchy, of version 2 or 3, as version 3. Pure, no I/O.

What Zarr stores and Kerchunk's references have in common: documents under the names that Zarr gives
them, and keys of chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.virtual.parsers.array_metadata import (
    array_metadata,
    array_template,
    fill_value_attribute,
    normalised,
    unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.virtual.request import ParseRequest

DOCUMENTS: Final = frozenset({".zarray", ".zattrs", ".zgroup", "zarr.json"})
_SPECIAL_FLOATS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """An array, and how the keys of its chunks are written."""

    metadata: dict[str, Any]
    separator: str
    prefix: str

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.metadata["shape"])

    @property
    def grid(self) -> tuple[int, ...]:
        """How many chunks it has along each dimension, where all have one shape."""
        chunk = self.metadata["chunk_grid"]["configuration"]["chunk_shape"]
        return tuple(
            -(-length // one) for length, one in zip(self.metadata["shape"], chunk, strict=True)
        )

    def coords(self, keys: Sequence[str]) -> NDArray[np.uint32] | None:
        """Read the keys of chunks, below the array; None if one of them is no key of a chunk."""
        if self.ndim == 0:
            scalar = self.prefix.rstrip("/.") if self.prefix else "0"
            return (
                None if any(key != scalar for key in keys) else np.zeros((len(keys), 0), np.uint32)
            )
        if not keys:
            return np.zeros((0, self.ndim), np.uint32)
        if self.prefix and not all(key.startswith(self.prefix) for key in keys):
            return None
        cut = len(self.prefix)
        parts = self.separator.join([key[cut:] for key in keys]).split(self.separator)
        digits = "".join(parts)
        if len(parts) != len(keys) * self.ndim or "" in parts:
            return None
        if not (digits.isascii() and digits.isdigit()):
            return None
        return np.array(parts, np.int64).reshape(-1, self.ndim).astype(np.uint32)


@dataclass(slots=True)
class ZarrNodes:
    """The groups and arrays of a hierarchy, by path; the root is ``""``."""

    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: dict[str, ZarrArray] = field(default_factory=dict)


def read_nodes(documents: Mapping[str, Any], request: ParseRequest) -> ZarrNodes:
    """Read documents, given under their keys relative to the group that is wanted."""
    nodes = ZarrNodes()
    for key, document in documents.items():
        path, _, name = key.rpartition("/")
        if request.is_dropped(path) or any(
            path.startswith(f"{dropped}/") for dropped in request.drop_variables
        ):
            continue
        if not isinstance(document, dict):
            raise _damaged(request, key, "it is no JSON object")
        try:
            if name == "zarr.json":
                _read_v3(nodes, path, document, request)
            elif name == ".zarray":
                attributes = dict(documents.get(f"{path}/.zattrs".lstrip("/"), {}))
                nodes.arrays[path] = _v2_array(document, attributes, path, request)
            elif name == ".zgroup":
                nodes.groups[path] = dict(documents.get(f"{path}/.zattrs".lstrip("/"), {}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, FormatError):
                raise
            raise _damaged(request, key, f"it cannot be understood: {error!r}") from error
    if "" in nodes.arrays:
        raise InvalidInputError(
            f"{request.url}: {request.group or 'its root'} is an array and no group: parse the "
            "group that it is in",
            kind=ErrorKind.NOT_A_GROUP,
        )
    nodes.groups.setdefault("", dict(documents.get(".zattrs", {})))
    return nodes


def _read_v3(nodes: ZarrNodes, path: str, document: dict[str, Any], request: ParseRequest) -> None:
    if document["node_type"] == "group":
        nodes.groups[path] = document.get("attributes") or {}
        return
    if document.get("storage_transformers"):
        raise unsupported(request.url, path, "it has storage transformers")
    encoding = document["chunk_key_encoding"]
    settings = encoding.get("configuration") or {}
    is_default = encoding["name"] == "default"
    separator = settings.get("separator", "/" if is_default else ".")
    nodes.arrays[path] = ZarrArray(
        normalised(document), separator, f"c{separator}" if is_default else ""
    )


def _v2_array(
    zarray: dict[str, Any], attributes: dict[str, Any], path: str, request: ParseRequest
) -> ZarrArray:
    shape, chunks = zarray["shape"], zarray["chunks"]
    dims = attributes.pop("_ARRAY_DIMENSIONS", None)
    codecs = [
        *(zarray.get("filters") or []),
        *([zarray["compressor"]] if zarray.get("compressor") else []),
    ]
    if zarray["dtype"] == "|O":
        template = _string_template(codecs, path, request, len(shape))
    else:
        if isinstance(zarray["dtype"], list):
            raise unsupported(request.url, path, "values of a compound type cannot be stored")
        dtype = np.dtype(zarray["dtype"])
        fill_value = zarray.get("fill_value")
        if dtype.kind in "fc" and isinstance(fill_value, str):
            fill_value = _SPECIAL_FLOATS.get(fill_value)
        if dtype.kind in "SUV":
            fill_value = None
        try:
            template = array_template(dtype, codecs, fill_value, len(shape))
        except Exception as error:
            names = ", ".join(str(codec.get("id")) for codec in codecs) or "no codecs"
            raise unsupported(
                request.url, path, f"zarr has no such array of {dtype} with {names}: {error}"
            ) from error
        attributes = _with_missing_value(attributes, fill_value, dtype)
    metadata = array_metadata(
        template,
        shape=shape,
        chunk_shape=chunks,
        dimension_names=dims,
        attributes=attributes,
    )
    if zarray.get("order", "C") == "F" and len(shape) > 1:
        order = {"name": "transpose", "configuration": {"order": [*range(len(shape))][::-1]}}
        metadata["codecs"] = [order, *metadata["codecs"]]
    return ZarrArray(metadata, zarray.get("dimension_separator", "."), "")


def _with_missing_value(
    attributes: dict[str, Any], fill_value: Any, dtype: np.dtype[Any]
) -> dict[str, Any]:
    """Say by an attribute what is missing: to readers of version 2 the fill value says it."""
    missing = attributes.get("_FillValue") if fill_value is None else fill_value
    if not isinstance(missing, int | float) or dtype.kind not in "iufb":
        return attributes
    return {**attributes, "_FillValue": fill_value_attribute(missing, dtype)}


def _string_template(
    codecs: list[dict[str, Any]], path: str, request: ParseRequest, ndim: int
) -> dict[str, Any]:
    """Strings of variable length: the codec that version 2 had as a filter is Zarr's own now."""
    if not codecs or codecs[0].get("id") != "vlen-utf8":
        raise unsupported(request.url, path, "Python objects cannot be stored")
    template = array_template(np.dtype("i1"), codecs[1:], 0, ndim)
    compressors = [one for one in template["codecs"] if one["name"] != "bytes"]
    return {
        **template,
        "data_type": "string",
        "fill_value": "",
        "codecs": [{"name": "vlen-utf8", "configuration": {}}, *compressors],
    }


def _damaged(request: ParseRequest, key: str, what: str) -> FormatError:
    return FormatError(
        f"is damaged: {key}: {what}", file=request.url, kind=ErrorKind.INVALID_FILE_FORMAT
    )


def below_group(documents: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Take what lies below a group, under the keys that it has there."""
    if not group:
        return dict(documents)
    start = f"{group}/"
    return cast(
        "dict[str, Any]",
        {key[len(start) :]: value for key, value in documents.items() if key.startswith(start)},
    )
