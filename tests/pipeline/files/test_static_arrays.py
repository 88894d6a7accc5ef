"""Static arrays, without the combined dimension, must agree between files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5netcdf
import numpy as np
import pytest
import xarray

from icefloe.pipeline.files import static_arrays
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.report import JobFailedError, Report
from support.netcdf_files import LATS, dataset, write_file, write_files

if TYPE_CHECKING:
    from pathlib import Path

    import icefloe


def raise_heights(path: Path) -> Path:
    """Give one file another array of heights."""
    with h5netcdf.File(path, "a") as file:
        file["height"][...] = np.asarray(file["height"]) + 1
    return path


@pytest.mark.parametrize("job", [ingest, virtualize])
def test_the_odd_one_is_named(job: Any, folder: Path, repository: icefloe.Repository) -> None:
    """Also if it is the first file; with ``skip``, the other files are kept."""
    paths = write_files(folder, 4)
    raise_heights(paths[0])
    with pytest.raises(JobFailedError, match=r"height: differs in value .*part-001") as told:
        job(None, repository, paths)
    assert [failure.source for failure in told.value.failures] == [paths[0].as_uri()]
    assert "drop_variables=['height']" in str(told.value)
    report = job(None, repository, paths, on_error="skip")
    assert isinstance(report, Report)
    assert [failure.source for failure in report.left_out] == [paths[0].as_uri()]
    job(None, repository, paths, group="dropped", parse_options={"drop_variables": ["height"]})
    assert dataset(repository, "dropped").sizes["time"] == 8


@pytest.mark.parametrize("job", [ingest, virtualize])
def test_what_is_appended_agrees_with_the_group(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 2)
    job(None, repository, paths)
    odd = raise_heights(write_file(folder / "late.nc", 4))
    with pytest.raises(JobFailedError, match="height: differs in value from the repository"):
        job(None, repository, [odd], append=True)
    job(None, repository, [write_file(folder / "good.nc", 4)], append=True)
    assert dataset(repository).sizes["time"] == 6


def test_zeros_and_missing_values_are_alike(folder: Path, repository: icefloe.Repository) -> None:
    """Zeros of both signs are equal, and so are all encodings of NaN."""
    paths = write_files(folder, 2)
    odd = np.array([0x7FC00000, 0x7FC00001], np.uint32).view("f4")
    for path, zero, nan in zip(paths, (0.0, -0.0), odd, strict=True):
        with h5netcdf.File(path, "a") as file:
            heights = np.zeros(file["height"].shape, "f4")
            heights[0], heights[1] = zero, nan
            file["height"][...] = heights
    ingest(None, repository, paths)


def test_large_arrays_are_those_of_the_first_file(
    folder: Path, repository: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_arrays, "_MAX_COMPARED_BYTES", 10)
    paths = write_files(folder, 2)
    raise_heights(paths[1])
    virtualize(None, repository, paths)


def tile(path: Path, day: int, column: int, *, heights: float = 0, mask: float = 7) -> Path:
    """Write one day of one of two columns, with a map per column and a common mask."""
    data = {
        "v": (("time", "y", "x"), np.full((1, 3, 2), day * 10 + column, "f4")),
        "heights": (("y", "x"), np.full((3, 2), column + heights, "f4")),
        "mask": (("y",), np.full(3, mask, "f4")),
    }
    coords = {
        "time": ("time", [day], {"units": "days since 2024-01-01"}),
        "x": ("x", np.arange(2) + 2 * column),
    }
    path.parent.mkdir(exist_ok=True)
    stored = xarray.Dataset(data, coords)
    stored.to_netcdf(path, engine="h5netcdf", unlimited_dims=["time"])
    return path


@pytest.mark.parametrize("job", [ingest, virtualize])
@pytest.mark.parametrize("odd", [{"heights": 0.5}, {"mask": 8}])
def test_a_grid_of_files_has_one_array_for_each_place(
    job: Any, odd: dict[str, float], folder: Path, repository: icefloe.Repository
) -> None:
    """The map of a column is the same at all times, also in appended files."""

    def tiles(day: int, **options: float) -> list[Path]:
        return [tile(folder / f"{day}-{column}.nc", day, column, **options) for column in (0, 1)]

    (name,) = odd
    with pytest.raises(JobFailedError, match=rf"{name}: differs in value from"):
        job(None, repository, [*tiles(0), *tiles(1), *tiles(2, **odd)], dims=("time", "x"))
    job(None, repository, [*tiles(0), *tiles(1)], dims=("time", "x"))
    with pytest.raises(JobFailedError, match=rf"{name}: differs in value from the repository"):
        job(None, repository, tiles(2, **odd), dims=("time", "x"), append=True)
    job(None, repository, tiles(2), dims=("time", "x"), append=True)
    found = dataset(repository)
    np.testing.assert_array_equal(found.heights[0], [0, 0, 1, 1])
    assert found.sizes["time"] == 3


def test_what_was_converted_is_compared_as_files_have_it(
    folder: Path, repository: icefloe.Repository
) -> None:
    ingest(None, repository, write_files(folder, 2), dtype="f8")
    assert dataset(repository).height.dtype == np.float64
    odd = raise_heights(write_file(folder / "late.nc", 4))
    with pytest.raises(JobFailedError, match="height: differs in value from the repository"):
        ingest(None, repository, [odd], append=True)
    ingest(None, repository, [write_file(folder / "good.nc", 4)], append=True)


@pytest.mark.parametrize("job", [ingest, virtualize])
def test_arrays_with_nothing_in_them(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    """One array has no written chunk, the other has no items."""
    paths = write_files(folder, 2)
    for path in paths:
        with h5netcdf.File(path, "a") as file:
            file.dimensions["nothing"] = 0
            file.create_variable("none", ("nothing",), "f4")
            unwritten = {"chunks": (1, LATS), "fillvalue": np.float32(-1)}
            file.create_variable("unwritten", ("time", "lat"), "f4", **unwritten)
    job(None, repository, paths[:1])
    job(None, repository, paths[1:], append=True)
    found = dataset(repository)
    assert found.none.shape == (0,)
    assert bool(np.isnan(found.unwritten).all())
