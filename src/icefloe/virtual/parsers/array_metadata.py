"""Zarr version 3 metadata for arrays of files: what VirtualiZarr and zarr make of types and codecs.

Each combination of data type, codecs and fill value is translated once and kept: files of one
archive have the same few, and the translation takes longer than reading the file.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

from virtualizarr.codecs import zarr_codec_config_to_v3
from virtualizarr.manifests.utils import create_v3_array_metadata
from virtualizarr.parsers.utils import encode_cf_fill_value
from zarr.core.buffer import default_buffer_prototype

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

_DEFAULT_KEYS = {"name": "default", "configuration": {"separator": "/"}}
_MAX_TEMPLATES = 4096
_templates: dict[tuple[object, ...], dict[str, Any]] = {}


def unsupported(url: str, variable: str, what: str, instead: str = "") -> InvalidInputError:
    """Say that a variable cannot be referenced, and how to go on without it."""
    return InvalidInputError(
        f"{url}: {variable}: {what}; {instead}leave it out with drop_variables=[{variable!r}]",
        kind=ErrorKind.UNSUPPORTED_VARIABLE,
    )


def array_template(
    dtype: np.dtype[Any], codecs: Sequence[dict[str, Any]], fill_value: Any, ndim: int
) -> dict[str, Any]:
    """Make metadata for arrays of a type, with the codecs of numcodecs, in the order of encoding.

    Shape, chunks, dimension names and attributes are left for `array_metadata` to fill in. Raises
    whatever zarr or numcodecs say of something that they do not have.
    """
    key = dtype.str, repr(codecs), repr(fill_value), ndim
    found = _templates.get(key)
    if found is None:
        found = _template(dtype, codecs, fill_value, ndim)
        if len(_templates) >= _MAX_TEMPLATES:
            _templates.clear()
        _templates[key] = found
    return found


def array_metadata(
    template: dict[str, Any],
    *,
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    dimension_names: Sequence[str | None] | None,
    attributes: dict[str, Any],
) -> dict[str, Any]:
    """Fill in what differs from array to array."""
    # A chunk of length 0 is none, also where the array has no length.
    chunk = [max(1, length) for length in chunk_shape]
    metadata = {
        **template,
        "shape": list(shape),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "attributes": attributes,
    }
    if dimension_names is not None:
        metadata["dimension_names"] = list(dimension_names)
    return metadata


def normalised(metadata: dict[str, Any]) -> dict[str, Any]:
    """Let chunks have the keys that repositories know, whatever keys they had."""
    return {**metadata, "chunk_key_encoding": _DEFAULT_KEYS}


def as_document(metadata: Any) -> dict[str, Any]:
    """Turn zarr's own metadata object into JSON values."""
    text = metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
    document: dict[str, Any] = json.loads(text)
    return normalised(document)


def fill_value_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """Write ``_FillValue`` as xarray reads it from Zarr."""
    if dtype.kind in "iufcb":
        return encode_cf_fill_value(value, dtype)
    return value


def _template(
    dtype: np.dtype[Any], codecs: Sequence[dict[str, Any]], fill_value: Any, ndim: int
) -> dict[str, Any]:
    with warnings.catch_warnings():
        # That a codec is none of Zarr's specification is true, and nothing that could be changed.
        warnings.simplefilter("ignore")
        made = create_v3_array_metadata(
            shape=(1,) * ndim,
            data_type=dtype,
            chunk_shape=(1,) * ndim,
            fill_value=fill_value,
            codecs=[zarr_codec_config_to_v3(codec) for codec in codecs],
        )
        document = as_document(made)
    document.pop("dimension_names", None)
    return document
