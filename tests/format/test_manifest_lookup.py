"""Lookups in the bytes of a manifest file give what the decoded manifest has."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format.location_compression import LocationCompression
from icefloe.format.manifest import decode_manifest, encode_manifest
from icefloe.format.manifest_lookup import open_manifest_file
from icefloe.model.chunk_payload import ChunkRef, VirtualChunkRef
from icefloe.model.ids import ChunkId, ManifestId, NodeId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from support.flatbuffers_library import build
from support.format_damage import damage
from support.format_kinds import MANIFEST, golden_files, wrap
from support.format_strategies import manifests
from support.format_trees import manifest_tree
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ref_finder import RefFinder

NODE = NodeId(b"an array")
OTHER = NodeId(b"no array")
COMPRESSIONS = [None, LocationCompression(min_locations=1)]


class Lookups:
    """Looks up chunks of one file; counts how often it is decoded."""

    def __init__(self, data: bytes) -> None:
        self.num_decoded = 0
        self._file = open_manifest_file(data, "a file", spec_version=2)
        self._finders: dict[NodeId, RefFinder | None] = {}

    def get(self, indices: tuple[int, ...], node_id: NodeId = NODE) -> ChunkPayload | None:
        if node_id not in self._finders:
            self._finders[node_id] = self._file.find_refs(node_id, self._decode)
        finder = self._finders[node_id]
        return None if finder is None else finder.get(indices)

    def _decode(self) -> Manifest:
        self.num_decoded += 1
        return self._file.read_manifest()


def make_manifest(coords: Sequence[Sequence[int]], payloads: Sequence[ChunkPayload]) -> Manifest:
    refs = ArrayManifest(np.array(coords, np.uint32), ChunkPayloads.of(payloads))
    return Manifest.of_array(ManifestId(b"a manifest.."), NODE, refs)


def make_natives(count: int) -> list[ChunkPayload]:
    return [ChunkRef(ChunkId(bytes(12)), number, 1) for number in range(count)]


def check_lookups(data: bytes) -> None:
    manifest = decode_manifest(data, "a file")
    expected = {
        (node_id, tuple(coords)): payload
        for node_id in manifest.indices.iter_node_ids()
        if (array := manifest.get_array(node_id)) is not None
        for coords, payload in zip(array.coords.tolist(), array.payloads, strict=True)
    }
    lookups = Lookups(data)
    for (node_id, indices), payload in expected.items():
        assert lookups.get(indices, node_id) == payload
        missing = (*indices[:-1], 2**32 - 1) if indices else (0,)
        assert lookups.get(missing, node_id) == expected.get((node_id, missing))
    assert OTHER in manifest.indices.iter_node_ids() or lookups.get((0,), OTHER) is None


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("spec_version", [1, 2])
@given(manifest=manifests())
@settings(max_examples=examples(30, thorough=200), deadline=None)
def test_every_reference(
    spec_version: int, compression: LocationCompression | None, manifest: Manifest
) -> None:
    check_lookups(
        encode_manifest(manifest, spec_version=spec_version, location_compression=compression)
    )


@pytest.mark.parametrize(
    "path", [path for path in golden_files() if path.split("/")[-2] == "manifests"]
)
def test_files_of_the_reference_implementation(path: str) -> None:
    check_lookups(golden_files()[path])


@pytest.mark.parametrize("spec_version", [1, 2])
def test_few_lookups_decode_nothing(spec_version: int) -> None:
    locations = [f"s3://bucket/{number:06}.nc" for number in range(20_000)]
    payloads = [VirtualChunkRef(location, 5, 7) for location in locations]
    coords = [(number // 100, number % 100) for number in range(20_000)]
    data = encode_manifest(
        make_manifest(coords, payloads),
        spec_version=spec_version,
        location_compression=LocationCompression(),
    )
    lookups = Lookups(data)
    rows = list(range(0, 20_000, 1200))
    for row in rows:
        assert lookups.get(coords[row]) == payloads[row]
    assert lookups.get((200, 0)) is None
    assert lookups.num_decoded == 0
    # 20,000 references allow 19 searches, of which 18 are done.
    for _ in range(2):
        assert lookups.get((0, 3)) == payloads[3]
    assert lookups.num_decoded == 1


def test_references_out_of_order() -> None:
    """A search finds a chunk or notices that the file is damaged; no chunk seems to be missing."""
    numbers = list(range(100))
    random.Random(1).shuffle(numbers)
    payloads = make_natives(100)
    manifest = make_manifest([(number,) for number in numbers], payloads)
    data = encode_manifest(manifest, spec_version=2)
    for row, number in enumerate(numbers):
        with suppress(FormatError):
            assert Lookups(data).get((number,)) == payloads[row]
    with pytest.raises(FormatError, match="must be sorted"):
        Lookups(data).get((100,))


def test_arrays_out_of_order() -> None:
    manifest = make_manifest([(0,)], make_natives(1))
    tree = manifest_tree(manifest)
    array = tree["arrays"][0]
    others = [{**array, "node_id": raw} for raw in (b"c" * 8, b"b" * 8, b"a" * 8)]
    data = wrap(build({**tree, "arrays": others}, "Manifest"), MANIFEST.file_type, 2)
    with pytest.raises(FormatError, match="arrays must be sorted"):
        Lookups(data).get((0,), NodeId(b"a" * 8))


def test_duplicates() -> None:
    """Equal duplicates, which Icechunk 1 writes, are one reference; others are an error."""
    first, second, third = make_natives(3)
    coords = [(0,), (1,), (1,)]
    equal = encode_manifest(make_manifest(coords, [first, second, second]), spec_version=1)
    assert Lookups(equal).get((1,)) == second
    different = encode_manifest(make_manifest(coords, [first, second, third]), spec_version=1)
    with pytest.raises(FormatError, match="must be sorted"):
        Lookups(different).get((1,))


def damage_and_look_up(data: bytes, manifest: Manifest, source: random.Random) -> None:
    """Look up all chunks in damaged copies of a file."""
    for _ in range(8):
        damaged = damage(data, source)
        for node_id in manifest.indices.iter_node_ids():
            array = manifest.get_array(node_id)
            coords = [] if array is None else array.coords.tolist()
            with suppress(FormatError):
                lookups = Lookups(damaged)
                for indices in coords:
                    lookups.get(tuple(indices), node_id)


@given(manifests(), st.randoms(use_true_random=False), st.sampled_from(COMPRESSIONS))
@settings(max_examples=examples(60, thorough=300), deadline=None)
def test_damaged_files(
    manifest: Manifest, source: random.Random, compression: LocationCompression | None
) -> None:
    """A lookup returns a reference or raises `FormatError`."""
    data = encode_manifest(manifest, spec_version=2, location_compression=compression)
    damage_and_look_up(data, manifest, source)


@pytest.mark.parametrize("problem", ["size", "text", "damage", "algorithm"])
def test_bad_compressed_locations(problem: str) -> None:
    manifest = make_manifest([(0,)], [VirtualChunkRef("s3://b/c", 0, 1)])
    frames = {
        "size": zstandard.compress(b"a" * 2000),
        "text": zstandard.compress(b"\xff\xff"),
        "damage": zstandard.compress(b"a location")[:-3],
        "algorithm": zstandard.compress(b"s3://b/c"),
    }
    tree = manifest_tree(manifest)
    ref = tree["arrays"][0]["refs"][0]
    del ref["location"]
    ref["compressed_location"] = list(frames[problem])
    tree["compression_algorithm"] = 7 if problem == "algorithm" else 1
    data = wrap(build(tree, "Manifest"), MANIFEST.file_type, 2)
    message = {
        "size": "declares 2000 bytes",
        "text": "not valid UTF-8",
        "damage": "is damaged",
        "algorithm": "unknown compression algorithm of locations: 7",
    }[problem]
    with pytest.raises(FormatError, match=message):
        Lookups(data).get((0,))
    with pytest.raises(FormatError, match=message):
        decode_manifest(data, "a file")
