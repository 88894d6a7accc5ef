"""What the real Icechunk makes of a repository with virtual chunks: its arrays and locations.

Runs without icefloe. Takes the folder of the repository and the prefix of a local container that it
may read; prints, as JSON, the bytes of the array ``a`` and the locations of all virtual chunks.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import numpy as np
import zarr

# Two versions with different types: whichever is there.
icechunk: Any = import_module("icechunk")


def main(folder: str, prefix: str) -> dict[str, Any]:
    """Read the repository."""
    allowed = getattr(icechunk.Credentials, "LocalFileSystemAccess", lambda: None)()
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(folder),
        authorize_virtual_chunk_access={prefix: allowed},
    )
    session = repository.readonly_session("main")
    array = zarr.open_array(session.store, path="a", mode="r")
    found: dict[str, Any] = {"locations": session.all_virtual_chunk_locations()}
    try:
        found["bytes"] = np.asarray(array[:]).reshape(-1).tolist()
    except icechunk.IcechunkError as error:
        found["error"] = str(error)
    return found


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
