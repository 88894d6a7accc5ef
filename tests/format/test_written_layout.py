"""What icefloe writes is a proper flatbuffer in a proper envelope, in the order of the format.

The official ``flatbuffers`` package walks every table: positions are aligned and in bounds, offsets
point forward, strings are closed, and the whole equals what the specification says should be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe import __version__
from icefloe.format.location_compression import LocationCompression
from support.flatbuffers_library import read
from support.format_kinds import MANIFEST, REPO_INFO, SNAPSHOT, TRANSACTION_LOG, Kind, body_of
from support.format_strategies import manifests, repo_infos, snapshots, transaction_logs
from support.format_trees import manifest_tree, repo_tree, snapshot_tree, transaction_log_tree
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    from icefloe.model.manifest import Manifest
    from icefloe.model.repo_info import RepoInfo
    from icefloe.model.transaction_log import TransactionLog
    from support.flatbuffers_library import Tree

VERSIONS = st.sampled_from((1, 2))


def encode_value(kind: Kind, data: bytes, spec_version: int = 2) -> Tree:
    """Check the envelope and walk the flatbuffer."""
    assert data[:12] == bytes.fromhex("494345F09FA78A4348554E4B")
    assert data[12:36] == f"icefloe-{__version__}".encode().ljust(24)
    assert tuple(data[36:39]) == (spec_version, kind.file_type, 1)
    body = body_of(data)
    assert zstandard.frame_content_size(data[39:]) == len(body)
    assert body[4:8] == b"Ichk"
    return read(body, kind.root).tree


@given(manifests(), VERSIONS)
@settings(max_examples=examples(30, thorough=60), deadline=None)
def test_manifests(manifest: Manifest, spec_version: int) -> None:
    """Arrays by node id, references by index; the algorithm 0 is written, as it is no default."""
    data = MANIFEST.write(manifest, spec_version)
    tree = encode_value(MANIFEST, data, spec_version)
    assert tree == manifest_tree(manifest)
    node_ids = [array["node_id"] for array in tree["arrays"]]
    assert node_ids == sorted(set(node_ids))
    for array in tree["arrays"]:
        indices = [ref["index"] for ref in array["refs"]]
        assert indices == sorted(indices)
    assert "compression_algorithm" in read(body_of(data), "Manifest").fields


@given(manifests())
@settings(max_examples=examples(30, thorough=60), deadline=None)
def test_compressed_locations(manifest: Manifest) -> None:
    """Locations can be read with zstd and the dictionary of the file alone."""
    data = MANIFEST.encode(
        manifest, spec_version=2, location_compression=LocationCompression(min_locations=1)
    )
    tree = encode_value(MANIFEST, data)
    dictionary = tree.pop("location_dictionary", None)
    assert tree["compression_algorithm"] == (dictionary is not None)
    if dictionary is not None:
        decompressor = zstandard.ZstdDecompressor(
            dict_data=zstandard.ZstdCompressionDict(dictionary)
        )
        for array in tree["arrays"]:
            for ref in array["refs"]:
                frame = ref.pop("compressed_location", None)
                if frame is not None:
                    ref["location"] = decompressor.decompress(frame).decode()
        tree["compression_algorithm"] = 0
    assert tree == manifest_tree(manifest)


@given(st.data(), VERSIONS)
@settings(max_examples=examples(30, thorough=60), deadline=None)
def test_snapshots(data: st.DataObject, spec_version: int) -> None:
    """Nodes by the bytes of their path, metadata by name, manifest files by id; by version."""
    snapshot = data.draw(snapshots(spec_version))
    tree = encode_value(SNAPSHOT, SNAPSHOT.write(snapshot, spec_version), spec_version)
    assert tree == snapshot_tree(snapshot, spec_version)
    paths = [node["path"].encode() for node in tree["nodes"]]
    assert paths == sorted(paths)


@given(transaction_logs(), VERSIONS)
@settings(max_examples=examples(30, thorough=60), deadline=None)
def test_transaction_logs(log: TransactionLog, spec_version: int) -> None:
    """Ids and indices ascend, moves are in the order of their destinations."""
    tree = encode_value(TRANSACTION_LOG, TRANSACTION_LOG.write(log, spec_version), spec_version)
    assert tree == transaction_log_tree(log)


@given(repo_infos())
@settings(max_examples=examples(30, thorough=60), deadline=None)
def test_repo_infos(repo: RepoInfo) -> None:
    """Refs by name, snapshots by id, flags ascending, empty lists of pruned logs left out."""
    tree = encode_value(REPO_INFO, REPO_INFO.write(repo, 2))
    assert tree == repo_tree(repo)
