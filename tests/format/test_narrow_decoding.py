"""Decoding some fields of a file gives the values of a full decode, and refuses damaged ones."""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format.envelope import FileType, read_header
from icefloe.format.manifest import decode_chunk_ids, decode_manifest
from icefloe.format.snapshot import decode_snapshot, decode_snapshot_files, decode_snapshot_info
from icefloe.model.chunk_payload import ChunkKind
from support.codec_choice import columnar_codecs
from support.flatbuffers_library import build
from support.format_damage import damage
from support.format_kinds import MANIFEST, SNAPSHOT, force_metadata, golden_files, wrap
from support.format_strategies import manifests, snapshots
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable


def require_equal_snapshot(data: bytes) -> None:
    """Compare both narrow decodings of a snapshot with the full one."""
    snapshot = decode_snapshot(data, "a file")
    # Not a number is not equal to itself, but it is spelled the same.
    assert repr(decode_snapshot_info(data, "a file")) == repr(snapshot.get_info())
    actual, expected = decode_snapshot_files(data, "a file"), snapshot.find_files()
    assert (actual.id, actual.parent_id) == (expected.id, expected.parent_id)
    assert set(actual.manifests) == set(expected.manifests)
    assert len(actual.manifests) == len(expected.manifests)


def require_equal_manifest(data: bytes) -> None:
    """Compare the decoded chunk ids of a manifest with those of a full decode."""
    manifest = decode_manifest(data, "a file")
    manifest_id, ids = decode_chunk_ids(data, "a file")
    assert manifest_id == manifest.id
    expected = manifest.payloads.chunk_id[manifest.payloads.kind == ChunkKind.NATIVE]
    assert {*map(bytes, ids)} == {*map(bytes, expected)}  # Icechunk 1 repeats references


class Checks(NamedTuple):
    """The decoders of a kind of file, and the comparison of their values."""

    decode: Callable[[bytes, str], Any]
    narrow: tuple[Callable[[bytes, str], Any], ...]
    require_equal: Callable[[bytes], None]

    def is_valid(self, data: bytes) -> bool:
        """Whether the full decoder accepts a file; no decoder raises another error."""
        for decode in self.narrow:
            with suppress(FormatError):
                decode(data, "a file")
        try:
            force_metadata(self.decode(data, "a file"))
        except FormatError:
            return False
        return True


CHECKS = {
    FileType.SNAPSHOT: Checks(
        decode_snapshot, (decode_snapshot_info, decode_snapshot_files), require_equal_snapshot
    ),
    FileType.MANIFEST: Checks(decode_manifest, (decode_chunk_ids,), require_equal_manifest),
}


@pytest.mark.parametrize("make_context", [nullcontext, columnar_codecs])
@pytest.mark.parametrize("spec_version", [1, 2])
@given(data=st.data())
@settings(max_examples=examples(40, thorough=200), deadline=None)
def test_equal_to_a_full_decode(make_context: Any, spec_version: int, data: st.DataObject) -> None:
    with make_context():
        require_equal_snapshot(SNAPSHOT.write(data.draw(snapshots(spec_version)), spec_version))
        require_equal_manifest(MANIFEST.write(data.draw(manifests()), spec_version))


@pytest.mark.parametrize("path", golden_files())
def test_files_of_the_reference_implementation(path: str) -> None:
    data = golden_files()[path]
    checks = CHECKS.get(read_header(data, path).file_type)
    if checks is not None:
        checks.require_equal(data)


@pytest.mark.parametrize("make_context", [nullcontext, columnar_codecs])
@pytest.mark.parametrize("path", golden_files())
def test_damaged_files(path: str, make_context: Any) -> None:
    data, source = golden_files()[path], random.Random(path)
    checks = CHECKS.get(read_header(data, path).file_type)
    if checks is None:
        return
    for _ in range(examples(20, thorough=500)):
        damaged = damage(data, source)
        with make_context():
            if checks.is_valid(damaged):
                checks.require_equal(damaged)


@pytest.mark.parametrize("make_context", [nullcontext, columnar_codecs])
def test_unknown_references_are_refused(make_context: Any) -> None:
    """Files that a later kind of node or chunk refers to would be taken for garbage."""
    node = {"id": bytes(8), "path": "/a", "user_data": b"{}", "node_data": (2, {})}
    snapshot = {
        "id": bytes(12),
        "nodes": [{**node, "node_data_type": 3}],
        "flushed_at": 1,
        "message": "",
        "metadata": [],
        "manifest_files": [],
    }
    ref = {"index": [0], "chunk_id": bytes(12)}
    arrays = [{"node_id": bytes(8), "refs": [ref, {"index": [1]}]}]
    manifest = {"id": bytes(12), "arrays": arrays, "compression_algorithm": 0}
    with make_context():
        with pytest.raises(FormatError, match="unknown type 3"):
            decode_snapshot_files(wrap(build(snapshot, "Snapshot"), FileType.SNAPSHOT), "a file")
        with pytest.raises(FormatError, match="ChunkRef 1 has 0 payloads"):
            decode_chunk_ids(wrap(build(manifest, "Manifest"), FileType.MANIFEST), "a file")
