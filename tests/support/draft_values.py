"""Hypothesis strategies for what files of generation draft store, and their damaged files."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.draft.codec import DraftCodec
from icefloe.model.chunk_payload import ChunkRef, InlineChunk, VirtualChunkRef
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    DimensionShape,
    GroupNodeData,
    ManifestExtents,
    ManifestRef,
    NodeSnapshot,
)
from icefloe.model.snapshot import ManifestFileInfo, Snapshot
from support.format_strategies import (
    CHECKSUMS,
    CHUNK_IDS,
    INLINE,
    JSON_VALUES,
    KEYS,
    MANIFEST_IDS,
    METADATA,
    NUMBERED_NODE_IDS,
    PATHS,
    SNAPSHOT_IDS,
    TEXTS,
    TIMES,
    U32,
    U64,
    manifests,
    up_to,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.ids import AttributesId, ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest

CODEC = DraftCodec()
FILE = "i/DAMAGED.parquet"
LOCATIONS = st.sampled_from(["s3://bucket/é/🧊.nc", "://", "vcc://name/" + "x" * 300]) | TEXTS.map(
    "file:///{}".format
)
PAYLOADS = st.one_of(
    st.builds(ChunkRef, CHUNK_IDS, up_to(U64), up_to(U64)),
    st.builds(VirtualChunkRef, LOCATIONS, up_to(U64), up_to(U64), CHECKSUMS),
    st.builds(InlineChunk, INLINE),
)


@st.composite
def inventories(draw: st.DrawFn) -> Manifest:
    """Manifests of several arrays of different rank; each array has at least one chunk."""
    payloads = draw(st.sampled_from([PAYLOADS, st.builds(ChunkRef, CHUNK_IDS, up_to(9), up_to(9))]))
    return draw(manifests(node_ids=NUMBERED_NODE_IDS, payloads=payloads, min_chunks=1))


@st.composite
def documents(draw: st.DrawFn, ndim: int | None, chunk_shape: list[int] | None = None) -> bytes:
    """Make a ``zarr.json`` in any of its spellings; of a group if ``ndim`` is None."""
    document: dict[str, Any] = {"zarr_format": 3, "node_type": "group"}
    attributes = draw(st.none() | st.dictionaries(KEYS, JSON_VALUES, max_size=3))
    if attributes is not None or draw(st.booleans()):
        document["attributes"] = attributes
    if ndim is None:
        if draw(st.booleans()):
            document["consolidated_metadata"] = None
        return json.dumps(document).encode()
    lengths = st.lists(st.integers(0, 2**40), min_size=ndim, max_size=ndim)
    configurations = st.dictionaries(KEYS, JSON_VALUES, max_size=2)
    codec = st.sampled_from([{"name": "bytes"}, "bytes", {"name": "crc32c"}]) | st.builds(
        lambda value: {"name": "zstd", "configuration": value}, configurations
    )
    document |= {
        "node_type": "array",
        "shape": draw(lengths),
        "data_type": draw(st.sampled_from(["float32", "string", {"name": "int8"}, "é"])),
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": chunk_shape or draw(lengths)},
        },
        "chunk_key_encoding": draw(
            st.sampled_from(["default", {"name": "default", "configuration": {"separator": "/"}}])
        ),
        "codecs": draw(st.lists(codec, min_size=1, max_size=3)),
    }
    if draw(st.booleans()):
        document["fill_value"] = draw(JSON_VALUES | st.just("NaN"))
    if draw(st.booleans()):
        document["storage_transformers"] = []
    if draw(st.booleans()):
        names = st.lists(st.none() | TEXTS, min_size=ndim, max_size=ndim)
        document["dimension_names"] = draw(st.none() | names)
    keys = draw(st.permutations(sorted(document)))
    indent = draw(st.sampled_from([None, 2]))
    return json.dumps({key: document[key] for key in keys}, indent=indent).encode()


@st.composite
def array_nodes(draw: st.DrawFn) -> tuple[bytes, ArrayNodeData]:
    ndim = draw(st.integers(0, 3))
    chunk_shape = draw(st.lists(st.integers(2**9, 2**40), min_size=ndim, max_size=ndim))
    data = CODEC.normalize_document(draw(documents(ndim, chunk_shape)), "zarr.json")
    document = json.loads(data)
    names = document.get("dimension_names")
    edges = st.tuples(up_to(U32 - 1), up_to(U32 - 1)).map(sorted)
    box = st.lists(edges.map(lambda pair: ChunkIndexRange(*pair)), min_size=ndim, max_size=ndim)
    extents = (box | st.just([])).map(lambda ranges: ManifestExtents(tuple(ranges)))
    refs = draw(st.lists(st.builds(ManifestRef, MANIFEST_IDS, extents), max_size=3))
    shape = tuple(map(DimensionShape.regular, document["shape"], chunk_shape))
    node_data = ArrayNodeData(shape, None if names is None else tuple(names), tuple(refs))
    return data, node_data


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Snapshots as structure files record them."""
    paths = draw(st.lists(PATHS, unique=True, max_size=5))
    ids = draw(st.lists(NUMBERED_NODE_IDS, unique=True, min_size=len(paths), max_size=len(paths)))
    group = documents(None).map(lambda data: CODEC.normalize_document(data, "zarr.json"))
    kinds = st.tuples(group, st.just(GroupNodeData())) | array_nodes()
    nodes = [
        NodeSnapshot(node_id, path, *draw(kinds))
        for node_id, path in zip(ids, sorted(paths), strict=True)
    ]
    files = st.lists(
        st.builds(ManifestFileInfo, MANIFEST_IDS, up_to(U64), up_to(U32)),
        unique_by=lambda file: file.id,
        max_size=4,
    )
    highest = max((node_id.number for node_id in ids), default=-1)
    return Snapshot(
        id=draw(SNAPSHOT_IDS),
        parent_id=draw(st.none() | SNAPSHOT_IDS),
        flushed_at=draw(TIMES),
        message=draw(TEXTS),
        metadata=draw(METADATA),
        nodes=tuple(nodes),
        manifest_files=tuple(sorted(draw(files), key=lambda file: file.id)),
        next_node_number=draw(st.integers(highest + 1, U32 + 1)),
    )


def decode_written(snapshot: Snapshot) -> Snapshot:
    """Encode a snapshot with its attributes files, and decode it."""
    placed, files = CODEC.place_attributes(snapshot)
    data = CODEC.encode_snapshot(placed)
    return CODEC.decode_snapshot(data, "s/file.parquet", snapshot.id, fetcher(files))


def fetcher(files: Mapping[AttributesId, bytes]) -> Any:
    """Return a function that fetches attributes files."""
    return lambda attributes_id: (f"a/{attributes_id}.parquet", files[attributes_id])


def _require_file(error: FormatError) -> None:
    assert str(error).startswith(FILE), error


def judge_inventory(data: bytes, manifest_id: ManifestId) -> bool:
    """Decode damaged bytes; return whether they were accepted, and can be written again."""
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        try:
            manifest = CODEC.decode_manifest(data, FILE, manifest_id)
        except FormatError as error:
            _require_file(error)
            return False
        written = CODEC.encode_manifest(manifest, None)
        assert CODEC.decode_manifest(written, FILE, manifest_id) == manifest
        return True


def judge_structure(
    data: bytes, snapshot_id: SnapshotId, files: Mapping[AttributesId, bytes]
) -> bool:
    """Decode damaged bytes; return whether they were accepted, and can be written again."""

    def fetch(attributes_id: AttributesId) -> tuple[str, bytes]:
        if attributes_id not in files:
            raise FormatError("there is no such file", file=FILE)
        return FILE, files[attributes_id]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            snapshot = CODEC.decode_snapshot(data, FILE, snapshot_id, fetch)
        except FormatError as error:
            _require_file(error)
            return False
        try:
            written = CODEC.encode_snapshot(snapshot)
        except (FormatError, InvalidInputError):
            return True
        again = CODEC.decode_snapshot(written, FILE, snapshot_id, fetch)
        assert repr(again) == repr(replace(snapshot))
        return True
