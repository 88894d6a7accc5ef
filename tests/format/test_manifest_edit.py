"""Editing a manifest file gives the same manifest as rewriting it, or is declined."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format import flatbuffer_writer
from icefloe.format.location_compression import LocationCompression
from icefloe.format.manifest import decode_manifest, encode_manifest
from icefloe.format.manifest_lookup import open_manifest_file
from icefloe.model.chunk_payload import ChunkRef, ETag, InlineChunk, LastModified, VirtualChunkRef
from icefloe.model.ids import ChunkId, ManifestId, NodeId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from support.flatbuffers_library import Style, build, read
from support.format_damage import damage, judge
from support.format_kinds import MANIFEST, body_of, wrap
from support.format_strategies import CHUNK_IDS
from support.format_trees import manifest_tree
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from icefloe.model.chunk_payload import ChunkPayload

ROWS = 600
NODE = NodeId(b"an array")
# Small enough that a few are no great part of a file.
PAYLOADS: st.SearchStrategy[ChunkPayload] = st.one_of(
    st.builds(ChunkRef, CHUNK_IDS, st.integers(0, 2**40), st.integers(0, 9)),
    st.builds(
        VirtualChunkRef,
        st.sampled_from(["s3://b/one.nc", "s3://b/twö.nc"]),
        st.integers(0, 2**40),
        st.integers(0, 9),
        st.none() | st.just(ETag("tag")) | st.just(LastModified(7)),
    ),
    st.builds(InlineChunk, st.binary(max_size=8)),
)
STYLES = st.none() | st.builds(Style, st.booleans(), st.booleans(), st.booleans(), st.booleans())
VERSIONS = st.sampled_from((1, 2))


def manifest_of(payloads: Mapping[int, ChunkPayload], ndim: int = 1) -> Manifest:
    """Make a manifest of one array from its chunks, which are numbered row by row."""
    numbers = np.array(list(payloads), np.int64)
    coords = np.stack(np.unravel_index(numbers, (3 * ROWS, *[5] * (ndim - 1))), axis=1)
    refs = ArrayManifest.of(coords.astype(np.uint32), ChunkPayloads.of(list(payloads.values())))
    return Manifest.of_array(ManifestId(b"of %8d." % len(payloads)), NODE, refs)


def write(manifest: Manifest, style: Style | None, spec_version: int) -> bytes:
    """Write a file as icefloe does, or as the official library does."""
    if style is None:
        return encode_manifest(manifest, spec_version=spec_version)
    body = build(manifest_tree(manifest), "Manifest", style)
    return wrap(body, MANIFEST.file_type, spec_version)


def edit(data: bytes, changes: Manifest, spec_version: int = 2) -> bytes | None:
    return open_manifest_file(data, "a file", spec_version=spec_version).edit(changes)


@st.composite
def references(draw: st.DrawFn) -> dict[int, ChunkPayload]:
    kinds = draw(st.lists(PAYLOADS, min_size=1, max_size=5))
    return {row: kinds[row % len(kinds)] for row in range(ROWS)}


@given(references(), st.data(), STYLES, VERSIONS, st.integers(1, 3))
@settings(max_examples=examples(30, thorough=100), deadline=None)
def test_edits(
    before: dict[int, ChunkPayload],
    data: st.DataObject,
    style: Style | None,
    spec_version: int,
    ndim: int,
) -> None:
    """Any references are replaced by others, repeatedly, in files of any writer.

    The official library finds everything where it should be in what comes out.
    """
    file = write(manifest_of(before, ndim), style, spec_version)
    now = dict(before)
    for _ in range(data.draw(st.integers(1, 3), "edits")):
        new = data.draw(st.dictionaries(st.integers(0, ROWS - 1), PAYLOADS, min_size=1, max_size=4))
        changes = manifest_of(new, ndim)
        edited = edit(file, changes, spec_version)
        assert edited is not None
        file, now = edited, now | new
        expected = replace(manifest_of(now, ndim), id=changes.id)
        assert decode_manifest(file, "a file") == expected
        if style is None or not style.later_fields:
            assert read(body_of(file), "Manifest").tree == manifest_tree(expected)
        assert judge(file)


def natives(*numbers: int) -> dict[int, ChunkPayload]:
    return {number: ChunkRef(ChunkId(bytes(12)), number, 1) for number in numbers}


EVEN = natives(*range(0, 2 * ROWS, 2))


@pytest.mark.parametrize(
    "changes",
    [natives(1), natives(0, 1), natives(2 * ROWS), natives(*range(0, 200, 2))],
    ids=["missing", "one of two missing", "behind all", "too many"],
)
def test_declined(changes: dict[int, ChunkPayload]) -> None:
    """A file is rewritten if a reference is not in it, or if there are many."""
    file = encode_manifest(manifest_of(EVEN), spec_version=2)
    assert edit(file, manifest_of(natives(2, 4))) is not None
    assert edit(file, manifest_of(changes)) is None


def test_other_arrays_are_declined() -> None:
    """A file of another array or of several arrays is rewritten."""
    one = manifest_of(EVEN)
    refs = one.get_array(NODE)
    assert refs is not None
    for nodes in ([NodeId(b"another!")], [NODE, NodeId(b"another!")]):
        both = Manifest.of(one.id, dict.fromkeys(nodes, refs))
        assert edit(encode_manifest(both, spec_version=2), manifest_of(natives(2))) is None


def test_a_reference_written_twice_is_declined() -> None:
    """Icechunk 1 writes a reference twice now and then; to change one of the two is not enough."""
    tree = manifest_tree(manifest_of(EVEN))
    tree["arrays"][0]["refs"].insert(50, tree["arrays"][0]["refs"][50])
    file = wrap(build(tree, "Manifest"), MANIFEST.file_type, 1)
    assert edit(file, manifest_of(natives(98))) is not None
    assert edit(file, manifest_of(natives(100))) is None


def test_compressed_locations() -> None:
    """No plain location gets into a file of compressed ones; other references do."""
    virtual: dict[int, ChunkPayload] = {
        number: VirtualChunkRef(f"s3://bucket/{number}.nc", 0, 1) for number in range(ROWS)
    }
    file = encode_manifest(
        manifest_of(virtual),
        spec_version=2,
        location_compression=LocationCompression(min_locations=1),
    )
    assert edit(file, manifest_of({3: VirtualChunkRef("s3://bucket/new.nc", 0, 1)})) is None
    edited = edit(file, manifest_of(natives(3)))
    assert edited is not None
    now = decode_manifest(edited, "a file")
    assert list(now.payloads) == [*(virtual | natives(3)).values()]


def test_additions_are_bounded() -> None:
    """A file that was edited often is rewritten, so that most of it is in use."""
    file = fresh = encode_manifest(manifest_of(EVEN), spec_version=2)
    edits = 0
    while (edited := edit(file, manifest_of(natives(2 * ROWS - 2)))) is not None:
        file, edits = edited, edits + 1
    assert edits > 10
    assert len(body_of(file)) < 1.1 * len(body_of(fresh))


@given(st.randoms(use_true_random=False), STYLES)
@settings(max_examples=examples(20, thorough=200), deadline=None)
def test_damaged_files(source: random.Random, style: Style | None) -> None:
    """A damaged file is refused or declined, or what is made of it is refused or read."""
    file = write(manifest_of(EVEN), style, 2)
    for _ in range(8):
        try:
            edited = edit(damage(file, source), manifest_of(natives(2, 400)))
        except FormatError:
            continue
        if edited is not None:
            judge(edited)


@pytest.mark.parametrize("place", ["arrays", "arrays[0].refs[0]"])
def test_an_id_where_a_pointer_is_is_declined(place: str) -> None:
    """A hostile file may have the manifest's id where it has a pointer, too."""
    body = bytearray(body_of(encode_manifest(manifest_of(EVEN), spec_version=2)))
    reading = read(bytes(body), "Manifest")
    refs = reading.targets["arrays[0].refs"] + 4
    target = reading.fields["arrays"] if place == "arrays" else refs
    table = int.from_bytes(body[:4], "little")
    vtable = table - int.from_bytes(body[table : table + 4], "little", signed=True)
    body[vtable + 2 : vtable + 4] = (2000).to_bytes(2, "little")  # so large is the table
    body[vtable + 4 : vtable + 6] = (target - table).to_bytes(2, "little")
    hostile = wrap(bytes(body), MANIFEST.file_type, 2)
    assert decode_manifest(hostile, "a file").id.raw == bytes(body[target : target + 12])
    assert edit(hostile, manifest_of(natives(0))) is None


def test_no_room_for_additions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the maximum size is rewritten."""
    file = encode_manifest(manifest_of(EVEN), spec_version=2)
    monkeypatch.setattr(flatbuffer_writer, "MAX_FLATBUFFER_SIZE", len(body_of(file)) + 50)
    assert edit(file, manifest_of(natives(2))) is None
