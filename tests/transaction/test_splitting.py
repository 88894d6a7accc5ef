"""How grids fall into cells: rules, numbers of cells, and grids of any size."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.config import RepositoryConfig
from icefloe.model.manifest_config import (
    AnySplitDimCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.model.manifest_config import ManifestConfig as Rules
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    DimensionShape,
    ManifestExtents,
)
from icefloe.model.path import Path
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from icefloe.transaction.splitting import (
    WHOLE_DIMENSION,
    compute_split_sizes,
    find_cell_boxes,
    find_cells,
    matches,
)
from support.zarr_nodes import array, contents, get, group, put

_If = ManifestSplitCondition
_Dim = ManifestSplitDimCondition


def _array(*names: str | None) -> ArrayNodeData:
    return ArrayNodeData(tuple(DimensionShape(9, 9, 1) for _ in names), tuple(names), ())


@pytest.mark.parametrize(
    "condition, expected",
    [
        (_If.AnyArray(), {"/a", "/g/a", "/g/b"}),
        (_If.name_matches("^a$"), {"/a", "/g/a"}),
        (_If.name_matches("g"), set()),
        (_If.path_matches("^/g/"), {"/g/a", "/g/b"}),
        (_If.path_matches("a"), {"/a", "/g/a"}),
        (_If.name_matches("^a$") & _If.path_matches("^/g/"), {"/g/a"}),
        (_If.name_matches("^b$") | _If.path_matches("^/a$"), {"/a", "/g/b"}),
        (_If.and_conditions([]), {"/a", "/g/a", "/g/b"}),
        (_If.or_conditions([]), set()),
    ],
)
def test_conditions(condition: ManifestSplitCondition, expected: set[str]) -> None:
    """A rule is about the arrays whose path, name, or combination of both matches."""
    assert {path for path in ("/a", "/g/a", "/g/b") if matches(condition, Path(path))} == expected


def test_first_rule_that_names_a_dimension_counts() -> None:
    """Rules go in their order, and a later one fills what the earlier left open."""
    rules: dict[ManifestSplitCondition, dict[AnySplitDimCondition, int]] = {
        _If.name_matches("^other$"): {_Dim.Any(): 1},
        _If.name_matches("^x$"): {_Dim.Axis(1): 7, _Dim.DimensionName("^t"): 3},
        _If.path_matches("/x"): {_Dim.Axis(1): 9, _Dim.Axis(2): 4},
        _If.AnyArray(): {_Dim.DimensionName("^t"): 8},
    }
    config = ManifestSplittingConfig.from_dict(rules)
    assert compute_split_sizes(config, Path("/x"), _array("time", "lat", "lon")) == (3, 7, 4)
    assert compute_split_sizes(config, Path("/x"), _array(None, None, None, "t")) == (
        WHOLE_DIMENSION,
        7,
        4,
        3,
    )
    assert compute_split_sizes(config, Path("/g/x"), _array("time")) == (3,)
    assert compute_split_sizes(config, Path("/y"), _array("lat", "t")) == (WHOLE_DIMENSION, 8)
    assert compute_split_sizes(config, Path("/other"), _array("lat", "t")) == (1, 1)
    assert compute_split_sizes(config, Path("/x"), _array()) == ()
    assert compute_split_sizes(ManifestSplittingConfig(), Path("/x"), _array("t")) == (
        WHOLE_DIMENSION,
    )


def test_bad_regular_expressions() -> None:
    """An invalid regular expression is an error of the configuration."""
    with pytest.raises(InvalidInputError, match=r"\[a-") as caught:
        matches(_If.path_matches("[a-"), Path("/a"))
    assert caught.value.kind is ErrorKind.STORAGE_CONFIG


@settings(deadline=None)
@given(st.data(), st.integers(0, 3))
def test_cells(data: st.DataObject, ndim: int) -> None:
    """Chunks lie in the cells that division says, and extents touch the cells of their chunks."""
    grid = data.draw(st.tuples(*[st.integers(1, 5)] * ndim))
    sizes = data.draw(st.tuples(*[st.integers(1, 6) | st.just(WHOLE_DIMENSION)] * ndim))
    every = list(product(*map(range, grid)))
    cells = find_cells(np.array(every, np.uint32).reshape(len(every), ndim), sizes)
    assert [tuple(cell) for cell in cells.tolist()] == [
        tuple(i // size for i, size in zip(indices, sizes, strict=True)) for indices in every
    ]
    corners = [data.draw(st.sampled_from(every)) for _ in range(2)]
    box = [(min(pair), max(pair) + 1) for pair in zip(*corners, strict=True)]
    extents = ManifestExtents(tuple(ChunkIndexRange(*bounds) for bounds in box))
    lows, highs = find_cell_boxes([extents, ManifestExtents(())], sizes, grid)
    inside = [
        tuple(cell)
        for indices, cell in zip(every, cells.tolist(), strict=True)
        if extents.contains(indices)
    ]
    for number, touched in enumerate([inside, [tuple(cell) for cell in cells.tolist()]]):
        box_of_cells = zip(lows[number].tolist(), highs[number].tolist(), strict=True)
        assert set(product(*[range(low, high) for low, high in box_of_cells])) == set(touched)


_HUGE = 2**32 - 1


def test_grids_with_more_cells_than_numbers(generation: str) -> None:
    """A sparse array with a chunk in every corner of a vast grid is split, read and split again.

    Neither memory nor time may grow with the number of cells that there could be.
    """
    shape = (_HUGE, _HUGE, _HUGE)
    corners = list(product((0, _HUGE - 1), repeat=3))
    storage = MemoryStorage()
    Repository.create(storage, generation=generation)
    for number, size in enumerate([WHOLE_DIMENSION, 1, 1000, 1]):
        rules = ManifestSplittingConfig.from_dict({_If.AnyArray(): {_Dim.Any(): size}})
        config = RepositoryConfig(manifest=Rules(splitting=rules))
        session = Repository.open(storage, config).writable_session("main")
        if number == 0:
            put(session.store, "zarr.json", group())
            put(session.store, "a/zarr.json", array(shape))
            for corner in corners:
                put(session.store, "/".join(["a/c", *map(str, corner)]), repr(corner).encode())
        put(session.store, "a/c/0/0/0", bytes([number]))
        session.commit(f"size {size}")
        reader = Repository.open(storage).readonly_session("main").store
        assert get(reader, "a/c/0/0/0") == bytes([number])
        for corner in corners[1:]:
            assert get(reader, "/".join(["a/c", *map(str, corner)])) == repr(corner).encode()
        assert len(contents(reader)) == 2 + len(corners)
    repository = Repository.open(storage)
    assert len(repository.list_manifest_files(repository.lookup_branch("main"))) == len(corners)
