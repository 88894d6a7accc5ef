"""Chunk references and changes as columns, against plain dictionaries."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.model.chunk_payload import VirtualChunkRef
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.transaction import chunk_changes, overlay
from icefloe.transaction.chunk_changes import UNCHANGED, ChunkChanges
from icefloe.transaction.row_order import compute_row_keys, find_common_rows
from support.format_strategies import PAYLOADS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import ChunkPayload

Coords = tuple[int, ...]
Refs = dict[Coords, "ChunkPayload"]
Changes = dict[Coords, "ChunkPayload | None"]

# Few small numbers, so that rows meet, and ones that no linear number has room for.
_COORD = st.integers(0, 3) | st.sampled_from([2**31, 2**32 - 2, 2**32 - 1])
_RANKS = st.integers(0, 4)
_CASES = settings(max_examples=60, deadline=None)


def _coords(ndim: int) -> st.SearchStrategy[Coords]:
    return st.tuples(*[_COORD] * ndim)


def _matrix(rows: list[Coords], ndim: int) -> NDArray[np.uint32]:
    return np.array(rows, np.uint32).reshape(len(rows), ndim)


def _columns(changes: Changes, ndim: int) -> ArrayManifest:
    """Make columns with deletions among them, the slow way."""
    written = {coords: one for coords, one in changes.items() if one is not None}
    gone = [coords for coords, one in changes.items() if one is None]
    coords = _matrix([*written, *gone], ndim)
    payloads = ChunkPayloads.concatenate(
        [
            ChunkPayloads.of(list(written.values())),
            overlay.mark_deleted(_matrix(gone, ndim)).payloads,
        ]
    )
    return ArrayManifest.of(coords, payloads)


def _as_dict(columns: ArrayManifest) -> Changes:
    rows = [tuple(row) for row in columns.coords.tolist()]
    assert rows == sorted(set(rows)), "rows are sorted, and none comes twice"
    is_gone = (columns.payloads.kind == overlay.DELETED).tolist()
    return {
        row: None if gone else columns.payloads[number]
        for number, (row, gone) in enumerate(zip(rows, is_gone, strict=True))
    }


def _refs(ndim: int) -> st.SearchStrategy[Refs]:
    return st.dictionaries(_coords(ndim), PAYLOADS, max_size=8)


def _changes(ndim: int) -> st.SearchStrategy[Changes]:
    return st.dictionaries(_coords(ndim), st.none() | PAYLOADS, max_size=8)


@_CASES
@given(st.data(), _RANKS)
def test_apply(data: st.DataObject, ndim: int) -> None:
    """Changes replace, add and delete references, whatever their kinds and coordinates."""
    base, changes = data.draw(_refs(ndim)), data.draw(_changes(ndim))
    before = _columns(dict(base), ndim)
    result = overlay.apply(before, _columns(changes, ndim))
    expected = {coords: one for coords, one in {**base, **changes}.items() if one is not None}
    assert _as_dict(result) == expected
    assert _as_dict(before) == base


@_CASES
@given(st.data(), _RANKS)
def test_stack(data: st.DataObject, ndim: int) -> None:
    """Of several layers the last word counts, and deletions stay deletions."""
    layers = data.draw(st.lists(_changes(ndim), min_size=1, max_size=4))
    expected: Changes = {}
    for layer in layers:
        expected |= layer
    assert _as_dict(overlay.stack([_columns(layer, ndim) for layer in layers])) == expected


@_CASES
@given(st.data(), _RANKS)
def test_compact(data: st.DataObject, ndim: int) -> None:
    """Compacting drops unused strings and changes nothing else."""
    refs = data.draw(_refs(ndim))
    whole = _columns(dict(refs), ndim)
    taken = data.draw(st.lists(st.booleans(), min_size=len(refs), max_size=len(refs)))
    rows = np.flatnonzero(taken)
    part = overlay.select(whole, rows)
    compact = overlay.compact(part.payloads)
    assert list(compact) == list(part.payloads)
    used = {ref.location for ref in compact if isinstance(ref, VirtualChunkRef)}
    assert set(compact.locations) == used


@_CASES
@given(st.data(), _RANKS)
def test_membership(data: st.DataObject, ndim: int) -> None:
    """`is_among`, `find_common_rows` and `is_inside` agree with sets."""
    rows = st.lists(_coords(ndim), unique=True, max_size=8)
    one, other = sorted(data.draw(rows)), sorted(data.draw(rows))
    mine, theirs = _matrix(one, ndim), _matrix(other, ndim)
    assert overlay.is_among(mine, theirs).tolist() == [row in other for row in one]
    places, other_places = find_common_rows(mine, theirs)
    assert [one[place] for place in places] == [other[place] for place in other_places]
    assert {one[place] for place in places} == set(one) & set(other)
    grid = data.draw(st.tuples(*[st.integers(0, 2**32)] * ndim))
    assert overlay.is_inside(mine, grid).tolist() == [
        all(i < n for i, n in zip(row, grid, strict=True)) for row in one
    ]


@_CASES
@given(st.data(), st.integers(0, 4), st.integers(0, 4))
def test_other_ranks_have_nothing_in_common(data: st.DataObject, ndim: int, other: int) -> None:
    """Rows of different length are never equal, whatever they start with."""
    if ndim == other:
        return
    mine = _matrix(data.draw(st.lists(_coords(ndim), unique=True, max_size=4)), ndim)
    theirs = _matrix(data.draw(st.lists(_coords(other), unique=True, max_size=4)), other)
    assert not overlay.is_among(mine, theirs).any()
    assert not overlay.is_inside(mine, (5,) * other).any()
    assert [len(places) for places in find_common_rows(mine, theirs)] == [0, 0]


@_CASES
@given(st.data(), _RANKS)
def test_row_keys_compare_as_rows_do(data: st.DataObject, ndim: int) -> None:
    """Across all matrices, one key is less than another exactly if its row is."""
    rows = st.lists(_coords(ndim), max_size=5)
    parts = data.draw(st.lists(rows, min_size=1, max_size=3))
    keys = compute_row_keys([_matrix(part, ndim) for part in parts])
    assert [len(key) for key in keys] == [len(part) for part in parts]
    every = [
        (row, int(key))
        for part, of_part in zip(parts, keys, strict=True)
        for row, key in zip(part, of_part, strict=True)
    ]
    for row, key in every:
        for other_row, other_key in every:
            assert (row < other_row) == (key < other_key)
            assert (row == other_row) == (key == other_key)


@_CASES
@given(st.data(), _RANKS)
def test_repeated_rows(data: st.DataObject, ndim: int) -> None:
    """Of rows that come several times the last one stays."""
    pairs = data.draw(st.lists(st.tuples(_coords(ndim), PAYLOADS), max_size=8))
    coords = _matrix([coords for coords, _ in pairs], ndim)
    found = overlay.deduplicate(coords, ChunkPayloads.of([one for _, one in pairs]))
    assert _as_dict(found) == dict(pairs)


_STEPS = st.sampled_from(["set", "set", "delete", "add", "columns", "copy", "pickle"])


@_CASES
@given(st.data(), _RANKS, st.sampled_from([2, 4096]))
def test_chunk_changes(data: st.DataObject, ndim: int, max_recent: int) -> None:
    """After any sequence of single and batched changes the last word on each chunk counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_changes, "_MAX_RECENT", max_recent)
        check_chunk_changes(data, ndim)


def check_chunk_changes(data: st.DataObject, ndim: int) -> None:
    changes, model = ChunkChanges(ndim), dict[Coords, "ChunkPayload | None"]()
    left_behind: list[tuple[ChunkChanges, Changes]] = []
    for _ in range(data.draw(st.integers(0, 25), "steps")):
        match data.draw(_STEPS, "step"):
            case "set":
                coords, payload = data.draw(_coords(ndim)), data.draw(PAYLOADS)
                changes.set(coords, payload)
                model[coords] = payload
            case "delete":
                coords = data.draw(_coords(ndim))
                changes.set(coords, None)
                model[coords] = None
            case "add":
                batch = data.draw(_changes(ndim))
                changes.add(_columns(batch, ndim))
                model |= batch
            case "columns":
                assert _as_dict(changes.to_columns()) == model
                assert changes.to_columns() is changes.to_columns() or not model
            case "copy":
                left_behind.append((changes, dict(model)))
                changes = changes.copy()
            case "pickle":
                changes = pickle.loads(pickle.dumps(changes))  # noqa: S301
        assert bool(changes) == bool(model)
    for copy, expected in [(changes, model), *left_behind]:
        for coords in [*expected, *data.draw(st.lists(_coords(ndim), max_size=3))]:
            assert copy.get(coords) == expected.get(coords, UNCHANGED)
        assert _as_dict(copy.to_columns()) == expected
        assert copy.to_columns().coords.shape[1] == ndim
    assert _as_dict(ChunkChanges.of(changes.to_columns()).to_columns()) == model
