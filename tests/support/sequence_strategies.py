"""Hypothesis strategies for the values that files of generation sequence hold."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from icefloe.format.sequence.codec import SequenceCodec
from icefloe.format.sequence.snapshot import RESERVED
from icefloe.format.zarr_data_type import COMPLEX_PARTS, FLOAT_FORMATS, INTEGER_SIZES
from icefloe.model.chunk_payload import ChunkRef, InlineChunk, VirtualChunkRef
from icefloe.model.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    DimensionShape,
    GroupNodeData,
    ManifestExtents,
    ManifestRef,
    NodeSnapshot,
)
from icefloe.model.snapshot import ManifestFileInfo, Snapshot, SnapshotInfo
from support import format_strategies
from support.format_strategies import (
    CHECKSUMS,
    INLINE,
    KEYS,
    LOCATIONS,
    NUMBERED_NODE_IDS,
    PATHS,
    TEXTS,
    TIMES,
    U32,
    U64,
    raw_ids,
    up_to,
)

if TYPE_CHECKING:
    from icefloe.model.manifest import Manifest

CODEC = SequenceCodec()
SNAPSHOT_IDS = raw_ids(16).map(SnapshotId)
MANIFEST_IDS = raw_ids(16).map(ManifestId)
PAYLOADS = st.one_of(
    st.builds(ChunkRef, raw_ids(16).map(ChunkId), up_to(U64), up_to(U64)),
    st.builds(VirtualChunkRef, LOCATIONS, up_to(U64), up_to(U64), CHECKSUMS),
    st.builds(InlineChunk, INLINE),
)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), U64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
# Hypothesis also draws constants of the source, among them the reserved name.
METADATA = st.dictionaries(TEXTS.filter(lambda name: name != RESERVED), JSON_VALUES, max_size=4)
ATTRIBUTES = st.dictionaries(KEYS, JSON_VALUES, max_size=3)


@st.composite
def manifests(draw: st.DrawFn, *, one_kind: bool = False) -> Manifest:
    """Manifests of several arrays with at least one chunk each."""
    payloads = PAYLOADS
    if one_kind:
        payloads = draw(st.sampled_from(PAYLOADS.original_strategies))  # type: ignore[attr-defined]
    return draw(
        format_strategies.manifests(
            manifest_ids=MANIFEST_IDS,
            node_ids=NUMBERED_NODE_IDS,
            payloads=payloads,
            min_chunks=1,
        )
    )


def fill_values(data_type: str) -> st.SearchStrategy[Any]:
    """Fill values of a data type, as in ``zarr.json``."""
    if data_type == "bool":
        return st.booleans()
    if data_type in INTEGER_SIZES:
        size, is_signed = INTEGER_SIZES[data_type]
        low = -(2 ** (8 * size - 1)) if is_signed else 0
        return st.integers(low, low + 2 ** (8 * size) - 1)
    if data_type in COMPLEX_PARTS:
        part = fill_values(COMPLEX_PARTS[data_type])
        return st.lists(part, min_size=2, max_size=2)
    size = struct.calcsize(FLOAT_FORMATS[data_type])
    bits = st.binary(min_size=size, max_size=size).map(lambda raw: f"0x{raw.hex()}")
    numbers = st.floats(allow_nan=False, allow_infinity=False, width=8 * size)  # type: ignore[arg-type]
    return numbers | bits | st.sampled_from(["NaN", "Infinity", "-Infinity", 0, -0.0])


@st.composite
def array_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Documents of arrays that the generation can store."""
    num_bytes = draw(st.integers(1, 9))
    kinds = ["bool", *INTEGER_SIZES, *FLOAT_FORMATS, *COMPLEX_PARTS, "raw"]
    data_type: Any = draw(st.sampled_from(kinds))
    if data_type == "raw":
        data_type = {"name": "raw_bytes", "configuration": {"length_bytes": num_bytes}}
        raw = draw(st.binary(min_size=num_bytes, max_size=num_bytes))
        fill_value = base64.b64encode(raw).decode()
    else:
        fill_value = draw(fill_values(data_type))
    ndim = draw(st.integers(0, 3))
    shape = draw(st.lists(st.integers(0, U32), min_size=ndim, max_size=ndim))
    chunks = draw(st.lists(st.integers(1, U64), min_size=ndim, max_size=ndim))
    document: dict[str, Any] = {
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": draw(
            st.sampled_from(
                [{"name": "default", "configuration": {"separator": "/"}}, {"name": "default"}]
            )
        ),
        "fill_value": fill_value,
        "codecs": draw(
            st.sampled_from(
                [
                    [{"name": "bytes", "configuration": {"endian": "little"}}],
                    [
                        {"name": "bytes", "configuration": {"endian": "big"}},
                        {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
                    ],
                ]
            )
        ),
        "attributes": draw(ATTRIBUTES),
        "zarr_format": 3,
        "node_type": "array",
    }
    if draw(st.booleans()):
        name = st.none() | TEXTS
        document["dimension_names"] = draw(st.lists(name, min_size=ndim, max_size=ndim))
    return document


@st.composite
def nodes_at(draw: st.DrawFn, node_id: NodeId, path: Any) -> NodeSnapshot:
    """Draw a group or an array at a path."""
    if draw(st.booleans()):
        group = {"attributes": draw(ATTRIBUTES), "zarr_format": 3, "node_type": "group"}
        user_data = CODEC.normalize_document(json.dumps(group).encode(), "zarr.json")
        return NodeSnapshot(node_id, path, user_data, GroupNodeData())
    document = draw(array_documents())
    user_data = CODEC.normalize_document(json.dumps(document).encode(), "zarr.json")
    chunks = document["chunk_grid"]["configuration"]["chunk_shape"]
    shape = tuple(map(DimensionShape.regular, document["shape"], chunks))
    names = document.get("dimension_names")
    pair = st.tuples(st.integers(0, U32 - 1), st.integers(0, U32 - 1)).map(sorted)
    extent = pair.map(lambda ends: ChunkIndexRange(ends[0], ends[1] + 1))
    everything: st.SearchStrategy[list[ChunkIndexRange]] = st.just([])
    ranges = st.lists(extent, min_size=len(shape), max_size=len(shape)) | everything
    extents = ranges.map(lambda items: ManifestExtents(tuple(items)))
    refs = draw(st.lists(st.builds(ManifestRef, MANIFEST_IDS, extents), max_size=3))
    data = ArrayNodeData(shape, None if names is None else tuple(names), tuple(refs))
    return NodeSnapshot(node_id, path, user_data, data)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Snapshots with nodes and recent ancestors."""
    paths = sorted(draw(st.lists(PATHS, unique=True, max_size=4)))
    numbers = st.lists(NUMBERED_NODE_IDS, unique=True, min_size=len(paths), max_size=len(paths))
    nodes = tuple(
        draw(nodes_at(node_id, path)) for node_id, path in zip(draw(numbers), paths, strict=True)
    )
    ids = draw(st.lists(SNAPSHOT_IDS, unique=True, min_size=1, max_size=4))
    ancestors = [
        SnapshotInfo(snapshot_id, None, draw(TIMES), draw(TEXTS), draw(METADATA))
        for snapshot_id in ids[1:]
    ]
    older = draw(st.none() | SNAPSHOT_IDS) if ancestors else None
    parents = [*(info.id for info in ancestors[1:]), older]
    ancestors = [
        replace(info, parent_id=parent) for info, parent in zip(ancestors, parents, strict=False)
    ]
    manifest_ids = {
        ref.id
        for node in nodes
        if isinstance(node.node_data, ArrayNodeData)
        for ref in node.node_data.manifests
    }
    files = [
        ManifestFileInfo(manifest_id, draw(up_to(U64)), draw(up_to(U32)))
        for manifest_id in sorted(manifest_ids)
    ]
    num_older = draw(st.integers(1, U32 - 5)) if older is not None else 0
    first_number = max([node.id.number + 1 for node in nodes], default=0)
    return Snapshot(
        id=ids[0],
        parent_id=ancestors[0].id if ancestors else None,
        flushed_at=draw(TIMES),
        message=draw(TEXTS),
        metadata=draw(METADATA),
        nodes=nodes,
        manifest_files=tuple(files),
        next_node_number=draw(st.integers(first_number, U32 + 1)),
        recent_ancestors=tuple(ancestors),
        num_ancestors=len(ancestors) + num_older,
    )
