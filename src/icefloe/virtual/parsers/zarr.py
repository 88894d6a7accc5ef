"""Zarr stores, of version 2 or 3: every chunk is an object of its own, found by listing.

Own code beside VirtualiZarr's parser, which knows only ``.`` between the indices of version 2, only
the arrays of one group, and not what version of each object it saw.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from icefloe.errors import ErrorKind, FormatError, InvalidInputError, NodeNotFoundError
from icefloe.model.chunk_payload import ETag, LastModified
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.model.strings import Strings
from icefloe.virtual.dataset import SourceFile, VirtualArray, VirtualDataset
from icefloe.virtual.parsers.zarr_nodes import DOCUMENTS, ZarrArray, below_group, read_nodes

if TYPE_CHECKING:
    from icefloe.storage.interface import ObjectInfo
    from icefloe.virtual.dataset import ChecksumChoice
    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import OpenSource

_MAX_REQUESTS = 16


def parse(
    source: OpenSource,
    request: ParseRequest,
    listed: list[tuple[str, ObjectInfo]],
    checksum: ChecksumChoice,
) -> VirtualDataset:
    """Parse a store whose objects were listed; no variable is loaded yet."""
    start = f"{request.group}/" if request.group else ""
    chunks: dict[str, list[tuple[str, ObjectInfo]]] = {}
    wanted = [
        key for key, _ in listed if key.startswith(start) and key.rpartition("/")[2] in DOCUMENTS
    ]
    with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
        found = pool.map(lambda key: _fetch_json(source, key), wanted)
        documents: dict[str, Any] = dict(zip(wanted, found, strict=True))
    nodes = read_nodes(below_group(documents, request.group), request)
    if not nodes.arrays and len(nodes.groups) == 1 and not documents:
        raise NodeNotFoundError(
            f"{source.url}: there is no group {request.group!r} in the Zarr hierarchy",
            kind=ErrorKind.NODE_NOT_FOUND,
        )
    for key, info in listed:
        name = key[len(start) :]
        if not key.startswith(start) or name.rpartition("/")[2].startswith((".z", "zarr.json")):
            continue
        path = _array_above(name, nodes.arrays)
        if path is not None:
            chunks.setdefault(path, []).append((name[len(path) + 1 if path else 0 :], info))
    arrays = {
        path: VirtualArray(
            array.metadata,
            _refs(
                array,
                f"{source.url}/{quote(start + path)}".rstrip("/"),
                chunks.get(path, []),
                checksum,
            ),
        )
        for path, array in nodes.arrays.items()
    }
    return VirtualDataset((request.source,), nodes.groups, dict(arrays))


def _refs(
    array: ZarrArray,
    url: str,
    chunks: list[tuple[str, ObjectInfo]],
    choice: ChecksumChoice,
) -> ArrayManifest:
    keys = [key for key, _ in chunks]
    coords = array.coords(keys)
    if coords is None:
        # Something else lies among the chunks; it is no part of the array.
        chunks = [one for one in chunks if array.coords([one[0]]) is not None]
        keys = [key for key, _ in chunks]
        coords = array.coords(keys)
        if coords is None:
            raise InvalidInputError(f"{url}: its chunks cannot be told apart")
    infos = [info for _, info in chunks]
    sums = [
        SourceFile(url, None, info.version.etag, info.last_modified).checksum(choice)
        for info in infos
    ]
    payloads = ChunkPayloads.virtual(
        np.arange(len(keys), dtype=np.int32),
        Strings.of([f"{url}/{key}" for key in keys]),
        np.zeros(len(keys), np.uint64),
        np.array([info.size_bytes for info in infos], np.uint64),
        last_modified=np.array(
            [one.seconds if isinstance(one, LastModified) else 0 for one in sums], np.uint32
        ),
    )
    etags = [one.value if isinstance(one, ETag) else "" for one in sums]
    if any(etags):
        codes, table = Strings.of(etags).unique()
        payloads = replace(
            payloads,
            etag=np.where(table.lengths[codes] > 0, codes, -1).astype(np.int32),
            etags=table,
        )
    present = np.flatnonzero(payloads.length > 0)
    return ArrayManifest.of(coords[present], payloads.rows(present))


def _array_above(key: str, arrays: dict[str, ZarrArray]) -> str | None:
    path = key
    while path:
        path = path.rpartition("/")[0]
        if path in arrays:
            return path
    return None


def _fetch_json(source: OpenSource, key: str) -> Any:
    try:
        return json.loads(source.below(key).fetch_all())
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"is damaged: {key} is no JSON ({error})",
            file=source.url,
            kind=ErrorKind.INVALID_FILE_FORMAT,
        ) from error
