"""Writes and reads virtual repositories with VirtualiZarr and Icechunk.

``python virtualizarr_and_icechunk.py write FOLDER REPOSITORY FILE …`` creates a repository that
refers to NetCDF files; ``read FOLDER REPOSITORY FILE …`` compares a repository with the files.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr


def _open_repository(folder: Path, name: str, *, create: bool) -> Any:
    icechunk: Any = import_module("icechunk")
    prefix = f"{folder.as_uri()}/"
    storage = icechunk.local_filesystem_storage(str(folder / name))
    allowed = icechunk.containers_credentials(
        {prefix: getattr(icechunk.Credentials, "LocalFileSystemAccess", lambda: None)()}
    )
    if not create:
        return icechunk.Repository.open(storage, authorize_virtual_chunk_access=allowed)
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(folder)))
    )
    return icechunk.Repository.create(storage, config, allowed)


def write(folder: Path, name: str, files: list[Path]) -> None:
    registry = import_module("obspec_utils.registry").ObjectStoreRegistry(
        {"file://": import_module("obstore.store").LocalStore()}
    )
    parser = import_module("virtualizarr.parsers").HDFParser()
    open_virtual_dataset = import_module("virtualizarr").open_virtual_dataset
    repository = _open_repository(folder, name, create=True)
    for number, file in enumerate(files):
        dataset = open_virtual_dataset(
            url=file.as_uri(), registry=registry, parser=parser, loadable_variables=["time", "x"]
        )
        session = repository.writable_session("main")
        dataset.vz.to_icechunk(session.store, append_dim="time" if number else None)
        session.commit(f"file {number}")


def read(folder: Path, name: str, files: list[Path]) -> None:
    store = _open_repository(folder, name, create=False).readonly_session("main").store
    found = xr.open_zarr(store, consolidated=False).load()
    parts = [xr.load_dataset(file, engine="h5netcdf") for file in files]
    for variable in parts[0].variables:
        along = "time" in parts[0][variable].dims
        values = [part[variable].values for part in parts]
        expected = np.concatenate(values) if along else values[0]
        np.testing.assert_array_equal(found[variable].values, expected, err_msg=str(variable))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    match sys.argv[1:]:
        case ["write", folder, name, *files]:
            write(Path(folder), name, [Path(file) for file in files])
        case ["read", folder, names, *files]:
            for name in names.split(","):
                read(Path(folder), name, [Path(file) for file in files])
