"""References that the library kerchunk makes."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def make_references(path: Path, **options: Any) -> dict[str, Any]:
    """Make the references of a NetCDF4 file.

    Without garbage collection meanwhile: kerchunk waits for zarr's thread while it holds the lock
    of h5py. If that thread collected an object of h5py, it would wait for the lock forever.
    """
    from kerchunk.hdf import SingleHdf5ToZarr  # noqa: PLC0415 - imports much

    gc.disable()
    try:
        made: dict[str, Any] = SingleHdf5ToZarr(str(path), path.as_uri(), **options).translate()
    finally:
        gc.enable()
    return made
