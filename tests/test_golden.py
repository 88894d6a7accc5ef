"""Everything in the golden repositories reads back as ``expected.json`` says."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from icefloe.assets import Assets
from icefloe.errors import FormatError
from icefloe.model.chunk_payload import VirtualChunkRef
from icefloe.model.containers import ObjectStoreConfig
from icefloe.model.ids import SnapshotId
from icefloe.model.manifest_config import ManifestSplitCondition, ManifestSplitDimCondition
from icefloe.refs import Refs, open_refs
from icefloe.storage import LocalStorage
from support.arrays import open_array, payloads
from support.golden_repositories import Golden, every_golden

if TYPE_CHECKING:
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.snapshot import Snapshot


@pytest.fixture
def storage(golden: Golden) -> LocalStorage:
    return LocalStorage(golden.repository)


@pytest.fixture
def refs(storage: LocalStorage) -> Refs:
    return open_refs(storage).refs


@pytest.fixture
def assets(storage: LocalStorage, refs: Refs) -> Assets:
    return Assets(storage, refs.generation)


@every_golden
def test_refs(golden: Golden, refs: Refs) -> None:
    """The generation, branches, tags and deleted tags are those of the writer."""
    expected = golden.expected
    assert refs.spec_version == expected["spec_version"]
    assert {name: str(target) for name, target in refs.fetch_branches().items()} == expected[
        "branches"
    ]
    assert {name: str(target) for name, target in refs.fetch_tags().items()} == expected["tags"]
    assert sorted(refs.fetch_deleted_tags()) == expected["deleted_tags"]


@every_golden
def test_ancestry(golden: Golden, refs: Refs) -> None:
    """Each branch has the history of the writer, with messages, times and metadata."""
    branches = refs.fetch_branches()
    assert {
        name: [
            {
                "id": str(info.id),
                "message": info.message,
                "metadata": dict(info.metadata),
                "parent_id": None if info.parent_id is None else str(info.parent_id),
                "written_at": info.flushed_at.isoformat(),
            }
            for info in refs.fetch_ancestry(branches[name])
        ]
        for name in golden.expected["ancestry"]
    } == golden.expected["ancestry"]


@every_golden
def test_nodes_and_chunks(golden: Golden, assets: Assets) -> None:
    """Each snapshot has the nodes of the writer, and each array its attributes and its data."""
    for name, expected_nodes in golden.expected["snapshots"].items():
        snapshot = assets.fetch_snapshot(SnapshotId.parse(name))
        assert {
            str(node.path): _describe(assets, snapshot, node) for node in snapshot.nodes
        } == expected_nodes


def _describe(assets: Assets, snapshot: Snapshot, node: NodeSnapshot) -> dict[str, Any]:
    metadata = json.loads(node.user_data)
    described = {"type": node.kind.name.lower(), "attributes": metadata.get("attributes", {})}
    if described["type"] == "group":
        return described
    every_payload = [payload for _, payload in payloads(assets, node)]
    locations = {
        payload.location for payload in every_payload if isinstance(payload, VirtualChunkRef)
    }
    described |= {
        "shape": metadata["shape"],
        "dtype": metadata["data_type"],
        "chunks": _chunk_shape(metadata),
    }
    if locations:
        return described | {"virtual_locations": sorted(locations)}
    data = np.ascontiguousarray(open_array(assets, snapshot, node)[...])
    return described | {"sha256": hashlib.sha256(data.tobytes()).hexdigest()}


def _chunk_shape(metadata: dict[str, Any]) -> list[int]:
    """Return what zarr calls the chunks of an array: those inside a shard, where there are any."""
    codec = metadata["codecs"][0]
    if codec["name"] == "sharding_indexed":
        inner: list[int] = codec["configuration"]["chunk_shape"]
        return inner
    outer: list[int] = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    return outer


@every_golden
def test_shapes_agree_with_zarr_metadata(golden: Golden, assets: Assets) -> None:
    """The number of chunks that a snapshot records is what zarr.json implies."""
    for name in golden.expected["snapshots"]:
        for node in assets.fetch_snapshot(SnapshotId.parse(name)).nodes:
            if node.kind.name != "ARRAY":
                continue
            metadata = json.loads(node.user_data)
            chunks = metadata["chunk_grid"]["configuration"]["chunk_shape"]
            names = metadata.get("dimension_names")
            data = node.node_data
            assert [(dimension.array_length, dimension.num_chunks) for dimension in data.shape] == [  # type: ignore[union-attr]
                (length, -(-length // chunk))
                for length, chunk in zip(metadata["shape"], chunks, strict=True)
            ]
            found = data.dimension_names  # type: ignore[union-attr]
            assert (None if found is None else list(found)) == names


@every_golden
def test_manifest_files(golden: Golden, assets: Assets, storage: LocalStorage) -> None:
    """A snapshot lists exactly the manifests its arrays use, with their true sizes and counts."""
    for name in golden.expected["snapshots"]:
        snapshot = assets.fetch_snapshot(SnapshotId.parse(name))
        used = {
            ref.id for node in snapshot.nodes for ref in getattr(node.node_data, "manifests", ())
        }
        assert {info.id for info in snapshot.manifest_files} == used
        for info in snapshot.manifest_files:
            assert storage.head(f"manifests/{info.id}").size_bytes == info.size_bytes
            assert len(assets.fetch_manifest(info.id)) == info.num_chunk_refs


@every_golden
def test_config(golden: Golden, refs: Refs) -> None:
    """The persisted configuration is the one the writer was given."""
    config = refs.fetch_config()
    assert config is not None
    assert config.inline_chunk_threshold_bytes == 64
    assert config.virtual_chunk_containers is not None
    container = config.virtual_chunk_containers["s3://example-bucket/"]
    assert isinstance(container.store, ObjectStoreConfig.S3)
    assert container.store.options.region == "eu-west-1"
    assert container.store.options.anonymous
    assert config.manifest is not None
    assert config.manifest.splitting is not None
    assert config.manifest.splitting.to_dict() == {
        ManifestSplitCondition.name_matches("^split.*"): {
            ManifestSplitDimCondition.Axis(0): 3,
            ManifestSplitDimCondition.DimensionName("x"): 4,
        },
        ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 1000},
    }


@every_golden
def test_ops_log(golden: Golden, refs: Refs) -> None:
    """The ops log has every operation, newest first; generation v1 has none, and says so."""
    if golden.expected["spec_version"] == 1:
        with pytest.raises(FormatError, match="version 2"):
            refs.fetch_ops_log()
        return
    found = [type(update.kind).__name__ for update in refs.fetch_ops_log()]
    assert found == golden.expected["ops"]


@every_golden
def test_repository_metadata(golden: Golden, refs: Refs) -> None:
    """The repository's own metadata is the writer's; only generation v2 has any."""
    info = refs.fetch() if hasattr(refs, "fetch") else None
    found = None if info is None else dict(info.metadata)
    assert found == golden.expected.get("repo_metadata")


@every_golden
def test_transaction_logs(golden: Golden, refs: Refs, assets: Assets) -> None:
    """The logs between two snapshots add up to the differences that the writer reported."""
    for name, expected in golden.expected["diffs"].items():
        start, end = name.split("..")
        first = SnapshotId.parse(golden.expected["ids"][start])
        found = _difference(refs, assets, first, refs.fetch_branches()[end])
        assert found == expected | {"moved_nodes": sorted(expected.get("moved_nodes", []))}


def _difference(refs: Refs, assets: Assets, first: SnapshotId, last: SnapshotId) -> dict[str, Any]:
    paths: dict[Any, str] = {}
    sets: dict[str, set[str]] = {}
    chunks: dict[str, set[tuple[int, ...]]] = {}
    moves: dict[Any, tuple[str, str]] = {}
    between = []
    for info in refs.fetch_ancestry(last):
        if info.id == first:
            break
        between.append(info.id)
    for snapshot_id in [first, *reversed(between)]:
        for node in assets.fetch_snapshot(snapshot_id).nodes:
            paths[node.id] = str(node.path)
    for log in map(assets.fetch_transaction_log, reversed(between)):
        for kind in ("new", "deleted", "updated"):
            for what in ("groups", "arrays"):
                ids = getattr(log, f"{kind}_{what}")
                sets.setdefault(f"{kind}_{what}", set()).update(paths[node_id] for node_id in ids)
        for position, node_id in enumerate(log.updated_chunks.iter_node_ids()):
            rows = map(tuple, log.updated_chunks.get_coords(position).tolist())
            chunks.setdefault(paths[node_id], set()).update(rows)
        for move in log.moved_nodes:
            moves[move.node_id] = (str(move.from_path), str(move.to_path))
    return {
        **{name: sorted(found) for name, found in sets.items()},
        "updated_chunks": {
            path: [list(row) for row in sorted(rows)] for path, rows in sorted(chunks.items())
        },
        "moved_nodes": sorted(list(move) for move in moves.values()),
    }
