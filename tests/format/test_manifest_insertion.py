"""Inserting references into a manifest file gives the manifest of all references."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format.location_compression import LocationCompression
from icefloe.format.manifest import decode_manifest, encode_manifest
from icefloe.format.manifest_lookup import FlatbuffersManifestFile, open_manifest_file
from icefloe.model.chunk_payload import ChunkPayload, ChunkRef, VirtualChunkRef
from icefloe.model.ids import ChunkId, ManifestId, NodeId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from support.codec_choice import columnar_codecs
from support.flatbuffers_library import Style, build, read
from support.format_damage import damage, judge
from support.format_kinds import MANIFEST, body_of, wrap
from support.format_strategies import PAYLOADS, index_matrices
from support.format_trees import manifest_tree
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    import random

Chunks: TypeAlias = dict[tuple[int, ...], ChunkPayload]
NODE = NodeId(b"an array")
KEY = "a file"
WRITERS = st.sampled_from(["direct", "columnar", "another library"])


def make_manifest(number: int, chunks: Chunks) -> Manifest:
    """Make a manifest of one array."""
    coords = np.array(list(chunks), np.uint32)
    refs = ArrayManifest.of(coords, ChunkPayloads.of(list(chunks.values())))
    return Manifest.of_array(ManifestId(number.to_bytes(12, "big")), NODE, refs)


def write(manifest: Manifest, writer: str, spec_version: int) -> bytes:
    if writer == "another library":
        return wrap(build(manifest_tree(manifest), "Manifest", Style()), 2, spec_version)
    if writer == "direct":
        return encode_manifest(manifest, spec_version=spec_version)
    with columnar_codecs():
        return encode_manifest(manifest, spec_version=spec_version)


def insert(data: bytes, changes: Manifest) -> tuple[FlatbuffersManifestFile, bytes] | None:
    return open_manifest_file(data, KEY, spec_version=2).insert(changes, KEY)


def make_chunks(*numbers: int) -> Chunks:
    return {(number,): ChunkRef(ChunkId(bytes(12)), number, 1) for number in numbers}


@given(st.data(), WRITERS, st.sampled_from([1, 2]))
@settings(max_examples=examples(60, thorough=300), deadline=None)
def test_insertions(data: st.DataObject, writer: str, spec_version: int) -> None:
    """Any references, repeatedly, into files of any writer."""
    coords = data.draw(index_matrices().filter(lambda matrix: len(matrix) > 1))
    rows = [tuple(index) for index in coords.tolist()]
    chunks: Chunks = {index: data.draw(PAYLOADS) for index in rows}
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    present = {index: chunks[index] for index in rows[: max(1, len(rows) - sum(counts))]}
    manifest = make_manifest(0, present)
    file = open_manifest_file(write(manifest, writer, spec_version), KEY, spec_version=spec_version)
    for number, count in enumerate(counts, 1):
        new = {index: chunks[index] for index in rows[len(present) : len(present) + count]}
        if not new:
            break
        present |= new
        inserted = file.insert(make_manifest(number, new), KEY)
        assert inserted is not None
        file, written = inserted
        expected = make_manifest(number, present)
        assert decode_manifest(written, KEY) == expected
        assert file.read_manifest() == expected
        assert read(body_of(written), "Manifest").tree == manifest_tree(expected)
        finder = file.find_refs(NODE, file.read_manifest)
        assert finder is not None
        assert {index: finder.get(index) for index in present} == present
        assert judge(written)


@given(st.data(), st.randoms(use_true_random=False))
@settings(max_examples=examples(60, thorough=300), deadline=None)
def test_damaged_files(data: st.DataObject, source: random.Random) -> None:
    """A damaged file is rewritten, which reports the damage, or remains readable or damaged."""
    file = encode_manifest(make_manifest(0, make_chunks(*range(0, 20, 2))), spec_version=2)
    changes = make_manifest(1, make_chunks(data.draw(st.integers(0, 30))))
    for _ in range(8):
        try:
            inserted = insert(damage(file, source), changes)
        except FormatError:
            continue
        if inserted is not None:
            judge(inserted[1])


def test_declined() -> None:
    """Files with one of the references, other arrays, or references out of order are rewritten."""
    even = make_manifest(0, make_chunks(*range(0, 20, 2)))
    file = encode_manifest(even, spec_version=2)
    assert insert(file, make_manifest(1, make_chunks(3, 5))) is not None
    assert insert(file, make_manifest(1, make_chunks(3, 4))) is None
    refs = even.get_array(NODE)
    assert refs is not None
    for nodes in ([NodeId(b"another!")], [NODE, NodeId(b"another!")]):
        others = encode_manifest(Manifest.of(even.id, dict.fromkeys(nodes, refs)), spec_version=2)
        assert insert(others, make_manifest(1, make_chunks(3))) is None
    tree = manifest_tree(even)
    tree["arrays"][0]["refs"].insert(5, tree["arrays"][0]["refs"][5])
    repeated = wrap(build(tree, "Manifest"), MANIFEST.file_type)
    assert insert(repeated, make_manifest(1, make_chunks(3))) is None


def test_files_with_compressed_locations_are_declined() -> None:
    """Their references need the dictionary in the root, which is not copied."""
    virtual: Chunks = {
        (number,): VirtualChunkRef(f"s3://bucket/{number}.nc", 0, 1) for number in range(600)
    }
    compression = LocationCompression(
        min_locations=1, max_training_samples=100, max_dictionary_bytes=1000, level=3
    )
    file = encode_manifest(
        make_manifest(0, virtual), spec_version=2, location_compression=compression
    )
    assert insert(file, make_manifest(1, make_chunks(700))) is None


def test_values_that_cannot_be_stored_are_declined() -> None:
    """Encoding all references reports them."""
    file = encode_manifest(make_manifest(0, make_chunks(1)), spec_version=2)
    deep: Chunks = {(0,) * 300: ChunkRef(ChunkId(bytes(12)), 0, 1)}
    assert insert(file, make_manifest(1, deep)) is None


def test_files_are_as_large_as_those_written_in_full() -> None:
    """Repeated insertions leave no unused bytes behind."""
    chunks = make_chunks(*range(0, 400, 2))
    file = open_manifest_file(
        encode_manifest(make_manifest(0, chunks), spec_version=2), KEY, spec_version=2
    )
    for number in range(50):
        chunks |= make_chunks(2 * number + 1)
        inserted = file.insert(make_manifest(number + 1, make_chunks(2 * number + 1)), KEY)
        assert inserted is not None
        file, written = inserted
    full = encode_manifest(make_manifest(50, chunks), spec_version=2)
    assert len(body_of(written)) <= len(body_of(full)) + 16
