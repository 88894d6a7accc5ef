"""Builds Zarr v3 metadata for arrays of other formats; VirtualiZarr and zarr convert the codecs.

Each combination of data type, codecs, fill value and number of dimensions is converted once and
cached: an archive has few combinations, and a conversion takes longer than reading a file.
VirtualiZarr is optional, and imported on first use.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import default_buffer_prototype

from icefloe.virtual.parse_errors import import_optional

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

_DEFAULT_CHUNK_KEY_ENCODING = {"name": "default", "configuration": {"separator": "/"}}
_MAX_TEMPLATES = 4096
_templates: dict[tuple[object, ...], dict[str, Any]] = {}


def get_array_template(
    dtype: np.dtype[Any], codecs: Sequence[dict[str, Any]], fill_value: Any, ndim: int
) -> dict[str, Any]:
    """Return metadata for arrays of a data type, to which `build_array_metadata` adds the rest.

    ``codecs`` are numcodecs configurations, in encoding order. Raises errors of zarr and numcodecs
    for unknown types and codecs. The template is cached: do not modify it.
    """
    key = dtype.str, repr(codecs), repr(fill_value), ndim
    template = _templates.get(key)
    if template is None:
        template = _build_template(dtype, codecs, fill_value, ndim)
        if len(_templates) >= _MAX_TEMPLATES:
            _templates.clear()
        _templates[key] = template
    return template


def build_array_metadata(
    template: dict[str, Any],
    *,
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    dims: Sequence[str | None] | None,
    attributes: dict[str, Any],
) -> dict[str, Any]:
    """Add shape, chunk grid, attributes and dimension names to a template."""
    # Zarr requires chunk lengths of at least 1, even for arrays of length 0.
    chunk_shape = [max(1, length) for length in chunk_shape]
    metadata = {
        **template,
        "shape": list(shape),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "attributes": attributes,
    }
    if dims is not None:
        metadata["dimension_names"] = list(dims)
    return metadata


def normalize_chunk_keys(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata with the default chunk key encoding, which repositories always have."""
    return {**metadata, "chunk_key_encoding": _DEFAULT_CHUNK_KEY_ENCODING}


def to_document(metadata: Any) -> dict[str, Any]:
    """Convert zarr's metadata object to JSON values, with normalized chunk keys."""
    text = metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
    document: dict[str, Any] = json.loads(text)
    return normalize_chunk_keys(document)


def encode_fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """Encode a ``_FillValue`` attribute as xarray expects it in Zarr; text is unchanged."""
    if dtype.kind in "iufcb":
        return import_optional("virtualizarr.parsers.utils").encode_cf_fill_value(value, dtype)
    return value


def _build_template(
    dtype: np.dtype[Any], codecs: Sequence[dict[str, Any]], fill_value: Any, ndim: int
) -> dict[str, Any]:
    convert_codec = import_optional("virtualizarr.codecs").zarr_codec_config_to_v3
    create_metadata = import_optional("virtualizarr.manifests.utils").create_v3_array_metadata
    with warnings.catch_warnings():
        # zarr warns about codecs that are not in the Zarr specification.
        warnings.simplefilter("ignore")
        metadata = create_metadata(
            shape=(1,) * ndim,
            data_type=dtype,
            chunk_shape=(1,) * ndim,
            fill_value=fill_value,
            codecs=[convert_codec(codec) for codec in codecs],
        )
        document = to_document(metadata)
    document.pop("dimension_names", None)
    return document
