"""Columns of ids behave like lists and sets of ids."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.format.ids import to_id_rows
from icefloe.model.id_columns import (
    IdSet,
    MarkedIds,
    find_unique_rows,
    format_names,
    parse_names,
)
from icefloe.model.ids import ChunkId

# Few values per byte, including zero, give ids that are equal or differ in the last byte.
ids = st.builds(
    ChunkId, st.lists(st.sampled_from([0, 1, 255]), min_size=12, max_size=12).map(bytes)
) | st.builds(ChunkId, st.binary(min_size=12, max_size=12))
names = ids.map(str) | st.text(max_size=21) | st.text("0AZaILOU_/é", min_size=20, max_size=20)


@given(st.lists(ids))
def test_names_round_trip(values: list[ChunkId]) -> None:
    """Ids are formatted like `ChunkId`, and parsed again."""
    rows = to_id_rows(values, ChunkId)
    spelled = format_names(rows)
    assert spelled == [str(value) for value in values]
    places, back = parse_names(spelled)
    assert places.tolist() == list(range(len(values)))
    assert np.array_equal(back, rows)


@given(st.lists(names))
def test_other_names_are_ignored(listed: list[str]) -> None:
    """Only the canonical form of an id is parsed; other names are ignored."""

    def is_id(name: str) -> bool:
        try:
            return str(ChunkId.parse(name)) == name
        except InvalidInputError:
            return False

    places, rows = parse_names(listed)
    assert places.tolist() == [place for place, name in enumerate(listed) if is_id(name)]
    assert format_names(rows) == [name for name in listed if is_id(name)]


@given(st.lists(st.lists(ids)), st.lists(ids))
def test_sets(parts: list[list[ChunkId]], candidates: list[ChunkId]) -> None:
    """A set contains each added id once."""
    found = IdSet()
    for part in parts:
        found.add(to_id_rows(part, ChunkId))
    model = {object_id for part in parts for object_id in part}
    assert found.contains(to_id_rows(candidates, ChunkId)).tolist() == [
        name in model for name in candidates
    ]
    assert len(found) == len(model)
    everything = to_id_rows([object_id for part in parts for object_id in part], ChunkId)
    assert format_names(find_unique_rows(everything)) == [
        str(object_id) for object_id in sorted(model)
    ]


@given(st.lists(ids), st.lists(st.lists(ids)), st.data())
def test_marks(members: list[ChunkId], parts: list[list[ChunkId]], data: st.DataObject) -> None:
    """Ids of a fixed set are marked, others are ignored, and the last mark is noticed at once."""
    marked = MarkedIds(to_id_rows(members, ChunkId))
    model: set[ChunkId] = set()
    for part in parts:
        ours = data.draw(st.lists(st.sampled_from(members))) if members else []
        marked.mark(to_id_rows([*part, *ours], ChunkId))
        model |= {*part, *ours}
        assert marked.are_all_marked() == model.issuperset(members)
    assert marked.contains(to_id_rows(members, ChunkId)).tolist() == [
        member in model for member in members
    ]
