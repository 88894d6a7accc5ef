"""NetCDF4 and HDF5 test files, and repositories with a container for them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h5py
import netCDF4
import numpy as np
import xarray as xr

import icefloe

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.virtual import VirtualDataset


def write_rich_netcdf4(path: Path, *, first_day: int = 0, days: int = 4, since: str = "") -> Path:
    """Write most features of CF files with the NetCDF library."""
    rng = np.random.default_rng(first_day)
    with netCDF4.Dataset(path, "w") as file:
        file.setncatts(
            {"title": "weather", "Conventions": "CF-1.11", "history": f"day {first_day}"}
        )
        file.createDimension("time", None)
        file.createDimension("lat", 6)
        file.createDimension("lon", 8)
        file.createDimension("bnds", 2)
        file.createDimension("name_length", 5)

        time = file.createVariable("time", "f8", ("time",), chunksizes=(1,))
        time.setncatts({"bounds": "time_bnds", "calendar": "standard"})
        time.units = since or "days since 2020-01-01"
        time[:] = np.arange(first_day, first_day + days) if not since else np.arange(days)
        bounds = file.createVariable("time_bnds", "f8", ("time", "bnds"))
        bounds[:] = np.stack([time[:], time[:] + 1], 1)
        file.createVariable("lat", "f4", ("lat",))[:] = np.linspace(-75, 75, 6)
        file.createVariable("lon", "f4", ("lon",))[:] = np.arange(8) * 45

        packed = file.createVariable(
            "t2m",
            "i2",
            ("time", "lat", "lon"),
            chunksizes=(2, 3, 5),
            zlib=True,
            shuffle=True,
            fill_value=-999,
        )
        packed.setncatts({"scale_factor": 0.01, "add_offset": 273.15, "units": "K"})
        values = np.ma.masked_less(rng.normal(280, 10, (days, 6, 8)), 268)
        packed[:] = values
        rain = file.createVariable(
            "rain", "f4", ("time", "lat", "lon"), chunksizes=(1, 6, 8), fletcher32=True
        )
        rain.setncatts({"missing_value": np.float32(-1), "valid_range": np.array([0, 9], "f4")})
        rain[:] = rng.random((days, 6, 8))
        file.createVariable("mask", ">i4", ("lat", "lon"), contiguous=True)[:] = np.arange(
            48
        ).reshape(6, 8)
        crs = file.createVariable("crs", "i4", ())
        crs.setncatts({"grid_mapping_name": "latitude_longitude", "semi_major_axis": 6378137.0})
        crs[...] = 7
        letters = file.createVariable("letters", "S1", ("lat", "name_length"))
        letters[:] = np.array(list("abcdefghijklmnopqrstuvwxyz1234"), "S1").reshape(6, 5)

        group = file.createGroup("ocean")
        group.description = "below"
        sst = group.createVariable("sst", "f8", ("time", "lat"), zlib=True, chunksizes=(2, 6))
        sst[:] = rng.random((days, 6))
    return path


def write_odd_hdf5(path: Path) -> Path:
    """Write layouts, types and missing chunks that NetCDF libraries do not, with h5py."""
    with h5py.File(path, "w") as file:
        file.attrs["numbers"] = [1, 2, 3]
        file.attrs["empty"] = h5py.Empty("S1")
        file.attrs["texts"] = ["a", "ü"]
        sparse = file.create_dataset("sparse", (10, 4), "f4", chunks=(3, 4), fillvalue=-1)
        sparse[4:6] = 5
        file.create_dataset("never_written", (4,), "i8", fillvalue=7)
        file["big_endian"] = np.arange(6, dtype=">u2")
        file["flags"] = np.array([True, False])
        file.create_dataset("fixed", data=np.array([b"one", b"two"], "S3"))
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3,))
        made = h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT32, space, compact)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([3, 4, 5], "i4"))
        file["complex"] = np.array([1 + 2j, 3j])
        file.create_dataset("empty_axis", (0, 3), "f4", chunks=(2, 3), maxshape=(None, 3))
    return path


def write_simple(
    path: Path,
    *,
    first: int = 0,
    days: int = 2,
    dtype: str = "f4",
    chunks: tuple[int, int] = (2, 4),
    fill: float | None = None,
    units: str = "days since 2020-01-01",
    zlib: bool = True,
    attributes: dict[str, Any] | None = None,
    x: np.ndarray[Any, Any] | None = None,
    times: np.ndarray[Any, Any] | None = None,
    name: str = "rain",
    **more: Any,
) -> Path:
    """Write a small file of rain along time and x; options change one property."""
    values = np.random.default_rng(abs(first)).random((days, 4)).astype(dtype)
    dataset = xr.Dataset(
        {name: (("time", "x"), values, {"units": "mm", **(attributes or {})}), **more},
        {
            "time": ("time", np.arange(first, first + days) if times is None else times),
            "x": np.arange(4.0) if x is None else x,
        },
        {"title": "rain", "history": f"from {first}"},
    )
    dataset["time"].attrs["units"] = units
    encoding: dict[str, Any] = {"chunksizes": chunks, "zlib": zlib, "_FillValue": fill}
    if not zlib:
        encoding = {"contiguous": True, "_FillValue": fill}
    dataset.to_netcdf(path, engine="h5netcdf", encoding={name: encoding})
    return path


@dataclass
class Place:
    """A directory with files, and repositories that may read them."""

    folder: Path

    @property
    def prefix(self) -> str:
        return f"{self.folder.as_uri()}/"

    def repository(self, generation: str = "v2", name: str = "repository") -> icefloe.Repository:
        config = icefloe.RepositoryConfig.default()
        config.set_virtual_chunk_container(
            icefloe.VirtualChunkContainer(
                self.prefix, icefloe.local_filesystem_store(str(self.folder))
            )
        )
        return icefloe.Repository.create(
            icefloe.local_filesystem_storage(str(self.folder / name)),
            config,
            {self.prefix: icefloe.Credentials.LocalFileSystemAccess()},
            generation=generation,
        )


def write_repository(
    place: Place, dataset: VirtualDataset, generation: str = "v2"
) -> icefloe.Repository:
    """Return a repository with a dataset at its root."""
    repository = place.repository(generation)
    session = repository.writable_session("main")
    dataset.write(session)
    session.commit("files")
    return repository


def open_group(repository: icefloe.Repository, group: str | None = None) -> xr.Dataset:
    """Read a group with xarray."""
    store = repository.readonly_session("main").store
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: xr.Dataset = xr.open_zarr(store, group=group, consolidated=False).load()
    return found


def read_files(path: Path | list[Path], group: str | None = None) -> xr.Dataset:
    """Read a file, or several along time, with xarray."""
    paths = path if isinstance(path, list) else [path]
    parts: list[xr.Dataset] = [
        xr.open_dataset(file, engine="h5netcdf", group=group, phony_dims="access") for file in paths
    ]
    if len(parts) == 1:
        return parts[0].load()
    joined: xr.Dataset = xr.concat(
        parts,
        "time",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        combine_attrs="drop_conflicts",
        join="exact",
    )
    return joined.load()


def assert_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Compare values, dtypes, dimensions and attributes, in any order of variables."""
    xr.testing.assert_identical(
        found[sorted(map(str, found))], expected[sorted(map(str, expected))]
    )
    for name in expected.variables:
        assert found[name].dtype == expected[name].dtype, name
