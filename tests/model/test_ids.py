"""Ids: their types, their spelling, their order."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.model.ids import (
    INITIAL_SNAPSHOT_ID,
    ChunkId,
    ManifestId,
    NodeId,
    ObjectId,
    SnapshotId,
)

KINDS = (SnapshotId, ManifestId, ChunkId, NodeId)


def test_initial_snapshot_id() -> None:
    """The first snapshot's bytes are spelled as the specification spells them."""
    assert INITIAL_SNAPSHOT_ID.raw.hex() == "0b1cc8d6787580f0e33a6534"
    assert str(INITIAL_SNAPSHOT_ID) == "1CECHNKREP0F1RSTCMT0"


@pytest.mark.parametrize("kind, size, length", [(ChunkId, 12, 20), (NodeId, 8, 13)])
def test_sizes(kind: type[ObjectId], size: int, length: int) -> None:
    """Ids have 12 bytes and 20 characters, node ids 8 and 13; random ones differ."""
    one, other = kind.random(), kind.random()
    assert len(one.raw) == size
    assert len(str(one)) == length
    assert one != other
    with pytest.raises(InvalidInputError, match=f" {size} .*bytes"):
        kind(bytes(size + 1))


@given(st.binary(min_size=12, max_size=12) | st.binary(min_size=16, max_size=16))
def test_spelling_round_trips(raw: bytes) -> None:
    """An id is read back from its spelling, in either case and with the letters for digits."""
    text = str(SnapshotId(raw))
    sloppy = text.lower().replace("0", "o").replace("1", "L")
    assert SnapshotId.parse(text) == SnapshotId.parse(sloppy) == SnapshotId(raw)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1CECHNKREP0F1RSTCMT",
        "1CECHNKREP0F1RSTCMT00",
        "1CECHNKREP0F1RSTCMTU",  # no letter of the alphabet
        "1CECHNKREP0F1RSTCMT1",  # bits beyond the 96
        "1CECHNKREP0F1RST MT0",
        "ÍCECHNKREP0F1RSTCMT0",
    ],
)
def test_bad_spellings_are_refused(text: str) -> None:
    """What does not spell exactly one id raises, and the message shows what would."""
    with pytest.raises(InvalidInputError, match="20 or 26 characters of Crockford"):
        SnapshotId.parse(text)


def test_kinds_do_not_mix() -> None:
    """The same bytes are different ids for different kinds of objects, and do not compare."""
    ids = {kind(bytes(kind.SIZE)) for kind in KINDS}
    assert len(ids) == len(KINDS)
    with pytest.raises(TypeError):
        sorted([ChunkId(bytes(12)), ManifestId(bytes(12))])


@given(st.lists(st.binary(min_size=8, max_size=8)))
def test_order_is_that_of_bytes(raws: list[bytes]) -> None:
    """Ids sort as their bytes do."""
    assert [node_id.raw for node_id in sorted(map(NodeId, raws))] == sorted(raws)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_values(kind: type[ObjectId]) -> None:
    """Ids pickle, hash, and cannot be changed."""
    one = kind.random()
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301
    assert {one: 1}[kind(one.raw)] == 1
    with pytest.raises(AttributeError):
        one.raw = b""
