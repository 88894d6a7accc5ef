"""Makes sequences of writes with the real Icechunk, and compares them with what icefloe made.

Runs in whatever environment has an ``icechunk`` wheel: ``python icechunk_writer.py FOLDER``, where
FOLDER has a repository by the name of each sequence. Icechunk reads both, and every key must have
the same value. Prints the names of the sequences that it compared.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import xarray as xr
from zarr.core.buffer import default_buffer_prototype

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.written_datasets import SEQUENCES, Commits

icechunk: Any = import_module("icechunk")


# Its own function does not know xarray after 2025, in 1.x, or fails at dask arrays without length.
_TO_ZARR = {"no_length"} | (set(SEQUENCES) if icechunk.__version__.startswith("1.") else set())


def write(name: str, commits: Commits) -> Any:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    for number, writes in enumerate(commits):
        session = repository.writable_session("main")
        for obj, options in writes:
            if name in _TO_ZARR:
                obj.to_zarr(session.store, zarr_format=3, consolidated=False, **options)
            else:
                import_module("icechunk.xarray").to_icechunk(obj, session, **options)
        session.commit(f"{number}")
    return repository


def contents(repository: Any) -> dict[str, Any]:
    """Return the values of all keys, metadata as JSON."""

    async def read(store: Any) -> dict[str, Any]:
        found = {}
        async for key in store.list():
            data = (await store.get(key, default_buffer_prototype())).to_bytes()
            found[key] = json.loads(data) if key.endswith("zarr.json") else data
        return found

    return asyncio.run(read(repository.readonly_session("main").store))


def main(folder: Path) -> None:
    for name, sequence in SEQUENCES.items():
        ours = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder / name)))
        theirs = write(name, sequence())
        ours_found, theirs_found = contents(ours), contents(theirs)
        assert ours_found.keys() == theirs_found.keys(), (name, ours_found.keys())
        for key, value in theirs_found.items():
            assert ours_found[key] == value, (name, key, ours_found[key], value)
        opened = [
            xr.open_datatree(repo.readonly_session("main").store, engine="zarr", consolidated=False)
            for repo in (ours, theirs)
        ]
        xr.testing.assert_identical(*opened)
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
