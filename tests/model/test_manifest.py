"""Manifests as columns: look-up, selection, concatenation, equality."""

from __future__ import annotations

import pickle
from dataclasses import fields
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.chunk_payload import (
    ChunkIndices,
    ChunkPayload,
    ChunkRef,
    ETag,
    InlineChunk,
    LastModified,
    VirtualChunkRef,
)
from icefloe.model.ids import ChunkId, ManifestId, NodeId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from icefloe.model.node import ChunkIndexRange, ManifestExtents

u64 = st.integers(0, 2**64 - 1)
checksums = st.none() | st.text().map(ETag) | st.integers(1, 2**32 - 1).map(LastModified)
payload: st.SearchStrategy[ChunkPayload] = st.one_of(
    st.builds(ChunkRef, st.binary(min_size=12, max_size=12).map(ChunkId), u64, u64),
    st.builds(InlineChunk, st.binary(max_size=20)),
    st.builds(VirtualChunkRef, st.sampled_from(["s3://a/b", "s3://a/c", ""]), u64, u64, checksums),
)


@given(st.lists(payload, max_size=12))
def test_payloads_round_trip(payloads: list[ChunkPayload]) -> None:
    """Columns give back the payloads that they were made from, also after pickling."""
    columns = ChunkPayloads.of(payloads)
    assert list(columns) == payloads
    unpickled = pickle.loads(pickle.dumps(columns))  # noqa: S301
    assert list(unpickled) == payloads
    for field in fields(columns):
        if field.name not in ("locations", "etags"):
            assert getattr(unpickled, field.name).dtype == getattr(columns, field.name).dtype


@pytest.mark.parametrize(
    "payload, row_bytes",
    [
        (InlineChunk(b"abcd"), 4 + 2),  # the bytes and their offset
        (ChunkRef(ChunkId(bytes(range(12))), 0, 100), 12),
        (VirtualChunkRef("s3://bucket/file", 0, 100, LastModified(1)), 0),
    ],
)
def test_pickled_rows_have_few_bytes(payload: ChunkPayload, row_bytes: int) -> None:
    """Columns of small numbers are narrow, and columns of equal values have one entry."""
    sizes = [
        len(pickle.dumps(ArrayManifest(coords, ChunkPayloads.of([payload] * count))))
        for count in (1000, 2000)
        for coords in [np.stack([np.arange(count) % 200, np.arange(count) % 9], 1).astype("u4")]
    ]
    assert sizes[1] - sizes[0] <= 1000 * (row_bytes + 2) + 20


@given(st.lists(st.lists(payload, max_size=5), max_size=4))
def test_concatenate(parts: list[list[ChunkPayload]]) -> None:
    """Concatenation keeps every row, merges the tables, and equals columns made at once."""
    whole = [payload for part in parts for payload in part]
    joined = ChunkPayloads.concatenate([ChunkPayloads.of(part) for part in parts])
    assert list(joined) == whole
    assert joined == ChunkPayloads.of(whole)
    assert len(set(joined.locations)) == len(joined.locations)


@given(st.lists(payload, min_size=1, max_size=8), st.data())
def test_equality(payloads: list[ChunkPayload], data: st.DataObject) -> None:
    """Columns differ as soon as one row does, whatever that row is."""
    row = data.draw(st.integers(0, len(payloads) - 1))
    other = [*payloads]
    other[row] = data.draw(payload)
    assert (ChunkPayloads.of(payloads) == ChunkPayloads.of(other)) == (payloads == other)


def test_lookup() -> None:
    """Each chunk is found by its indices, and no other."""
    grid = list(product(range(3), range(4), range(2)))
    rows = np.array(grid[::-1], np.uint32)
    refs = [InlineChunk(repr(index).encode()) for index in grid[::-1]]
    array = ArrayManifest.of(rows, ChunkPayloads.of(refs))
    for index in grid:
        assert array.get(index) == InlineChunk(repr(index).encode())
    for other in [(3, 0, 0), (0, 4, 0), (0, 0, 2), (0, 0), (0, 0, 0, 0)]:
        assert array.get(other) is None


def test_arrays_of_a_manifest() -> None:
    """A manifest holds arrays of different rank, and gives each its own part, unsorted or not."""
    scalar, matrix = NodeId(b"\xff" * 8), NodeId(b"\0" * 8)
    manifest = Manifest.of(
        ManifestId.random(),
        {
            scalar: ArrayManifest(
                np.zeros((1, 0), np.uint32), ChunkPayloads.of([InlineChunk(b"s")])
            ),
            matrix: ArrayManifest(
                np.array([[1, 0], [0, 5]], np.uint32),
                ChunkPayloads.of([InlineChunk(b"10"), InlineChunk(b"05")]),
            ),
        },
    )
    assert list(manifest.indices.iter_node_ids()) == [matrix, scalar]
    found = manifest.get_array(matrix)
    assert found is not None
    assert found.coords.tolist() == [[0, 5], [1, 0]]
    assert found.get((1, 0)) == InlineChunk(b"10")
    assert manifest.get_array(scalar).get(()) == InlineChunk(b"s")  # type: ignore[union-attr]
    assert manifest.get_array(NodeId(b"\1" * 8)) is None
    assert len(manifest) == 3


def test_virtual_columns_take_no_room_for_what_they_lack() -> None:
    """A million virtual references take 24 bytes each besides their indices."""
    rows = 1_000_000
    payloads = ChunkPayloads.make_virtual(
        np.zeros(rows, np.int32),
        ChunkPayloads.of([VirtualChunkRef("s3://a/b", 0, 0)]).locations,
        np.zeros(rows, np.uint64),
        np.zeros(rows, np.uint64),
    )
    indices = ChunkIndexColumns.of({NodeId.random(): np.zeros((0, 1), np.uint32)})
    assert Manifest(ManifestId.random(), indices, payloads).nbytes < 21 * rows


@pytest.mark.parametrize("coords", [(-1,), (2**32,), (0, -5)])
def test_indices_outside_32_bits_are_refused(coords: tuple[int, ...]) -> None:
    """Chunk indices are unsigned numbers of 32 bits."""
    with pytest.raises(InvalidInputError, match="must be integers between"):
        ChunkIndices(*coords)


def test_extents() -> None:
    """A chunk is in the box or not; boxes overlap or not; no ranges mean everything."""
    box = ManifestExtents((ChunkIndexRange(0, 3), ChunkIndexRange(2, 4)))
    assert box.contains((2, 3))
    assert not box.contains((3, 3))
    assert not box.contains((0, 1))
    assert box.overlaps(ManifestExtents((ChunkIndexRange(2, 9), ChunkIndexRange(0, 3))))
    assert not box.overlaps(ManifestExtents((ChunkIndexRange(3, 9), ChunkIndexRange(0, 3))))
    assert ManifestExtents(()).contains(())
    assert ManifestExtents(()).overlaps(ManifestExtents(()))


def test_columns_cannot_be_changed() -> None:
    """A manifest is a value: no column can be written to, while the caller's own array can."""
    coords = np.zeros((1, 2), np.uint32)
    array = ArrayManifest.of(coords, ChunkPayloads.of([VirtualChunkRef("s3://a/b", 0, 9)]))
    manifest = Manifest.of(ManifestId.random(), {NodeId.random(): array})
    for owner in (array, manifest.indices, manifest.payloads, manifest.payloads.locations):
        columns = [getattr(owner, field.name) for field in fields(owner)]
        arrays = [column for column in columns if isinstance(column, np.ndarray)]
        assert arrays
        assert not any(column.flags.writeable for column in arrays)
    coords[0, 0] = 1
