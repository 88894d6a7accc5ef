"""Lookups in manifest files of draft and sequence give what the decoded manifest has."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format.draft import inventory
from icefloe.format.generation import DRAFT, SEQUENCE
from icefloe.format.sequence import manifest_search
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from icefloe.model.strings import Strings
from support import draft_values, sequence_strategies
from support.format_damage import mutate
from support.hypothesis_examples import examples
from support.json_damage import damage_json

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from icefloe.format.searched_refs import SearchedFile
    from icefloe.model.chunk_payload import ChunkPayload

FILE = "a file"
NODE = NodeId.from_number(7)
GENERATIONS = {"draft": DRAFT, "sequence": SEQUENCE}
MANIFESTS = {"draft": draft_values.inventories(), "sequence": sequence_strategies.manifests()}


@contextmanager
def small_files() -> Iterator[None]:
    """Search in small files, too, and have row groups of three rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inventory, "ROWS_PER_GROUP", 3)
        patch.setattr(manifest_search, "_MIN_BYTES", 0)
        yield


class Lookups:
    """Looks up chunks of one file, and counts how often it is decoded."""

    def __init__(self, content: SearchedFile) -> None:
        self.num_decoded = 0
        self._content = content
        self._finders: dict[NodeId, Any] = {}

    def get(self, node_id: NodeId, indices: tuple[int, ...]) -> ChunkPayload | None:
        if node_id not in self._finders:
            self._finders[node_id] = self._content.find_refs(node_id, self._decode)
        found: ChunkPayload | None = self._finders[node_id].get(indices)
        return found

    def _decode(self) -> Manifest:
        self.num_decoded += 1
        return self._content.read_manifest()


def list_refs(manifest: Manifest) -> dict[tuple[NodeId, tuple[int, ...]], ChunkPayload]:
    return {
        (node_id, tuple(coords)): payload
        for node_id in manifest.indices.iter_node_ids()
        if (array := manifest.get_array(node_id)) is not None
        for coords, payload in zip(array.coords.tolist(), array.payloads, strict=True)
    }


@pytest.mark.parametrize("name", GENERATIONS)
@settings(max_examples=examples(60, thorough=1000), deadline=None)
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_every_reference_is_found(name: str, data: Any, random: random.Random) -> None:
    """In any order, with references that are missing in between."""
    manifest = data.draw(MANIFESTS[name])
    codec: Any = GENERATIONS[name].codec
    with small_files():
        encoded = codec.encode_manifest(manifest, None)
        content = codec.open_manifest(encoded, FILE, manifest.id)
        expected: Any = list_refs(manifest)
        if isinstance(content, Manifest):
            assert content == manifest
            return
        places = [*expected, *((node, (*at[:-1], 2**32 - 1)) for node, at in expected if at)]
        random.shuffle(places)
        lookups = Lookups(content)
        assert [lookups.get(*place) for place in places] == [expected.get(at) for at in places]
        absent = NodeId.from_number(2**32 - 1), (0,)
        assert lookups.get(*absent) == expected.get(absent)
        assert content.read_manifest() == manifest


def make_files(manifest_id: ManifestId, count: int) -> Manifest:
    """Make an array of chunks with a file each."""
    numbers = np.arange(count)
    coords = np.stack([numbers // 1000, numbers % 1000], 1).astype(np.uint32)
    names = Strings.of([f"s3://bucket/{number}" for number in range(count)])
    zeros = np.zeros(count, np.uint64)
    payloads = ChunkPayloads.make_virtual(numbers.astype(np.int32), names, zeros, zeros + 1)
    return Manifest.of_array(manifest_id, NODE, ArrayManifest(coords, payloads))


@pytest.mark.parametrize("name", GENERATIONS)
def test_few_lookups_do_not_decode_the_file(name: str) -> None:
    """Many do, and so does a chunk that is missing."""
    generation = GENERATIONS[name]
    manifest = make_files(generation.make_id(ManifestId), 5 * inventory.ROWS_PER_GROUP)
    codec: Any = generation.codec
    encoded = codec.encode_manifest(manifest, None)
    lookups = Lookups(codec.open_manifest(encoded, FILE, manifest.id))
    for number in range(5):
        found = lookups.get(NODE, (3, number))
        assert found is not None
        assert found.location == f"s3://bucket/{3000 + number}"  # type: ignore[union-attr]
    assert lookups.num_decoded == 0
    for row in range(0, 600, 60):
        assert lookups.get(NODE, (row, 1)) is not None
    assert lookups.num_decoded == 1
    other = Lookups(codec.open_manifest(encoded, FILE, manifest.id))
    assert other.get(NODE, (3, 1000)) is None
    assert other.num_decoded == 1


@pytest.mark.parametrize("name", GENERATIONS)
@settings(max_examples=examples(60, thorough=5000), deadline=None)
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_damaged_files(name: str, data: Any, random: random.Random) -> None:
    """A damaged file is refused, or gives what its decoded form has."""
    manifest = data.draw(MANIFESTS[name])
    codec: Any = GENERATIONS[name].codec
    with small_files():
        encoded = codec.encode_manifest(manifest, None)
        damaged = mutate(encoded, random) if name == "draft" else damage_json(encoded, random)
        with suppress(FormatError):
            content = codec.open_manifest(damaged, FILE, manifest.id)
            if isinstance(content, Manifest):
                return
            lookups = Lookups(content)
            found = {place: lookups.get(*place) for place in list_refs(manifest)}
            decoded = list_refs(content.read_manifest())
            assert found == {place: decoded.get(place) for place in found}
