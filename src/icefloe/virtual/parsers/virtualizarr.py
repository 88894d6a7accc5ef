"""What VirtualiZarr's parsers, and others made for it, find in files: their manifests as columns.

Serves GeoTIFF (``virtual-tiff``) and whatever a user passes as ``parser``: FITS, DMR++, GRIB.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from obspec_utils.registry import ObjectStoreRegistry

from icefloe.errors import ErrorKind, FormatError, IcefloeError
from icefloe.model.chunk_payload import ETag, InlineChunk, LastModified
from icefloe.model.columns import constant
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.model.strings import Strings
from icefloe.storage.object_store.reading_store import reading_store
from icefloe.virtual.dataset import VirtualArray, VirtualDataset
from icefloe.virtual.parsers.array_metadata import as_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.virtual.dataset import AnyArray
    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import OpenSource


def parse(source: OpenSource, request: ParseRequest, parser: Callable[..., Any]) -> VirtualDataset:
    """Run a parser on a file; no variable is loaded yet."""
    registry = _registry(source)
    try:
        found = parser(url=source.url, registry=registry)
    except IcefloeError:
        raise
    except Exception as error:
        raise FormatError(
            f"cannot be parsed by {type(parser).__name__}: {error}",
            file=source.url,
            kind=ErrorKind.INVALID_FILE_FORMAT,
        ) from error
    groups: dict[str, dict[str, Any]] = {}
    arrays: dict[str, AnyArray] = {}
    _walk(found._group, "", request, groups, arrays)  # noqa: SLF001 - it has no public name
    return VirtualDataset((request.source,), groups, arrays)


def _walk(
    group: Any,
    path: str,
    request: ParseRequest,
    groups: dict[str, dict[str, Any]],
    arrays: dict[str, AnyArray],
) -> None:
    groups[path] = dict(group.metadata.attributes)
    start = f"{path}/" if path else ""
    for name, array in group.arrays.items():
        if not request.is_dropped(f"{start}{name}"):
            metadata = as_document(array.metadata)
            arrays[f"{start}{name}"] = VirtualArray(metadata, _refs(array.manifest, request))
    for name, below in group.groups.items():
        if not request.is_dropped(f"{start}{name}"):
            _walk(below, f"{start}{name}", request, groups, arrays)


def _refs(manifest: Any, request: ParseRequest) -> ArrayManifest:
    paths = manifest._paths  # noqa: SLF001 - the columns, which have no public name
    offsets, lengths = manifest._offsets, manifest._lengths  # noqa: SLF001
    inlined: dict[tuple[int, ...], bytes] = getattr(manifest, "_inlined", {})
    present = np.flatnonzero((paths != "").reshape(-1))
    places = np.unravel_index(present, paths.shape) if paths.shape else ()
    coords = np.stack(places, 1) if places else np.zeros((len(present), 0), np.int64)
    names = paths.reshape(-1)[present].tolist()
    codes, locations = Strings.of(names).unique()
    payloads = ChunkPayloads.virtual(
        codes, locations, offsets.reshape(-1)[present], lengths.reshape(-1)[present]
    )
    if isinstance(request.checksum, LastModified) and list(locations) == [request.url]:
        seconds = constant(request.checksum.seconds, len(payloads), np.uint32)
        payloads = replace(payloads, last_modified=seconds)
    elif isinstance(request.checksum, ETag) and list(locations) == [request.url]:
        etags = Strings.of([request.checksum.value])
        payloads = replace(payloads, etag=constant(0, len(payloads), np.int32), etags=etags)
    if inlined:
        indices = list(inlined)
        is_virtual = np.array([tuple(row) not in inlined for row in coords.tolist()], bool)
        rows = np.flatnonzero(is_virtual)
        copied = ChunkPayloads.of([InlineChunk(inlined[one]) for one in indices])
        payloads = ChunkPayloads.concatenate([payloads.rows(rows), copied])
        added = np.array(indices, np.int64).reshape(len(indices), coords.shape[1])
        coords = np.concatenate([coords[rows], added])
    return ArrayManifest.of(coords.astype(np.uint32), payloads)


def _registry(source: OpenSource) -> Any:
    # Everything up to the bucket or host: the client knows objects by their whole keys.
    prefix = "file://" if source.path is not None else "/".join(source.url.split("/")[:3])
    return ObjectStoreRegistry({prefix: reading_store(source.storage)})
