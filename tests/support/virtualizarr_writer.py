"""References to NetCDF files: written by VirtualiZarr through icefloe, read by the real Icechunk.

``python virtualizarr_writer.py write FOLDER SPEC_VERSION`` makes the files and the repository, and
reads it with icefloe; ``read FOLDER`` reads it with the ``icechunk`` of this environment.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr


def month(number: int) -> xr.Dataset:
    days = np.arange(number * 30, number * 30 + 30)
    values = np.random.default_rng(number).random((30, 8)).astype("f4")
    return xr.Dataset(
        {"rain": (("time", "x"), values, {"units": "mm"})},
        {"time": ("time", days, {"units": "days since 2024-01-01"}), "x": np.arange(8.0)},
        {"title": "rain"},
    )


def make_files(folder: Path) -> list[Path]:
    encoding = {"rain": {"chunksizes": (10, 4), "zlib": True, "shuffle": True}}
    paths = [folder / f"{number}.nc" for number in range(3)]
    for number, path in enumerate(paths):
        month(number).to_netcdf(path, engine="h5netcdf", encoding=encoding)
    return paths


def expected(folder: Path) -> xr.Dataset:
    opened = [xr.open_dataset(folder / f"{number}.nc", engine="h5netcdf") for number in range(3)]
    return xr.concat(opened, "time", data_vars="minimal").load()


def write(folder: Path, spec_version: int) -> None:
    import_module("icefloe").install_as_icechunk(spec_version=spec_version)
    icechunk: Any = import_module("icechunk")
    parser = import_module("virtualizarr.parsers").HDFParser()
    registry = import_module("obspec_utils.registry").ObjectStoreRegistry(
        {"file://": import_module("obstore.store").LocalStore()}
    )
    open_virtual_dataset = import_module("virtualizarr").open_virtual_dataset
    datasets = [
        open_virtual_dataset(
            url=path.as_uri(), registry=registry, parser=parser, loadable_variables=["time", "x"]
        )
        for path in make_files(folder)
    ]

    prefix = f"{folder.as_uri()}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(folder)))
    )
    storage = icechunk.local_filesystem_storage(str(folder / "repository"))
    repository = icechunk.Repository.create(
        storage, config, icechunk.containers_credentials({prefix: None})
    )
    assert int(repository.spec_version) == spec_version

    session = repository.writable_session("main")
    datasets[0].vz.to_icechunk(session.store)
    session.commit("the first month")
    for dataset in datasets[1:]:
        session = repository.writable_session("main")
        dataset.vz.to_icechunk(session.store, append_dim="time")
        session.commit("one more month")
    session = repository.writable_session("main")
    datasets[0].vz.to_icechunk(session.store, group="nested/group")
    session.commit("in a group")

    session = repository.readonly_session("main")
    assert len(session.all_virtual_chunk_locations()) == 4 * 6
    compare(session.store, folder)


def read(folder: Path) -> None:
    icechunk: Any = import_module("icechunk")
    prefix = f"{folder.as_uri()}/"
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(folder / "repository")),
        authorize_virtual_chunk_access=icechunk.containers_credentials({prefix: None}),
    )
    compare(repository.readonly_session("main").store, folder)


def compare(store: Any, folder: Path) -> None:
    found = xr.open_zarr(store, consolidated=False)
    xr.testing.assert_identical(found.load(), expected(folder))
    nested = xr.open_zarr(store, group="nested/group", consolidated=False)
    one = xr.open_dataset(folder / "0.nc", engine="h5netcdf")
    xr.testing.assert_identical(nested.load(), one.load())


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3")
    match sys.argv[1:]:
        case ["write", folder, spec_version]:
            write(Path(folder), int(spec_version))
        case ["read", folder]:
            read(Path(folder))
