"""Adapter for VirtualiZarr parsers: converts their manifests to columns.

Used for GeoTIFF (``virtual-tiff``) and for a ``parser`` that the user passes, such as one for FITS,
DMR++ or GRIB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from obspec_utils.registry import ObjectStoreRegistry

from icefloe.errors import IcefloeError
from icefloe.model.chunk_payload import InlineChunk
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.model.strings import Strings
from icefloe.storage.object_store.reader import open_reader
from icefloe.virtual.arrays import VirtualArray
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.file_refs import with_checksum
from icefloe.virtual.parse_errors import file_format_error
from icefloe.virtual.parsers.array_metadata import to_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import OpenSource


def parse(source: OpenSource, request: ParseRequest, parser: Callable[..., Any]) -> VirtualDataset:
    """Run a parser on a file, without loading variables."""
    # The prefix ends with the bucket or host: the client expects full keys.
    prefix = "file://" if source.path is not None else "/".join(source.url.split("/")[:3])
    registry = ObjectStoreRegistry({prefix: open_reader(source.storage)})
    try:
        store = parser(url=source.url, registry=registry)
    except IcefloeError:
        raise
    except Exception as error:
        reason = f"cannot be parsed by {type(parser).__name__}: {error}"
        raise file_format_error(source.url, reason) from error
    dataset = VirtualDataset((request.source,))
    _add_group(store._group, "", request, dataset)  # noqa: SLF001 - no public attribute
    return dataset


def _add_group(group: Any, path: str, request: ParseRequest, dataset: VirtualDataset) -> None:
    """Add a group and all nodes below it to a dataset."""
    dataset.groups[path] = dict(group.metadata.attributes)
    start = f"{path}/" if path else ""
    for name, array in group.arrays.items():
        if not request.is_dropped(f"{start}{name}"):
            manifest = _convert_manifest(array.manifest, request)
            dataset.arrays[f"{start}{name}"] = VirtualArray(to_document(array.metadata), manifest)
    for name, child in group.groups.items():
        if not request.is_dropped(f"{start}{name}"):
            _add_group(child, f"{start}{name}", request, dataset)


def _convert_manifest(manifest: Any, request: ParseRequest) -> ArrayManifest:
    paths = manifest._paths  # noqa: SLF001 - no public attribute
    offsets, lengths = manifest._offsets, manifest._lengths  # noqa: SLF001
    inlined: dict[tuple[int, ...], bytes] = getattr(manifest, "_inlined", {})
    present = np.flatnonzero((paths != "").reshape(-1))
    axes = np.unravel_index(present, paths.shape) if paths.shape else ()
    coords = np.stack(axes, 1) if axes else np.zeros((len(present), 0), np.int64)
    names = paths.reshape(-1)[present].tolist()
    codes, locations = Strings.of(names).unique()
    payloads = ChunkPayloads.make_virtual(
        codes, locations, offsets.reshape(-1)[present], lengths.reshape(-1)[present]
    )
    if list(locations) == [request.url]:
        payloads = with_checksum(payloads, request.checksum)
    if inlined:
        indices = list(inlined)
        is_virtual = np.array([tuple(row) not in inlined for row in coords.tolist()], bool)
        rows = np.flatnonzero(is_virtual)
        copied = ChunkPayloads.of([InlineChunk(inlined[index]) for index in indices])
        payloads = ChunkPayloads.concatenate([payloads.select_rows(rows), copied])
        added = np.array(indices, np.int64).reshape(len(indices), coords.shape[1])
        coords = np.concatenate([coords[rows], added])
    return ArrayManifest.of(coords.astype(np.uint32), payloads)
