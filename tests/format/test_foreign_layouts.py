"""It makes no difference to the reader how a writer laid a file out.

The official ``flatbuffers`` builder writes back to front, shares vtables, shares strings or not,
leaves defaults out or not: everything that icefloe's own writer does otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.model.chunk_payload import (
    ChunkPayload,
    ChunkRef,
    ETag,
    InlineChunk,
    LastModified,
    VirtualChunkRef,
)
from icefloe.model.ids import ChunkId, ManifestId, NodeId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from support.flatbuffers_library import Style, build
from support.format_kinds import MANIFEST, REPO_INFO, SNAPSHOT, TRANSACTION_LOG, Kind, wrap
from support.format_strategies import manifests, repo_infos, snapshots, transaction_logs
from support.format_trees import manifest_tree, repo_tree, snapshot_tree, transaction_log_tree
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    from icefloe.model.repo_info import RepoInfo
    from icefloe.model.transaction_log import TransactionLog
    from support.flatbuffers_library import Tree

STYLES = st.builds(Style, st.booleans(), st.booleans(), st.booleans(), st.booleans())
VERSIONS = st.sampled_from((1, 2))


def decode(kind: Kind, tree: Tree, style: Style, spec_version: int = 2) -> Any:
    return kind.decode(wrap(build(tree, kind.root, style), kind.file_type, spec_version), "a file")


@given(manifests(), STYLES, VERSIONS)
@settings(max_examples=examples(30, thorough=60), deadline=None)
def test_manifests(manifest: Manifest, style: Style, spec_version: int) -> None:
    """Any order of objects, shared or repeated strings, extra bytes and later fields."""
    assert decode(MANIFEST, manifest_tree(manifest), style, spec_version) == manifest


@given(manifests(), STYLES, st.binary(min_size=8, max_size=100))
@settings(max_examples=examples(30, thorough=60), deadline=None)
def test_compressed_locations(manifest: Manifest, style: Style, dictionary: bytes) -> None:
    """Locations that another writer compressed with its own dictionary are read."""
    assert decode(MANIFEST, manifest_tree(manifest, dictionary), style) == manifest


@given(st.data(), STYLES, VERSIONS)
@settings(max_examples=examples(30, thorough=60), deadline=None)
def test_snapshots(data: st.DataObject, style: Style, spec_version: int) -> None:
    """As for manifests, with unions, vectors of structs and optional names."""
    snapshot = data.draw(snapshots(spec_version))
    tree = snapshot_tree(snapshot, spec_version)
    assert decode(SNAPSHOT, tree, style, spec_version) == snapshot


@given(transaction_logs(), STYLES, VERSIONS)
@settings(max_examples=examples(30, thorough=60), deadline=None)
def test_transaction_logs(log: TransactionLog, style: Style, spec_version: int) -> None:
    """As for manifests."""
    assert decode(TRANSACTION_LOG, transaction_log_tree(log), style, spec_version) == log


@given(repo_infos(), STYLES)
@settings(max_examples=examples(30, thorough=60), deadline=None)
def test_repo_infos(repo: RepoInfo, style: Style) -> None:
    """As for manifests, with every kind of update."""
    assert decode(REPO_INFO, repo_tree(repo), style) == repo


def make_mixed_manifest() -> Manifest:
    payloads: list[ChunkPayload] = [
        ChunkRef(ChunkId(bytes(range(12))), 1, 2),
        InlineChunk(b"inline"),
        VirtualChunkRef("s3://bucket/one", 3, 4, ETag("one")),
        VirtualChunkRef("s3://bucket/two", 5, 6, LastModified(2)),
    ]
    coords = np.arange(4, dtype=np.uint32).reshape(4, 1)
    array = ArrayManifest(coords, ChunkPayloads.of(payloads))
    return Manifest.of(ManifestId(bytes(12)), {NodeId(bytes(8)): array})


def test_plain_and_compressed_locations_in_one_file() -> None:
    """The format lets a writer compress some locations and not others."""
    manifest = make_mixed_manifest()
    tree = manifest_tree(manifest, b"a dictionary: s3://bucket/")
    plain = manifest_tree(manifest)
    tree["arrays"][0]["refs"][2] = plain["arrays"][0]["refs"][2]
    assert decode(MANIFEST, tree, Style()) == manifest


def test_locations_are_compressed_unless_a_manifest_says_otherwise() -> None:
    """``compression_algorithm`` is 1 where it is absent; 0 with compressed ones is refused."""
    manifest = make_mixed_manifest()
    tree = manifest_tree(manifest, b"a dictionary: s3://bucket/")
    del tree["compression_algorithm"]
    assert decode(MANIFEST, tree, Style()) == manifest
    tree["compression_algorithm"] = 0
    with pytest.raises(FormatError, match="unknown compression algorithm of locations"):
        decode(MANIFEST, tree, Style())


def test_a_checksum_on_a_chunk_of_our_own_is_ignored() -> None:
    """Only virtual chunks have checksums; elsewhere one is a field without meaning."""
    manifest = make_mixed_manifest()
    tree = manifest_tree(manifest)
    for ref in tree["arrays"][0]["refs"][:2]:
        ref["checksum_etag"] = "etag"
        ref["checksum_last_modified"] = 7
    assert decode(MANIFEST, tree, Style()) == manifest


def test_frames_without_their_size() -> None:
    """Writers that stream leave the size of the content out of the zstd frame."""
    manifest = make_mixed_manifest()
    data = wrap(build(manifest_tree(manifest), "Manifest"), MANIFEST.file_type, content_size=False)
    assert zstandard.frame_content_size(data[39:]) == -1
    assert MANIFEST.decode(data, "a file") == manifest


def test_chunk_indices_of_a_transaction_log_may_come_in_any_order() -> None:
    """The reference implementation writes them manifest by manifest where an array is split."""
    first, second, third = ({"coords": [row, 7 - row]} for row in range(3))
    nodes = [bytes((number,)) * 8 for number in range(3)]
    tree: Tree = {
        "id": bytes(12),
        "updated_chunks": [
            {"node_id": nodes[0], "chunks": [third, first, second]},
            {"node_id": nodes[1], "chunks": [{"coords": [5]}, {"coords": [2]}]},
            {"node_id": nodes[2], "chunks": [second, first]},
        ],
    }
    for name in ("new", "deleted", "updated"):
        tree[f"{name}_groups"] = tree[f"{name}_arrays"] = []
    chunks = decode(TRANSACTION_LOG, tree, Style()).updated_chunks
    assert chunks.get_coords(0).tolist() == [[0, 7], [1, 6], [2, 5]]
    assert chunks.get_coords(1).tolist() == [[2], [5]]
    assert chunks.get_coords(2).tolist() == [[0, 7], [1, 6]]


def test_a_snapshot_of_version_2_may_still_have_the_shapes_of_version_1() -> None:
    """Presence decides which shape is read; what version 2 does not record is left out."""
    tree = {
        "id": bytes(12),
        "nodes": [
            {
                "id": bytes(8),
                "path": "/a",
                "user_data": b"{}",
                "node_data_type": 1,
                "node_data": (
                    1,
                    {"shape": [b"\x0a" + bytes(7) + b"\x04" + bytes(7)], "manifests": []},
                ),
            }
        ],
        "message": "",
        "metadata": [],
        "manifest_files": [],
    }
    (node,) = decode(SNAPSHOT, tree, Style()).nodes
    (dimension,) = node.node_data.shape
    assert (dimension.array_length, dimension.num_chunks) == (10, 3)
