"""Reads the values of small arrays through their references, decoded as Zarr would."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore

from icefloe.errors import ErrorKind, FormatError
from icefloe.model.chunk_payload import ChunkKind
from icefloe.virtual.dataset import LoadedArray, VirtualArray, VirtualDataset
from icefloe.virtual.parsers.array_metadata import unsupported
from icefloe.virtual.sources import fetch_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from icefloe.virtual.dataset import AnyArray
    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import OpenSource

_MAX_BYTES = 1 << 30


def load_values(
    dataset: VirtualDataset, request: ParseRequest, opened: Callable[[str], OpenSource]
) -> VirtualDataset:
    """Replace the arrays that a request wants as values; ``opened`` opens what they refer to."""
    arrays: dict[str, AnyArray] = dict(dataset.arrays)
    wanted = [
        path
        for path, array in arrays.items()
        if isinstance(array, VirtualArray)
        and request.is_loadable(path, array.dimension_names, compute_size_bytes(array))
    ]
    wanted += request.bounds_to_load(arrays, list(arrays))
    for path in dict.fromkeys(wanted):
        array = arrays[path]
        if isinstance(array, VirtualArray):
            _require_small(array, path, request.url)
            values = decode_values(array, path, request.url, fetch_encoded(array, opened))
            arrays[path] = LoadedArray.of(array.metadata, values)
    return VirtualDataset(dataset.sources, dataset.groups, arrays)


def decode_values(array: VirtualArray, path: str, url: str, encoded: list[bytes]) -> NDArray[Any]:
    """Decode an array of a file from the bytes of its chunks.

    Raises
    ------
    FormatError
        If they cannot be decoded.
    """
    keys = ["/".join(["a/c", *map(str, row)]) for row in array.refs.coords.tolist()]
    chunks = dict(zip(keys, encoded, strict=True))
    chunks["a/zarr.json"] = json.dumps(array.metadata).encode()
    store = MemoryStore({key: cpu.Buffer.from_bytes(data) for key, data in chunks.items()})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = np.asarray(zarr.open_array(store, path="a", mode="r")[...])
    except Exception as error:
        raise FormatError(
            f"{path}: its values cannot be decoded: {error}",
            file=url,
            kind=ErrorKind.INVALID_FILE_FORMAT,
        ) from error
    return values.astype(values.dtype.newbyteorder("="))


def fetch_encoded(array: VirtualArray, opened: Callable[[str], OpenSource]) -> list[bytes]:
    """Fetch the chunks of an array; ``opened`` opens what it refers to.

    Raises
    ------
    FormatError
        If one is cut off.
    """
    payloads = array.refs.payloads
    found: list[bytes] = [b""] * len(payloads)
    for row in np.flatnonzero(payloads.kind == ChunkKind.INLINE).tolist():
        start, length = int(payloads.offset[row]), int(payloads.length[row])
        found[row] = payloads.inline[start : start + length].tobytes()
    is_virtual = payloads.kind == ChunkKind.VIRTUAL
    for code in np.unique(payloads.location[is_virtual]).tolist():
        rows = np.flatnonzero(is_virtual & (payloads.location == code))
        source = opened(payloads.locations[code])
        starts, lengths = payloads.offset[rows].tolist(), payloads.length[rows].tolist()
        for row, data, length in zip(
            rows.tolist(), fetch_ranges(source, starts, lengths), lengths, strict=True
        ):
            if len(data) < length:
                raise FormatError(
                    "is cut off: it ends before a chunk does",
                    file=source.url,
                    kind=ErrorKind.INVALID_FILE_FORMAT,
                )
            found[row] = data
    return found


def _require_small(array: VirtualArray, path: str, url: str) -> None:
    if compute_size_bytes(array) > _MAX_BYTES:
        raise unsupported(
            url,
            path,
            f"with {compute_size_bytes(array)} bytes it is too large to be loaded",
            "name what to load in loadable_variables, or ",
        )


def compute_size_bytes(array: VirtualArray) -> int:
    """Tell how large the values of an array are in memory."""
    data_type = array.metadata["data_type"]
    if isinstance(data_type, dict):
        itemsize = int((data_type.get("configuration") or {}).get("length_bytes", 8))
    else:
        itemsize = 8 if data_type == "string" else np.dtype(data_type).itemsize
    return int(np.prod(array.shape, dtype=np.int64)) * itemsize
