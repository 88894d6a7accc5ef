"""Loads the values of small arrays: fetches the referenced chunks and decodes them with zarr."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore

from icefloe.model.chunk_payload import ChunkKind
from icefloe.virtual.arrays import LoadedArray, VirtualArray
from icefloe.virtual.parse_errors import file_format_error, unsupported_error
from icefloe.virtual.sources import fetch_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from icefloe.virtual.arrays import AnyArray
    from icefloe.virtual.dataset import VirtualDataset
    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import OpenSource

_MAX_LOADED_BYTES = 1 << 30


def load_values(
    dataset: VirtualDataset, request: ParseRequest, open_location: Callable[[str], OpenSource]
) -> VirtualDataset:
    """Load the arrays that a request selects; ``open_location`` opens the referenced files."""
    arrays: dict[str, AnyArray] = dict(dataset.arrays)
    paths = [
        path
        for path, array in arrays.items()
        if isinstance(array, VirtualArray)
        and request.is_loadable(path, array.dimension_names, compute_size_bytes(array))
    ]
    paths += request.find_bounds_to_load(arrays, list(arrays))
    for path in dict.fromkeys(paths):
        array = arrays[path]
        if not isinstance(array, VirtualArray):
            continue
        size_bytes = compute_size_bytes(array)
        if size_bytes > _MAX_LOADED_BYTES:
            problem = f"it is too large to load ({size_bytes} bytes)"
            hint = "list the arrays to load in loadable_variables, or "
            raise unsupported_error(request.url, path, problem, hint)
        values = decode_values(array, path, request.url, fetch_encoded(array, open_location))
        arrays[path] = LoadedArray.of(array.metadata, values)
    return replace(dataset, arrays=arrays)


def decode_values(array: VirtualArray, path: str, url: str, encoded: list[bytes]) -> NDArray[Any]:
    """Decode an array from the encoded bytes of its chunks, or raise `FormatError`."""
    keys = ["/".join(["a/c", *map(str, row)]) for row in array.refs.coords.tolist()]
    chunks = dict(zip(keys, encoded, strict=True))
    chunks["a/zarr.json"] = json.dumps(array.metadata).encode()
    store = MemoryStore({key: cpu.Buffer.from_bytes(data) for key, data in chunks.items()})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = np.asarray(zarr.open_array(store, path="a", mode="r")[...])
    except Exception as error:
        raise file_format_error(url, f"{path}: its values cannot be decoded: {error}") from error
    return values.astype(values.dtype.newbyteorder("="))


def fetch_encoded(array: VirtualArray, open_location: Callable[[str], OpenSource]) -> list[bytes]:
    """Fetch the encoded chunks of an array; ``open_location`` opens the referenced files.

    Raises `FormatError` if a chunk extends past the end of its file.
    """
    payloads = array.refs.payloads
    chunks: list[bytes] = [b""] * len(payloads)
    for row in np.flatnonzero(payloads.kind == ChunkKind.INLINE).tolist():
        start, length = int(payloads.offset[row]), int(payloads.length[row])
        chunks[row] = payloads.inline[start : start + length].tobytes()
    is_virtual = payloads.kind == ChunkKind.VIRTUAL
    for code in np.unique(payloads.location_codes[is_virtual]).tolist():
        rows = np.flatnonzero(is_virtual & (payloads.location_codes == code))
        source = open_location(payloads.locations[code])
        starts, lengths = payloads.offset[rows].tolist(), payloads.length[rows].tolist()
        contents = fetch_ranges(source, starts, lengths)
        for row, data, length in zip(rows.tolist(), contents, lengths, strict=True):
            if len(data) < length:
                reason = "is truncated: a referenced chunk extends past its end"
                raise file_format_error(source.url, reason)
            chunks[row] = data
    return chunks


def compute_size_bytes(array: VirtualArray) -> int:
    """Return the size of the decoded array in memory."""
    data_type = array.metadata["data_type"]
    if isinstance(data_type, dict):
        itemsize = int((data_type.get("configuration") or {}).get("length_bytes", 8))
    else:
        itemsize = 8 if data_type == "string" else np.dtype(data_type).itemsize
    return int(np.prod(array.shape, dtype=np.int64)) * itemsize
