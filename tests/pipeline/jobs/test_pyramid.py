"""Pyramids: each level downsamples the previous one; the original is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icefloe.errors import AlreadyExistsError, InvalidInputError, NodeNotFoundError
from icefloe.pipeline.arrays.coarsen import coarsen
from icefloe.pipeline.jobs.pyramid import pyramid
from icefloe.pipeline.report import Plan
from support.array_repositories import array, chunk_bytes, tip, write_weather
from support.generations import STORES_STRINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    import icefloe

REDUCED: dict[str, Callable[[Any], Any]] = {
    "mean": np.nanmean,
    "sum": np.nansum,
    "min": np.nanmin,
    "max": np.nanmax,
    "mode": lambda window: min(
        window[~np.isnan(window)].tolist(), key=lambda one: (-(window == one).sum(), one)
    ),
    "nearest": lambda window: window.reshape(-1)[0],
}


def by_hand(values: Any, factors: tuple[int, ...], reduce: Callable[[Any], Any]) -> Any:
    """Reduce window by window."""
    shape = tuple(-(-size // factor) for size, factor in zip(values.shape, factors, strict=True))
    found = np.empty(shape)
    for place in np.ndindex(shape):
        window = values[
            tuple(slice(at * by, (at + 1) * by) for at, by in zip(place, factors, strict=True))
        ]
        found[place] = np.nan if np.isnan(window).all() else reduce(window)
    return found


@pytest.mark.parametrize("method", list(REDUCED))
def test_windows_at_the_edges_and_missing_items(method: str) -> None:
    values = np.random.default_rng(0).integers(0, 4, (7, 5)).astype("f8")
    values[0, 0] = np.nan
    values[6, 3:] = np.nan  # a window, at the corner, without any item
    found = coarsen(values, (2, 3), method)
    expected = by_hand(values, (2, 3), REDUCED[method])
    np.testing.assert_allclose(found, expected)


def test_whole_numbers_stay_whole() -> None:
    numbers = np.array([1, 2, 2**62, 2**62 + 2, -9999, -9999], "i8")
    found = coarsen(numbers, (2,), "mean", missing=np.int64(-9999))
    assert found.tolist() == [2, 2**62 + 1, -9999]
    assert coarsen(np.array([200, 100], "u1"), (2,), "sum").tolist() == [300]
    assert coarsen(np.array([True, False, False], bool), (3,), "max").tolist() == [True]


def test_times_have_a_mean_and_texts_a_mode() -> None:
    days = np.array(["2020-01-01", "2020-01-03", "NaT"], "datetime64[D]")
    assert coarsen(days, (2,), "mean").astype(str).tolist() == ["2020-01-02", "NaT"]
    assert coarsen(np.array(["b", "a", "b"]), (3,), "mode").tolist() == ["b"]
    with pytest.raises(InvalidInputError, match="has no mean"):
        coarsen(np.array(["a"]), (1,), "mean")


def test_each_level_is_made_from_the_one_before(repository: icefloe.Repository) -> None:
    values = write_weather(repository)
    pyramid(None, repository, "air", "/levels", task_bytes=20_000)
    with np.errstate(all="ignore"):
        first = coarsen(values, (1, 2, 2), "mean")
        second = coarsen(first, (1, 2, 2), "mean")
    np.testing.assert_array_equal(array(repository, "levels/1/air")[:], first)
    np.testing.assert_array_equal(array(repository, "levels/2/air")[:], second)
    assert chunk_bytes(repository, "levels/0/air") == chunk_bytes(repository, "air")
    assert dict(array(repository, "levels/2/air").attrs) == dict(array(repository, "air").attrs)
    found = array(repository, "levels/1/lat")[:]
    np.testing.assert_array_equal(found, [0.25, 1.25, 2.25, 3.25, 4.25, 5.25, 6.0])
    assert array(repository, "levels/1/time").shape == (20,)
    multiscale = dict(tip(repository)["levels"].attrs)["multiscales"][0]
    assert [level["path"] for level in multiscale["datasets"]] == ["0", "1", "2"]
    assert multiscale["datasets"][2]["coordinateTransformations"] == [
        {"type": "scale", "scale": [1.0, 4.0, 4.0]},
        {"type": "translation", "translation": [0.0, 1.5, 1.5]},
    ]


def test_level_0_takes_no_place(
    repository: icefloe.Repository, files: Callable[[], set[str]]
) -> None:
    write_weather(repository)
    pyramid(None, repository, "air", "/levels", levels=1)
    session = repository.readonly_session("main")
    shared, own = (session.path(path) for path in ("/levels/0/air", "/air"))
    for index in ((0, 0, 0), (3, 3, 2)):
        assert session.transaction.get_payload(shared, index) == session.transaction.get_payload(
            own, index
        )


def test_a_group_with_factors_by_dimension(repository: icefloe.Repository) -> None:
    values = write_weather(repository)
    pyramid(None, repository, "/", "/p", factors={"time": 4, "lat": 2}, levels=1, method="max")
    found = array(repository, "p/1/air")
    np.testing.assert_array_equal(found[:], coarsen(values, (4, 2, 1), "max"))
    assert array(repository, "p/1/mask").shape == (7, 17)
    assert array(repository, "p/1/mask").dtype == np.dtype("i2")


@pytest.mark.parametrize("repository", STORES_STRINGS, indirect=True)
def test_arrays_that_do_not_become_shorter_are_shared_at_every_level(
    repository: icefloe.Repository,
) -> None:
    """Such as the grid mapping of CF, which has no dimensions."""
    write_weather(repository)
    with repository.transaction("main", message="grid mapping") as store:
        group = zarr.open_group(store)
        group.create_array("crs", shape=(), dtype=str, attributes={"epsg": 4326})[...] = "WGS84"
    pyramid(None, repository, "/", "/p", levels=2)
    for level in range(3):
        assert chunk_bytes(repository, f"p/{level}/crs") == chunk_bytes(repository, "crs")
        assert dict(array(repository, f"p/{level}/crs").attrs) == {"epsg": 4326}


@pytest.mark.parametrize("repository", STORES_STRINGS, indirect=True)
def test_an_array_that_has_no_mean_is_named(repository: icefloe.Repository) -> None:
    write_weather(repository)
    with repository.transaction("main", message="names") as store:
        zarr.open_group(store).create_array(
            "names", shape=(17,), chunks=(4,), dtype=str, dimension_names=("lon",)
        )
    with pytest.raises(InvalidInputError, match=r"/names: .* has no mean: use 'nearest' or 'mode'"):
        pyramid(None, repository, "/", "/p")


def test_the_layout_of_ome(repository: icefloe.Repository) -> None:
    write_weather(repository)
    pyramid(None, repository, "mask", "/image", layout="ome", levels=2, method="nearest")
    image = tip(repository)["image"]
    (multiscale,) = dict(image.attrs)["ome"]["multiscales"]
    paths = [level["path"] for level in multiscale["datasets"]]
    mask = array(repository, "mask")[:]
    for level, path in enumerate(paths):
        step = 2**level
        np.testing.assert_array_equal(array(repository, f"image/{path}")[:], mask[::step, ::step])


@pytest.mark.parametrize(
    "arguments, error, says",
    [
        ({"source": "none"}, NodeNotFoundError, "no group or array"),
        ({"target": "mask"}, AlreadyExistsError, "/mask already exists"),
        ({"method": "median"}, InvalidInputError, "method must be one of .*'median'"),
        ({"layout": "tiles"}, InvalidInputError, "layout must be one of .*'tiles'"),
        ({"factors": 0}, InvalidInputError, "positive integer"),
        ({"factors": 1}, InvalidInputError, "no dimension is downsampled"),
        ({"factors": {"depth": 2}}, InvalidInputError, "unknown dimension 'depth'"),
        ({"levels": 0}, InvalidInputError, "levels must be between"),
        ({"source": "/", "layout": "ome"}, InvalidInputError, "'ome' supports one"),
        ({"task_bytes": 10}, InvalidInputError, "task_bytes"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    repository: icefloe.Repository,
    files: Callable[[], set[str]],
    arguments: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    write_weather(repository)
    before = files()
    given: dict[str, Any] = {"source": "air", "target": "levels"}
    with pytest.raises(error, match=says):
        pyramid(None, repository, **{**given, **arguments})
    assert files() == before


def test_a_dry_run_writes_nothing(
    repository: icefloe.Repository, files: Callable[[], set[str]]
) -> None:
    write_weather(repository)
    before = files()
    plan = pyramid(None, repository, "air", "/levels", dry_run=True)
    assert isinstance(plan, Plan)
    assert "/levels/2/air is computed from /levels/1/air: 20x4x5" in str(plan)
    assert files() == before
