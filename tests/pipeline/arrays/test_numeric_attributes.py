"""Attributes that define how numbers are decoded stay consistent with the stored numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray
import zarr

from icefloe.errors import InvalidInputError
from icefloe.pipeline.jobs.compute import compute
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.rechunk import rechunk
from icefloe.pipeline.report import JobFailedError
from support.array_repositories import array
from support.netcdf_files import create, dataset

if TYPE_CHECKING:
    from pathlib import Path

    import icefloe


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    return create(tmp_path / "repo", tmp_path)


def write(path: Path, day: int, numbers: list[int], **attributes: Any) -> Path:
    """Write one day of packed numbers; attributes that are None are left out."""
    said = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": np.int16(-99), **attributes}
    said = {name: value for name, value in said.items() if value is not None}
    stored = xarray.Dataset(
        {"v": (("time", "x"), np.array([numbers], "i2"), said)},
        coords={"time": ("time", [day], {"units": "days since 2024-01-01"})},
    )
    stored.to_netcdf(path, engine="h5netcdf", unlimited_dims=["time"])
    return path


@pytest.mark.parametrize(
    "attributes",
    [
        {"_FillValue": np.int16(-1)},
        {"_FillValue": None},
        {"missing_value": np.int16(7)},
        {"_Unsigned": "true"},
        {"flag_meanings": "land sea"},
        {"scale_factor": 0.25},
    ],
)
def test_numbers_that_mean_something_else_are_not_appended(
    tmp_path: Path, repository: icefloe.Repository, attributes: dict[str, Any]
) -> None:
    """The attributes would be lost: -99 would become a value, or a value would become missing."""
    ingest(None, repository, [write(tmp_path / "a.nc", 0, [1, -99])])
    (name,) = attributes
    odd = write(tmp_path / "b.nc", 1, [-1, -99], **attributes)
    with pytest.raises(JobFailedError, match=rf"b\.nc.*v: .*{name}"):
        ingest(None, repository, [odd], append=True)
    ingest(None, repository, [write(tmp_path / "c.nc", 1, [-99, 3])], append=True)
    np.testing.assert_array_equal(dataset(repository).v, [[10.5, np.nan], [np.nan, 11.5]])


def test_compute_gets_values(tmp_path: Path, repository: icefloe.Repository) -> None:
    """Decoded like in xarray, or stored numbers with ``decode=False``."""
    ingest(None, repository, [write(tmp_path / "a.nc", 0, [1, -99, 3])])
    compute(None, repository, lambda v: v - 10, "v", "less")
    np.testing.assert_array_equal(array(repository, "less")[...], [[0.5, np.nan, 1.5]])
    compute(None, repository, lambda v: v, "v", "raw", decode=False)
    np.testing.assert_array_equal(array(repository, "raw")[...], [[1, -99, 3]])
    assert array(repository, "raw").dtype == np.int16


def test_beyond_the_edges_are_values_too(tmp_path: Path, repository: icefloe.Repository) -> None:
    ingest(None, repository, [write(tmp_path / "a.nc", 0, [1, 2])])
    wide: dict[str, Any] = {"halo": {"x": 1}, "boundary": "constant", "constant": 0.25}
    compute(None, repository, lambda v: v[:, :-2], "v", "before", **wide)
    np.testing.assert_array_equal(array(repository, "before")[...], [[0.25, 10.5]])


def test_another_data_type_keeps_what_is_missing(
    tmp_path: Path, repository: icefloe.Repository
) -> None:
    """Also if integers become floating point, whose missing value has another encoding."""
    ingest(None, repository, [write(tmp_path / "a.nc", 0, [1, -99])])
    for dtype in ("int32", "float32", "float64"):
        rechunk(None, repository, "v", {"time": 1}, target=f"as_{dtype}", dtype=dtype)
    opened = dataset(repository)
    for dtype in ("int32", "float32", "float64"):
        assert array(repository, f"as_{dtype}").dtype == dtype
        np.testing.assert_array_equal(opened[f"as_{dtype}"], [[10.5, np.nan]])
    with repository.transaction("main", message="wide") as store:
        wide = zarr.create_array(store, name="w", data=np.arange(3, dtype="i2"))
        wide.attrs["_FillValue"] = 1000
    with pytest.raises(InvalidInputError, match=r"_FillValue = 1000 does not fit int8"):
        rechunk(None, repository, "w", dtype="int8")


@pytest.mark.parametrize("missing", [np.float32(1e20), np.float32(np.nan), "NaN", "none", "-9999"])
def test_a_missing_value_that_is_in_no_data_hides_none(
    tmp_path: Path, repository: icefloe.Repository, missing: Any
) -> None:
    """A cast to the data type could turn it into a valid number, often 0."""
    path = write(tmp_path / "a.nc", 0, [0, -99, 3], missing_value=missing)
    ingest(None, repository, [path], unpack=True)
    np.testing.assert_array_equal(dataset(repository).v, [[10, np.nan, 11.5]])
    ingest(None, repository, [path], group="packed")
    compute(None, repository, lambda v: v, "packed/v", "out")
    np.testing.assert_array_equal(array(repository, "out")[...], [[10, np.nan, 11.5]])


def test_values_stay_apart(tmp_path: Path, repository: icefloe.Repository) -> None:
    """float32 is used only if it distinguishes all packed numbers."""
    for name, offset, dtype in (("small", 10.0, "f4"), ("large", 1e5, "f8")):
        path = write(tmp_path / f"{name}.nc", 0, [0, 1], scale_factor=0.001, add_offset=offset)
        ingest(None, repository, [path], group=name, unpack=True)
        found = array(repository, f"{name}/v")
        assert found.dtype == dtype
        np.testing.assert_allclose(np.diff(found[...]), 0.001, rtol=1e-2)


def test_floats_that_are_rounded_keep_what_is_missing(
    tmp_path: Path, repository: icefloe.Repository
) -> None:
    with repository.transaction("main", message="floats") as store:
        written = xarray.Dataset({"v": (("y",), [1.0, np.nan, 3.0])})
        written.v.encoding["_FillValue"] = -9999.9
        written.to_zarr(store, zarr_format=3, consolidated=False)
    rechunk(None, repository, "v", {"y": 2}, dtype="f4")
    np.testing.assert_array_equal(dataset(repository).v, [1, np.nan, 3])


def test_unsigned_numbers_are_integers(tmp_path: Path, repository: icefloe.Repository) -> None:
    with repository.transaction("main", message="bytes") as store:
        stored = zarr.create_array(
            store, name="v", data=np.array([-1, 5], "i1"), dimension_names=["x"]
        )
        stored.attrs["_Unsigned"] = "true"
    compute(None, repository, lambda v: v, "v", "out")
    assert array(repository, "out").dtype == np.uint8
    np.testing.assert_array_equal(array(repository, "out")[...], [255, 5])


def test_unsigned_numbers_become_no_other_integers(
    tmp_path: Path, repository: icefloe.Repository
) -> None:
    path = write(tmp_path / "a.nc", 0, [1, 2], _Unsigned="true")
    with pytest.raises(InvalidInputError, match=r"_Unsigned.*floating point"):
        ingest(None, repository, [path], dtype={"v": "int32"})
    ingest(None, repository, [path], dtype={"v": "float32"})
    assert dataset(repository).v.dtype == np.float32
