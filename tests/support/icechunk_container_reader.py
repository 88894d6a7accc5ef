"""Reads an array of bytes through a local container with the real Icechunk.

``python icechunk_container_reader.py REPOSITORY PREFIX ARRAY`` prints, as JSON, the containers of
the configuration and the bytes. Runs without icefloe, wherever there is an ``icechunk`` wheel.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import zarr

# Two versions with different types: whichever is there.
icechunk: Any = import_module("icechunk")


def main(path: str, prefix: str, array: str) -> None:
    allowed = getattr(icechunk.Credentials, "LocalFileSystemAccess", lambda: None)()
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(path), authorize_virtual_chunk_access={prefix: allowed}
    )
    store = repository.readonly_session("main").store
    data = bytes(zarr.open_array(store, path=array, mode="r")[:])  # type: ignore[arg-type]
    containers = repository.config.virtual_chunk_containers
    json.dump({"containers": sorted(containers), "data": data.decode()}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
