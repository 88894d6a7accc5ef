"""Decode undoes encode, for every kind of metadata file in both versions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.format.envelope import read_header
from icefloe.format.location_compression import LocationCompression
from icefloe.format.ref_json import decode_ref, encode_ref
from support.format_kinds import (
    KINDS,
    MANIFEST,
    REPO_INFO,
    SNAPSHOT,
    TRANSACTION_LOG,
    Kind,
    body_of,
    golden_files,
)
from support.format_strategies import (
    SNAPSHOT_IDS,
    manifests,
    repo_infos,
    snapshots,
    transaction_logs,
)
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    from icefloe.model.ids import SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.repo_info import RepoInfo
    from icefloe.model.transaction_log import TransactionLog

VERSIONS = st.sampled_from((1, 2))
EAGER = LocationCompression(min_locations=1)
"""Compresses whatever it can."""


def round_trip(kind: Kind, value: Any, spec_version: int) -> Any:
    return kind.decode(kind.write(value, spec_version), "a file")


@given(manifests(), VERSIONS)
@settings(max_examples=examples(40, thorough=80), deadline=None)
def test_manifests_come_back(manifest: Manifest, spec_version: int) -> None:
    """Arrays of any rank, scalars too, with payloads of all kinds: nothing is lost."""
    again = round_trip(MANIFEST, manifest, spec_version)
    assert again == manifest
    assert list(again.payloads) == list(manifest.payloads)


@given(manifests())
@settings(max_examples=examples(50, thorough=100), deadline=None)
def test_compressed_locations_come_back(manifest: Manifest) -> None:
    """Locations survive the dictionary, the empty ones and the long ones too."""
    data = MANIFEST.encode(manifest, spec_version=2, location_compression=EAGER)
    again = MANIFEST.decode(data, "a file")
    assert again == manifest
    assert list(again.payloads) == list(manifest.payloads)


@given(st.data(), VERSIONS)
@settings(max_examples=examples(50, thorough=100), deadline=None)
def test_snapshots_come_back(data: st.DataObject, spec_version: int) -> None:
    """Nodes, shapes, extents, manifest files and metadata, as far as the version records them."""
    snapshot = data.draw(snapshots(spec_version))
    assert round_trip(SNAPSHOT, snapshot, spec_version) == snapshot


@given(st.data(), VERSIONS)
@settings(max_examples=30, deadline=None)
def test_the_order_of_nodes_given_does_not_matter(data: st.DataObject, spec_version: int) -> None:
    """Nodes and manifest files may come in any order and are written in the format's."""
    snapshot = data.draw(snapshots(spec_version))
    shuffled = replace(
        snapshot, nodes=snapshot.nodes[::-1], manifest_files=snapshot.manifest_files[::-1]
    )
    assert round_trip(SNAPSHOT, shuffled, spec_version) == snapshot


@given(transaction_logs(), VERSIONS)
@settings(max_examples=examples(40, thorough=80), deadline=None)
def test_transaction_logs_come_back(log: TransactionLog, spec_version: int) -> None:
    """Sets of nodes, updated chunks of arrays of any rank, and moves."""
    assert round_trip(TRANSACTION_LOG, log, spec_version) == log


@given(repo_infos())
@settings(max_examples=examples(50, thorough=100), deadline=None)
def test_repo_infos_come_back(repo: RepoInfo) -> None:
    """Refs, history, every kind of update, status, flags, configuration and metadata."""
    assert round_trip(REPO_INFO, repo, 2) == repo


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_metadata_passes_from_version_1_to_version_2(data: st.DataObject) -> None:
    """What was read as MessagePack is written as FlexBuffers when the version asks for it."""
    old = data.draw(snapshots(1))
    decoded = round_trip(SNAPSHOT, old, 1)
    moved = round_trip(SNAPSHOT, replace(decoded, nodes=(), parent_id=None), 2)
    assert moved.metadata == old.metadata


@given(SNAPSHOT_IDS)
def test_reference_files_come_back(snapshot_id: SnapshotId) -> None:
    """A branch or tag of generation v1 points where it was made to point."""
    assert decode_ref(encode_ref(snapshot_id), "ref.json") == snapshot_id


@pytest.mark.parametrize("path", golden_files())
def test_the_files_of_the_reference_implementation_come_back(path: str) -> None:
    """Decode, encode, decode: the same value; and what icefloe wrote once it writes again."""
    data = golden_files()[path]
    header = read_header(data, path)
    kind = KINDS[header.file_type]
    value = kind.decode(data, path)
    ours = kind.write(value, header.spec_version)
    assert kind.decode(ours, path) == value
    assert read_header(ours, path).spec_version == header.spec_version
    again = kind.write(kind.decode(ours, path), header.spec_version)
    assert body_of(again) == body_of(ours)
