"""Repositories with arrays of every kind, and what is in them."""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from support import SUPPORT, warm_python
from support.generations import OLDER

if TYPE_CHECKING:
    import icefloe

TIMES, LATS, LONS = 20, 13, 17


def cube() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Make a cube with missing values, and with chunks that hold nothing but the fill value."""
    values = np.random.default_rng(0).random((TIMES, LATS, LONS)).astype("f4")
    values[3, 4] = np.nan
    values[10:15, :4] = np.nan
    return values


def write_weather(repository: icefloe.Repository) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Commit a cube ``air``, a map ``mask`` and coordinates."""
    values = cube()
    with repository.transaction("main", message="weather") as store:
        group = zarr.create_group(store, attributes={"title": "weather"})
        air = group.create_array(
            "air",
            shape=values.shape,
            chunks=(5, 4, 6),
            dtype="f4",
            fill_value=np.nan,
            dimension_names=("time", "lat", "lon"),
            attributes={"units": "K", "_FillValue": "AAAAAAAA+H8="},
        )
        air[:] = values
        mask = group.create_array(
            "mask", shape=(LATS, LONS), chunks=(13, 17), dtype="i2", dimension_names=("lat", "lon")
        )
        mask[:] = np.arange(LATS * LONS).reshape(LATS, LONS)
        for name, size in (("time", TIMES), ("lat", LATS), ("lon", LONS)):
            one = group.create_array(
                name, shape=(size,), chunks=(size,), dtype="f8", dimension_names=(name,)
            )
            one[:] = np.arange(size) * 0.5
    return values


def every_dtype() -> dict[str, np.ndarray[Any, Any]]:
    """Make an array of each data type that Zarr stores."""
    numbers = np.arange(7)
    return {
        "bool": numbers % 2 == 0,
        **{name: numbers.astype(name) for name in ("i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8")},
        "big": numbers.astype(">i4"),
        "datetime": numbers.astype("datetime64[ns]"),
        "timedelta": numbers.astype("timedelta64[s]"),
        "bytes": numbers.astype("S3"),
        "fixed": numbers.astype("U4"),
        "string": np.array(
            [f"été {number}" * number for number in numbers], np.dtypes.StringDType()
        ),
    }


def write_every_dtype(repository: icefloe.Repository) -> dict[str, np.ndarray[Any, Any]]:
    """Commit an array of each data type, one without dimensions and one without items."""
    arrays = every_dtype()
    with warnings.catch_warnings(), repository.transaction("main", message="all") as store:
        warnings.simplefilter("ignore")  # some have no specification yet
        group = zarr.create_group(store)
        for name, values in arrays.items():
            array = group.create_array(
                name, shape=values.shape, chunks=(3,), dtype=values.dtype, dimension_names=("x",)
            )
            array[:] = values
        group.create_array("scalar", shape=(), dtype="i4")[...] = 5
        group.create_array("empty", shape=(0, 3), chunks=(2, 3), dtype="f4")
        shards = group.create_array(
            "shards", shape=(10, 9), chunks=(2, 3), shards=(4, 9), dtype="f8", fill_value=-1
        )
        shards[1:9, 2:] = np.random.default_rng(1).random((8, 7))
        arrays |= {"scalar": np.array(5, "i4"), "empty": np.zeros((0, 3), "f4")}
        arrays["shards"] = np.asarray(shards[:])
    return arrays


def tip(repository: icefloe.Repository) -> Any:
    """Open the tip of main."""
    return zarr.open_group(repository.readonly_session("main").store, mode="r")


def array(repository: icefloe.Repository, path: str) -> Any:
    """Open an array at the tip of main."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = repository.readonly_session("main").store
        return zarr.open_array(store, path=path.strip("/"), mode="r")


def chunk_bytes(repository: icefloe.Repository, path: str) -> dict[tuple[int, ...], bytes]:
    """Read all chunks of an array at the tip of main, as they are stored."""
    session = repository.readonly_session("main")
    place = session.path(path)
    found = {}
    for part in session.transaction.fetch_chunk_refs(place):
        for row in part.coords.tolist():
            data = session.transaction.read(place, tuple(row))
            assert data is not None
            found[tuple(row)] = bytes(data)
    return found


def seen_by_icechunk(repository: icefloe.Repository, *prefix: str) -> dict[str, Any]:
    """Read all nodes at the tip of main with the real Icechunk, and virtual chunks in a folder.

    Generations that Icechunk does not read are read by icefloe.
    """
    if repository.generation in OLDER:
        return _seen_by_icefloe(repository)
    path = repository.storage.url.removeprefix("file://")
    script = SUPPORT / "icechunk_reader.py"
    done = warm_python.run(sys.executable, script, path, *prefix)
    assert done.returncode == 0, f"Icechunk could not read it:\n{done.stderr[-4000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    nodes: dict[str, Any] = found["snapshots"][found["branches"]["main"]]
    return nodes


def _seen_by_icefloe(repository: icefloe.Repository) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, node in tip(repository).members(max_depth=None):
        found[f"/{path}"] = {}
        if isinstance(node, zarr.Array):
            found[f"/{path}"] = {"chunks": list(node.chunks), "sha256": sha256(node[...])}
    return found


def sha256(values: Any) -> str:
    """Sum an array up as the reader of Icechunk does."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
