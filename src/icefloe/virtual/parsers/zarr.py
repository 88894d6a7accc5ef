"""Parser of Zarr v2 and v3 stores: each chunk is an object, found by listing.

Used instead of VirtualiZarr's parser, which supports only the v2 separator ``.`` and the arrays of
one group, and does not record checksums.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.chunk_payload import ETag, LastModified
from icefloe.model.manifest import NO_CODE, ArrayManifest, ChunkPayloads
from icefloe.model.strings import Strings
from icefloe.virtual.arrays import VirtualArray
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.parse_errors import damaged_error
from icefloe.virtual.parsers.zarr_nodes import DOCUMENTS, ZarrArray, read_nodes, select_group
from icefloe.virtual.sources import SourceFile

if TYPE_CHECKING:
    from icefloe.storage.interface import ObjectInfo
    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import ChecksumChoice, OpenSource

_Listing: TypeAlias = "list[tuple[str, ObjectInfo]]"
_MAX_CONCURRENT_REQUESTS = 16


def parse(
    source: OpenSource, request: ParseRequest, listing: _Listing, checksum: ChecksumChoice
) -> VirtualDataset:
    """Parse a store from the listing of its objects; all arrays are virtual."""
    prefix = f"{request.group}/" if request.group else ""
    group_keys = [key for key, _ in listing if key.startswith(prefix)]
    keys = [key for key in group_keys if key.rpartition("/")[2] in DOCUMENTS]
    with ThreadPoolExecutor(_MAX_CONCURRENT_REQUESTS) as pool:
        results = pool.map(lambda key: _fetch_json(source, key), keys)
        documents = dict(zip(keys, results, strict=True))
    nodes = read_nodes(select_group(documents, request.group, source.url), request)
    chunks: dict[str, _Listing] = {}
    for key, info in listing:
        group_key = key[len(prefix) :]
        name = group_key.rpartition("/")[2]
        if not key.startswith(prefix) or name.startswith((".z", "zarr.json")):
            continue
        path = nodes.find_array(group_key)
        if path is not None:
            chunks.setdefault(path, []).append((group_key[len(path) + 1 if path else 0 :], info))
    arrays = {}
    for path, array in nodes.arrays.items():
        url = f"{source.url}/{quote(prefix + path)}".rstrip("/")
        refs = _build_refs(array, url, chunks.get(path, []), checksum)
        arrays[path] = VirtualArray(array.metadata, refs)
    return VirtualDataset((request.source,), nodes.groups, dict(arrays))


def _build_refs(
    array: ZarrArray, url: str, chunks: _Listing, checksum: ChecksumChoice
) -> ArrayManifest:
    coords = array.parse_keys([key for key, _ in chunks])
    if coords is None:
        # Ignore objects below the array that are not chunks.
        chunks = [(key, info) for key, info in chunks if array.parse_keys([key]) is not None]
        coords = array.parse_keys([key for key, _ in chunks])
        if coords is None:
            raise InvalidInputError(f"{url}: its chunk keys cannot be parsed")
    checksums = [
        SourceFile(url, None, info.version.etag, info.last_modified).checksum(checksum)
        for _, info in chunks
    ]
    seconds = [value.seconds if isinstance(value, LastModified) else 0 for value in checksums]
    etags = [value.value if isinstance(value, ETag) else "" for value in checksums]
    payloads = ChunkPayloads.make_virtual(
        np.arange(len(chunks), dtype=np.int32),
        Strings.of([f"{url}/{key}" for key, _ in chunks]),
        np.zeros(len(chunks), np.uint64),
        np.array([info.size_bytes for _, info in chunks], np.uint64),
        last_modified=np.array(seconds, np.uint32),
    )
    if any(etags):
        codes, table = Strings.of(etags).unique()
        etag_codes = np.where(table.lengths[codes] > 0, codes, NO_CODE).astype(np.int32)
        payloads = replace(payloads, etag_codes=etag_codes, etags=table)
    # An empty object cannot be decoded, and a repository accepts no reference to it.
    rows = np.flatnonzero(payloads.length > 0)
    return ArrayManifest.of(coords[rows], payloads.select_rows(rows))


def _fetch_json(source: OpenSource, key: str) -> Any:
    try:
        return json.loads(source.open_child(key).fetch_all())
    except (ValueError, RecursionError) as error:
        raise damaged_error(source.url, f"{key} is not JSON ({error})") from error
