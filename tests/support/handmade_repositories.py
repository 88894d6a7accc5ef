"""A repository written from nothing with icefloe's format layer: every kind of chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
import zarr.storage

from icefloe.assets import Assets
from icefloe.format.generation import find_generation
from icefloe.format.location_compression import LocationCompression
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.chunk_payload import ChunkRef, InlineChunk, LastModified, VirtualChunkRef
from icefloe.model.config import RepositoryConfig
from icefloe.model.containers import ObjectStoreConfig, VirtualChunkContainer
from icefloe.model.ids import INITIAL_SNAPSHOT_ID, ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    DimensionShape,
    GroupNodeData,
    ManifestExtents,
    ManifestRef,
    NodeSnapshot,
)
from icefloe.model.path import Path as NodePath
from icefloe.model.snapshot import Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.refs import create_refs
from icefloe.refs.repo_file import RepoFile
from icefloe.storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import ChunkPayload

MESSAGE = "made by hand"
METADATA = {"who": "icefloe", "nested": {"list": [1, 2.5, None, "ü"]}}


@dataclass
class Handmade:
    """What was written, for comparison."""

    virtual_prefix: str
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    snapshot_id: SnapshotId = field(default_factory=SnapshotId.random)


class Writer:
    """Collects the nodes, manifests and chunks of one commit."""

    def __init__(self, assets: Assets, virtual_file: Path) -> None:
        self.assets = assets
        self.virtual_file = virtual_file
        self.nodes: list[NodeSnapshot] = []
        self.manifest_files: list[Any] = []
        self.updated: dict[NodeId, NDArray[np.uint32]] = {}

    def group(self, path: str) -> None:
        """Add a group."""
        content = b'{"zarr_format":3,"node_type":"group","attributes":{"made":"by hand"}}'
        self.nodes.append(NodeSnapshot(NodeId.random(), NodePath(path), content, GroupNodeData()))

    def arrays(self, how: str, data: dict[str, NDArray[Any]], chunks: tuple[int, ...]) -> None:
        """Add arrays that share their manifests, split in two along the first dimension."""
        encoded = {path: _encode(values, chunks) for path, values in data.items()}
        ids = {path: NodeId.random() for path in data}
        payloads = {path: self._store(how, encoded[path]) for path in data}
        halves = _halves(next(iter(payloads.values())))
        refs: dict[str, list[ManifestRef]] = {path: [] for path in data}
        for half in halves:
            manifest = Manifest.of(
                ManifestId.random(),
                {
                    ids[path]: ArrayManifest.of(
                        np.array(half, np.uint32).reshape(len(half), len(chunks)),
                        ChunkPayloads.of([payloads[path][index] for index in half]),
                    )
                    for path in data
                },
            )
            self.manifest_files.append(self.assets.write_manifest(manifest, LocationCompression()))
            extents = ManifestExtents(
                tuple(ChunkIndexRange(min(axis), max(axis) + 1) for axis in zip(*half, strict=True))
            )
            for path in data:
                refs[path].append(ManifestRef(manifest.id, extents))
        for path, values in data.items():
            shape = tuple(
                DimensionShape.regular(length, chunk)
                for length, chunk in zip(values.shape, chunks, strict=True)
            )
            names = tuple(f"dim{axis}" if axis else None for axis in range(values.ndim))
            node_data = ArrayNodeData(shape, names, tuple(refs[path]))
            metadata = encoded[path]["zarr.json"]
            self.nodes.append(NodeSnapshot(ids[path], NodePath(path), metadata, node_data))
            indices = sorted(payloads[path])
            self.updated[ids[path]] = np.array(indices, np.uint32).reshape(len(indices), -1)

    def _store(self, how: str, encoded: dict[str, bytes]) -> dict[tuple[int, ...], ChunkPayload]:
        chunks = {
            tuple(map(int, key.split("/")[1:])): data
            for key, data in encoded.items()
            if key != "zarr.json"
        }
        match how:
            case "inline":
                return {index: InlineChunk(data) for index, data in chunks.items()}
            case "native":
                refs: dict[tuple[int, ...], ChunkPayload] = {}
                for index, data in chunks.items():
                    chunk_id = ChunkId.random()
                    self.assets.write_chunk(chunk_id, data)
                    refs[index] = ChunkRef(chunk_id, 0, len(data))
                return refs
            case "packed":
                chunk_id = ChunkId.random()
                self.assets.write_chunk(chunk_id, b"".join(chunks.values()))
                return _in_turn(chunks, lambda start, size: ChunkRef(chunk_id, start, size))
            case "virtual":
                name = f"{ChunkId.random()}.bin"
                path = self.virtual_file / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"".join(chunks.values()))
                seconds = int(path.stat().st_mtime) + 1
                return _in_turn(
                    chunks,
                    lambda start, size: VirtualChunkRef(
                        path.as_uri(), start, size, LastModified(seconds)
                    ),
                )
        raise AssertionError(how)


def _in_turn(chunks: dict[tuple[int, ...], bytes], make: Any) -> dict[tuple[int, ...], Any]:
    refs, start = {}, 0
    for index, data in chunks.items():
        refs[index] = make(start, len(data))
        start += len(data)
    return refs


def _halves(payloads: dict[tuple[int, ...], Any]) -> list[list[tuple[int, ...]]]:
    indices = sorted(payloads)
    middle = indices[len(indices) // 2][:1]
    halves = [
        [index for index in indices if index[:1] < middle],
        [index for index in indices if index[:1] >= middle],
    ]
    return [half for half in halves if half]


def _encode(values: NDArray[Any], chunks: tuple[int, ...]) -> dict[str, bytes]:
    """Let zarr encode an array, and return its files."""
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, shape=values.shape, chunks=chunks, dtype=values.dtype)
    array[...] = values
    return {key: value.to_bytes() for key, value in store._store_dict.items()}


def write_handmade(
    root: Path, virtual: Path, *, spec_version: int, mixed: bool = False
) -> Handmade:
    """Write a repository; ``mixed`` makes generation v2 with files of version 1 in it."""
    storage = LocalStorage(root)
    assets = Assets(storage, find_generation(1 if mixed else spec_version))
    made = Handmade(virtual.as_uri() + "/")
    rng = np.random.default_rng(7)
    writer = Writer(assets, virtual)
    writer.group("/")
    writer.group("/deep")
    writer.group("/deep/ähre")
    for how, chunks in (
        ("inline", (2, 5)),
        ("native", (3, 4)),
        ("packed", (4, 4)),
        ("virtual", (5, 3)),
    ):
        data = {
            f"/deep/{how}_{number}": rng.integers(0, 1000, (11, 9)).astype(dtype)
            for number, dtype in enumerate(("int16", "float64"))
        }
        made.arrays |= data
        writer.arrays(how, data, chunks)
    scalar = {"/scalar": np.array(42.5)}
    made.arrays |= scalar
    writer.arrays("inline", scalar, ())
    many = {"/many": rng.random(1200)}
    made.arrays |= many
    writer.arrays("virtual", many, (1,))
    refs = create_refs(
        storage, generation=find_generation(spec_version), config=_config(made.virtual_prefix)
    )
    snapshot = Snapshot(
        made.snapshot_id,
        INITIAL_SNAPSHOT_ID,
        datetime.now(UTC),
        MESSAGE,
        METADATA,
        tuple(writer.nodes),
        tuple(writer.manifest_files),
    )
    none: frozenset[NodeId] = frozenset()
    kinds = [(node.id, isinstance(node.node_data, ArrayNodeData)) for node in writer.nodes]
    log = TransactionLog(
        snapshot.id,
        frozenset(node_id for node_id, is_array in kinds if not is_array),
        frozenset(node_id for node_id, is_array in kinds if is_array),
        none,
        none,
        none,
        none,
        ChunkIndexColumns.of(writer.updated),
    )
    assets.write_transaction_log(log)
    assets.write_snapshot(snapshot)
    refs.commit("main", INITIAL_SNAPSHOT_ID, snapshot.get_info())
    refs.create_tag("v1", INITIAL_SNAPSHOT_ID)
    refs.create_tag("gone", INITIAL_SNAPSHOT_ID)
    refs.delete_tag("gone")
    refs.create_branch("dev", snapshot.id)
    refs.reset_branch("dev", INITIAL_SNAPSHOT_ID, expected=snapshot.id)
    if isinstance(refs, RepoFile):
        refs.save_metadata({"owner": "icefloe"})
    return made


def _config(prefix: str) -> RepositoryConfig:
    store = ObjectStoreConfig.LocalFileSystem(prefix.removeprefix("file://"))
    return RepositoryConfig(
        inline_chunk_threshold_bytes=77,
        virtual_chunk_containers={prefix: VirtualChunkContainer(prefix, store)},
    )
