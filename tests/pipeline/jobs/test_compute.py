"""Computing: results equal the function applied to whole arrays, whatever the blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import AlreadyExistsError, InvalidInputError, NodeNotFoundError
from icefloe.pipeline.jobs.compute import Location, Output, compute
from icefloe.pipeline.report import JobFailedError, Plan, Report
from support.array_repositories import (
    array,
    chunk_bytes,
    every_dtype,
    write_every_dtype,
    write_weather,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = 4_000
"""So little memory that the cube is cut into many blocks."""


def neighbours(air: Any) -> Any:
    """Sum the neighbours of each item along the last two dimensions."""
    shifts = [(up, right) for up in (-2, 0, 1) for right in (-1, 0, 3)]
    return sum(np.roll(air, shift, (1, 2)) for shift in shifts)


def test_inputs_without_a_dimension_are_broadcast(repository: icefloe.Repository) -> None:
    values = write_weather(repository)
    mask = array(repository, "mask")[:]
    compute(
        None, repository, lambda air, mask: air - mask, ["air", "mask"], "a/b", task_bytes=SMALL
    )
    found = array(repository, "a/b")
    np.testing.assert_array_equal(found[:], values - mask)
    assert found.metadata.dimension_names == ("time", "lat", "lon")
    assert (found.dtype, found.chunks) == (np.dtype("f4"), (5, 4, 6))


def test_the_order_of_dimensions_is_that_of_the_first_input(
    repository: icefloe.Repository,
) -> None:
    values = write_weather(repository)
    with repository.transaction("main", message="turned") as store:
        turned = zarr.open_group(store).create_array(
            "turned",
            shape=(17, 20, 13),
            chunks=(4, 4, 4),
            dtype="f4",
            dimension_names=("lon", "time", "lat"),
        )
        turned[:] = values.transpose(2, 0, 1)
    inputs = {"one": "air", "two": "turned"}
    compute(None, repository, lambda one, two: one + two, inputs, "x", task_bytes=SMALL)
    np.testing.assert_array_equal(array(repository, "x")[:], values + values)


def test_a_dimension_that_outputs_lack_is_whole_in_every_block(
    repository: icefloe.Repository,
) -> None:
    values = write_weather(repository)

    def statistics(air: Any) -> dict[str, Any]:
        return {
            "mean": air.mean(axis=0),
            "levels": np.quantile(air, [0, 0.5, 1], axis=0).transpose(1, 2, 0),
        }

    outputs = {
        "mean": Output(dims=("lat", "lon"), attributes={"units": "K"}, chunks={"lat": 2}),
        "levels": Output("f8", dims=("lat", "lon", "level"), sizes={"level": 3}),
    }
    compute(None, repository, statistics, "air", outputs, task_bytes=6_000)
    np.testing.assert_array_equal(array(repository, "mean")[:], values.mean(axis=0))
    assert array(repository, "mean").chunks == (2, 6)
    assert dict(array(repository, "mean").attrs) == {"units": "K"}
    expected = np.quantile(values, [0, 0.5, 1], axis=0).transpose(1, 2, 0)
    np.testing.assert_array_equal(array(repository, "levels")[:], expected)


@pytest.mark.parametrize("boundary", ["reflect", "symmetric", "nearest", "wrap", "constant"])
def test_halos_are_what_numpy_pads_around_the_whole_array(
    repository: icefloe.Repository, boundary: str
) -> None:
    values = write_weather(repository)
    halo = {"lat": (2, 2), "lon": (3, 3)}
    compute(
        None,
        repository,
        neighbours,
        "air",
        "x",
        halo=halo,
        boundary=boundary,
        constant=7,
        task_bytes=SMALL,
    )
    mode: Any = {"nearest": "edge"}.get(boundary, boundary)
    more = {"constant_values": 7} if mode == "constant" else {}
    padded = np.pad(values, ((0, 0), (2, 2), (3, 3)), mode=mode, **more)
    expected = neighbours(padded)[:, 2:-2, 3:-3]
    np.testing.assert_array_equal(array(repository, "x")[:], expected)


@pytest.mark.parametrize("boundary", ["reflect", "symmetric", "nearest", "wrap", "constant"])
@pytest.mark.parametrize("halo", [(6, 0), (0, 7), (3, 9), (11, 11)])
def test_halos_wider_than_blocks(
    repository: icefloe.Repository, boundary: str, halo: tuple[int, int]
) -> None:
    """Padding is computed from the whole array, not from a block."""
    values = np.arange(11.0) ** 2
    with repository.transaction("main", message="line") as store:
        line = zarr.create_group(store).create_array(
            "line", shape=(11,), chunks=(2,), dtype="f8", dimension_names=("x",)
        )
        line[:] = values
    width = sum(halo) + 1
    weights = np.arange(1.0, width + 1)

    def weigh(line: Any) -> Any:
        return np.lib.stride_tricks.sliding_window_view(line, width) @ weights

    compute(
        None,
        repository,
        weigh,
        "line",
        "x",
        halo={"x": halo},
        boundary=boundary,
        task_bytes=(width + 3) * 8,
    )
    mode: Any = {"nearest": "edge"}.get(boundary, boundary)
    np.testing.assert_array_equal(array(repository, "x")[:], weigh(np.pad(values, halo, mode)))


def test_halos_around_inputs_of_different_dimensions(repository: icefloe.Repository) -> None:
    values = np.nan_to_num(write_weather(repository))
    mask = array(repository, "mask")[:]

    def sum_all(air: Any, mask: Any) -> Any:
        product = np.nan_to_num(air) * mask
        windows = np.lib.stride_tricks.sliding_window_view(product, (4, 2), (1, 2))
        return windows.sum((-1, -2))

    halo = {"lat": (2, 1), "lon": (0, 1)}
    inputs = ["air", "mask"]
    compute(None, repository, sum_all, inputs, "x", halo=halo, boundary="reflect", task_bytes=9_000)
    around = ((2, 1), (0, 1))
    expected = sum_all(
        np.pad(values, ((0, 0), *around), "reflect"), np.pad(mask, around, "reflect")
    )
    np.testing.assert_array_equal(array(repository, "x")[:], expected)


def test_the_memory_of_a_block_counts_its_halo(repository: icefloe.Repository) -> None:
    write_weather(repository)
    plans = [
        compute(None, repository, lambda air: air, "air", "x", halo=halo, dry_run=True)
        for halo in (None, {"time": 10})
    ]
    sizes = [plan.task_bytes for plan in plans if isinstance(plan, Plan)]
    assert sizes[1] - sizes[0] == 20 * 13 * 17 * 4


def test_without_a_boundary_halos_end_at_the_edges(repository: icefloe.Repository) -> None:
    values = write_weather(repository)

    def largest(air: Any, location: Location) -> Any:
        around = [air[max(0, row - 1) : row + 2].max(axis=0) for row in range(len(air))]
        assert len(air) - (location.stop["time"] - location.start["time"]) in {1, 2}
        return np.stack(around)

    compute(
        None,
        repository,
        largest,
        "air",
        {"x": Output("f4")},
        halo={"time": 1},
        task_bytes=SMALL,
        probe=False,
    )
    expected = np.stack([values[max(0, row - 1) : row + 2].max(axis=0) for row in range(20)])
    np.testing.assert_array_equal(array(repository, "x")[:], expected)


def test_cutting_makes_no_difference_to_what_is_stored(repository: icefloe.Repository) -> None:
    write_weather(repository)
    for name, task_bytes in (("one", 10**9), ("many", SMALL)):
        compute(None, repository, lambda air: air * 2, "air", name, task_bytes=task_bytes)
    assert chunk_bytes(repository, "one") == chunk_bytes(repository, "many")


@pytest.mark.parametrize("repository", ["v1"], indirect=True)
def test_texts_scalars_and_arrays_without_items(repository: icefloe.Repository) -> None:
    write_every_dtype(repository)
    compute(None, repository, lambda x: x + 1, {"x": "scalar"}, "plus")
    assert array(repository, "plus")[()] == 6
    compute(None, repository, lambda x: x * 2, {"x": "empty"}, "none")
    assert array(repository, "none").shape == (0, 3)
    compute(None, repository, lambda x: x, {"x": "empty"}, "no", halo=2, boundary="reflect")
    assert array(repository, "no").shape == (0, 3)
    texts = every_dtype()["string"].tolist()
    compute(None, repository, lambda string: string.astype(object), "string", "o", task_bytes=400)
    assert array(repository, "o")[:].tolist() == texts
    names = compute(
        None, repository, lambda i4: np.char.mod("number %d", i4**9), "i4", "names", task_bytes=256
    )
    assert isinstance(names, Report)
    assert array(repository, "names")[:].tolist() == [f"number {n**9}" for n in range(7)]


def test_a_commit_of_somebody_else_meanwhile_is_rebased_over(
    repository: icefloe.Repository,
) -> None:
    values = write_weather(repository)
    theirs: list[str] = []

    def function(air: Any) -> Any:
        if not theirs:
            with repository.transaction("main", message="theirs") as store:
                zarr.open_group(store).create_array("new", shape=(1,), dtype="i1")
            theirs.append(repository.lookup_branch("main"))
        return air

    compute(None, repository, function, "air", {"x": Output("f4")}, probe=False)
    history = [info.id for info in repository.ancestry(branch="main")]
    assert history[1] == theirs[0]
    np.testing.assert_array_equal(array(repository, "x")[:], values)
    assert array(repository, "new").shape == (1,)


def test_an_array_that_somebody_else_made_meanwhile_is_not_overwritten(
    repository: icefloe.Repository,
) -> None:
    write_weather(repository)

    def function(air: Any) -> Any:
        if "x" not in zarr.open_group(repository.readonly_session("main").store, mode="r"):
            with repository.transaction("main", message="theirs") as store:
                zarr.open_group(store).create_array("x", shape=(1,), dtype="i1")
        return air

    with pytest.raises(icefloe.RebaseFailedError):
        compute(None, repository, function, "air", {"x": Output("f4")}, probe=False)
    assert array(repository, "x").shape == (1,)


def test_a_failing_block_is_named_and_nothing_is_committed(
    repository: icefloe.Repository,
) -> None:
    write_weather(repository)

    def function(air: Any, location: Location) -> Any:
        if location.start["time"] == 10 and location.start["lat"] == 0:
            raise ZeroDivisionError("by nought")
        return air

    with pytest.raises(JobFailedError, match=r"/x \[time 10:15, lat 0:.*ZeroDivisionError: by nou"):
        compute(None, repository, function, "air", "x", task_bytes=SMALL)
    assert len(list(repository.ancestry(branch="main"))) == 2


@pytest.mark.parametrize(
    "spoil, says",
    [
        (lambda air: air[:1], "returned a block of 1x4x17 for /x, expected 5x4x17"),
        (lambda air: air.astype("c8"), "returned complex64 for /x, not float32"),
        (lambda air: air.astype("f8") * 1e300, "too large for float32"),
        (lambda air: air.astype(object), "returned Python objects for /x"),
        (lambda air: (air, air), "returned 2 arrays for 1 outputs"),
    ],
)
def test_a_block_that_is_not_as_the_first_was_is_named(
    repository: icefloe.Repository, spoil: Callable[[Any], Any], says: str
) -> None:
    """The probe reads only the first items."""
    write_weather(repository)

    def function(air: Any, location: Location) -> Any:
        return spoil(air) if location.start["time"] == 15 else air

    with pytest.raises(JobFailedError, match=rf"/x \[time 15:20, lat 0:4, lon 0:17\]: .*{says}"):
        compute(None, repository, function, "air", "x", task_bytes=SMALL)
    assert len(list(repository.ancestry(branch="main"))) == 2


@pytest.mark.parametrize(
    "arguments, error, says",
    [
        ({"inputs": "none"}, NodeNotFoundError, "no group or array at /none"),
        ({"inputs": "/"}, InvalidInputError, "is a group"),
        ({"outputs": "mask"}, AlreadyExistsError, "/mask already exists"),
        ({"outputs": "air/x"}, InvalidInputError, "inside the array /air"),
        (
            {"function": lambda air: air[0]},
            InvalidInputError,
            "block of 4x4 for /x, expected 4x4x4",
        ),
        (
            {"function": lambda air: air / "a"},
            InvalidInputError,
            "on the first 4 items along each dimension: the function raised",
        ),
        ({"outputs": {"x": Output("i4")}}, InvalidInputError, "returned float32 for /x, not int32"),
        ({"outputs": {"x": Output(dims=("z",))}}, InvalidInputError, "'z' is in no input"),
        ({"outputs": {"x": Output(chunks=(0, 1, 1))}}, InvalidInputError, "must be positive"),
        ({"halo": {"depth": 1}}, InvalidInputError, "halo: unknown dimension 'depth'"),
        ({"halo": {"lat": -1}}, InvalidInputError, "cannot be negative"),
        (
            {"halo": 1, "boundary": "mirror"},
            InvalidInputError,
            "boundary must be one of .* not 'mirror'",
        ),
        ({"task_bytes": 100}, InvalidInputError, "one block of 5x4x6 takes 960 B"),
        ({"inputs": ["air", "time"], "probe": False}, InvalidInputError, "dtype is required"),
        ({"inputs": ["air", "/air"]}, InvalidInputError, "have the same argument name 'air'"),
        ({"outputs": ["x", "/x"]}, InvalidInputError, "/x is in outputs twice"),
        ({"outputs": ["x", "x/y"]}, InvalidInputError, "/x/y would be inside the array /x"),
        ({"outputs": {"x": Output("nonsense")}}, InvalidInputError, "/x: 'nonsense' is not a data"),
        ({"outputs": {"x": Output(fill_value="a")}}, InvalidInputError, "/x: Cannot convert"),
        ({"outputs": {"x": Output(codecs={"filters": 3})}}, InvalidInputError, "/x: "),
        (
            {"inputs": {"air": "mask"}, "halo": 1, "boundary": "constant", "constant": 1.5},
            InvalidInputError,
            "/mask: the constant 1.5 does not fit int16",
        ),
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
    given: dict[str, Any] = {"function": lambda air: air, "inputs": "air", "outputs": "x"}
    with pytest.raises(error, match=says):
        compute(None, repository, **{**given, **arguments})
    assert files() == before


def test_a_dry_run_tells_what_would_be_made(
    repository: icefloe.Repository, files: Callable[[], set[str]]
) -> None:
    write_weather(repository)
    before = files()
    plan = compute(
        None, repository, lambda air: air > 1, "air", "x", dry_run=True, task_bytes=SMALL
    )
    assert isinstance(plan, Plan)
    assert "/x is computed from /air: 20x13x17 bool in chunks of 5x4x6" in str(plan)
    assert plan.tasks > 1
    assert files() == before
