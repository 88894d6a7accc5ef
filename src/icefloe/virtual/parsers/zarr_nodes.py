"""Converts the nodes of a Zarr v2 or v3 hierarchy to v3, and parses chunk keys. Pure, no I/O.

Used by the parsers of Zarr stores and of Kerchunk references.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError, NodeNotFoundError
from icefloe.virtual.parse_errors import damaged_error, unsupported_error
from icefloe.virtual.parsers.array_metadata import (
    build_array_metadata,
    encode_fill_value,
    get_array_template,
    normalize_chunk_keys,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.virtual.request import ParseRequest

DOCUMENTS: Final = frozenset({".zarray", ".zattrs", ".zgroup", "zarr.json"})
_SPECIAL_FLOATS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """The metadata of an array, and the separator and prefix of its chunk keys in the source."""

    metadata: dict[str, Any]
    separator: str
    prefix: str

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.metadata["shape"])

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of chunks along each dimension of a regular grid."""
        chunk = self.metadata["chunk_grid"]["configuration"]["chunk_shape"]
        lengths = zip(self.metadata["shape"], chunk, strict=True)
        return tuple(-(-length // step) for length, step in lengths)

    def parse_keys(self, keys: Sequence[str]) -> NDArray[np.uint32] | None:
        """Parse keys relative to the array; None if any is not a chunk key."""
        if self.ndim == 0:
            scalar = self.prefix.rstrip("/.") if self.prefix else "0"
            is_valid = all(key == scalar for key in keys)
            return np.zeros((len(keys), 0), np.uint32) if is_valid else None
        if not keys:
            return np.zeros((0, self.ndim), np.uint32)
        if self.prefix and not all(key.startswith(self.prefix) for key in keys):
            return None
        start = len(self.prefix)
        parts = self.separator.join([key[start:] for key in keys]).split(self.separator)
        digits = "".join(parts)
        is_numeric = digits.isascii() and digits.isdigit() and "" not in parts
        if not is_numeric or len(parts) != len(keys) * self.ndim:
            return None
        return np.array(parts, np.int64).reshape(-1, self.ndim).astype(np.uint32)


@dataclass(slots=True)
class ZarrNodes:
    """Groups and arrays of a hierarchy by path; the root is ``""``."""

    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: dict[str, ZarrArray] = field(default_factory=dict)

    def find_array(self, key: str) -> str | None:
        """Return the path of the array that contains a key, None if there is none."""
        path = key
        while path:
            path = path.rpartition("/")[0]
            if path in self.arrays:
                return path
        return None


def read_nodes(documents: Mapping[str, Any], request: ParseRequest) -> ZarrNodes:
    """Convert metadata documents, by key relative to the requested group, to nodes."""
    nodes = ZarrNodes()
    for key, document in documents.items():
        path, _, name = key.rpartition("/")
        if request.is_dropped(path) or any(
            path.startswith(f"{name}/") and request.is_dropped(name)
            for name in request.drop_variables
        ):
            continue
        if not isinstance(document, dict):
            raise damaged_error(request.url, f"{key} is not a JSON object")
        try:
            if name == "zarr.json":
                _read_v3(nodes, path, document, request)
            elif name == ".zarray":
                attributes = dict(documents.get(f"{path}/.zattrs".lstrip("/"), {}))
                nodes.arrays[path] = _convert_v2_array(document, attributes, path, request)
            elif name == ".zgroup":
                nodes.groups[path] = dict(documents.get(f"{path}/.zattrs".lstrip("/"), {}))
        except IcefloeError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged_error(request.url, f"{key} is not valid: {error!r}") from error
    if "" in nodes.arrays:
        raise InvalidInputError(
            f"{request.url}: {request.group or 'its root'} is an array, not a group: parse the "
            "group that contains it",
            kind=ErrorKind.NOT_A_GROUP,
        )
    nodes.groups.setdefault("", dict(documents.get(".zattrs", {})))
    return nodes


def _read_v3(nodes: ZarrNodes, path: str, document: dict[str, Any], request: ParseRequest) -> None:
    if document["node_type"] == "group":
        nodes.groups[path] = document.get("attributes") or {}
        return
    if document.get("storage_transformers"):
        raise unsupported_error(request.url, path, "it has storage transformers")
    encoding = document["chunk_key_encoding"]
    settings = encoding.get("configuration") or {}
    is_default = encoding["name"] == "default"
    separator = settings.get("separator", "/" if is_default else ".")
    prefix = f"c{separator}" if is_default else ""
    nodes.arrays[path] = ZarrArray(normalize_chunk_keys(document), separator, prefix)


def _convert_v2_array(
    zarray: dict[str, Any], attributes: dict[str, Any], path: str, request: ParseRequest
) -> ZarrArray:
    shape, chunks = zarray["shape"], zarray["chunks"]
    dims = attributes.pop("_ARRAY_DIMENSIONS", None)
    compressor = zarray.get("compressor")
    codecs = [*(zarray.get("filters") or []), *([compressor] if compressor else [])]
    if zarray["dtype"] == "|O":
        template = _build_string_template(codecs, path, request, len(shape))
    else:
        if isinstance(zarray["dtype"], list):
            raise unsupported_error(request.url, path, "compound types cannot be stored")
        dtype = np.dtype(zarray["dtype"])
        fill_value = zarray.get("fill_value")
        if dtype.kind in "fc" and isinstance(fill_value, str):
            fill_value = _SPECIAL_FLOATS.get(fill_value)
        if dtype.kind in "SUV":
            fill_value = None
        try:
            template = get_array_template(dtype, codecs, fill_value, len(shape))
        except IcefloeError:
            raise
        except Exception as error:
            names = ", ".join(str(codec.get("id")) for codec in codecs) or "no codecs"
            problem = f"zarr cannot represent {dtype} with {names}: {error}"
            raise unsupported_error(request.url, path, problem) from error
        attributes = _add_missing_value(attributes, fill_value, dtype)
    metadata = build_array_metadata(
        template, shape=shape, chunk_shape=chunks, dims=dims, attributes=attributes
    )
    if zarray.get("order", "C") == "F" and len(shape) > 1:
        order = {"name": "transpose", "configuration": {"order": [*range(len(shape))][::-1]}}
        metadata["codecs"] = [order, *metadata["codecs"]]
    return ZarrArray(metadata, zarray.get("dimension_separator", "."), "")


def _add_missing_value(
    attributes: dict[str, Any], fill_value: Any, dtype: np.dtype[Any]
) -> dict[str, Any]:
    """Add a ``_FillValue`` attribute: in v2 the fill value also marks missing data."""
    missing = attributes.get("_FillValue") if fill_value is None else fill_value
    if not isinstance(missing, int | float) or dtype.kind not in "iufb":
        return attributes
    return {**attributes, "_FillValue": encode_fill_value(missing, dtype)}


def _build_string_template(
    codecs: list[dict[str, Any]], path: str, request: ParseRequest, ndim: int
) -> dict[str, Any]:
    """Build the template of variable-length strings: the v2 filter is a codec in v3."""
    if not codecs or codecs[0].get("id") != "vlen-utf8":
        problem = "object arrays other than strings cannot be stored"
        raise unsupported_error(request.url, path, problem)
    template = get_array_template(np.dtype("i1"), codecs[1:], 0, ndim)
    compressors = [codec for codec in template["codecs"] if codec["name"] != "bytes"]
    return {
        **template,
        "data_type": "string",
        "fill_value": "",
        "codecs": [{"name": "vlen-utf8", "configuration": {}}, *compressors],
    }


def select_group(documents: Mapping[str, Any], group: str, url: str) -> dict[str, Any]:
    """Return the documents below a group, by key relative to the group.

    Raises `NodeNotFoundError` if a group other than the root has none.
    """
    if not group:
        return dict(documents)
    start = f"{group}/"
    below = {key[len(start) :]: value for key, value in documents.items() if key.startswith(start)}
    if not below:
        raise NodeNotFoundError(f"{url}: there is no group {group!r} in the Zarr hierarchy")
    return below
