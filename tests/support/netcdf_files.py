"""NetCDF4 files as archives have them, and repositories that may refer to them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import h5netcdf
import numpy as np
import xarray

import icefloe
from support.array_repositories import array, seen_by_icechunk, sha256

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LATS, LONS = 6, 8
LATITUDES = np.linspace(90, -90, LATS, dtype="f4")
LONGITUDES = np.arange(LONS, dtype="f4") * 45


def write_file(
    path: Path,
    first: int,
    days: int = 2,
    *,
    lats: slice = slice(None),
    chunks: tuple[int, int, int] | None = (1, 3, 4),
    dtype: str = "i2",
    units: str = "days since 2024-01-01",
    attributes: Mapping[str, Any] | None = None,
    longitudes: Any = LONGITUDES,
    gzip: int = 1,
    more: Sequence[str] = (),
    group: str | None = None,
) -> Path:
    """Write some days: packed temperature, plain rain, a static map, a scalar and coordinates."""
    latitudes = LATITUDES[lats]
    shape = (days, len(latitudes), len(longitudes))
    # A value tells the place that it belongs to, whatever file it is in.
    day = np.arange(first, first + days)[:, None, None]
    row = np.arange(LATS)[lats][None, :, None]
    numbers = day * 100 + row * 10 + np.arange(len(longitudes))[None, None, :]
    packed = numbers.astype(dtype)
    if np.dtype(dtype).kind == "i":
        packed[:, :1, ::3] = -32768
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5netcdf.File(path, "w") as file:
        file.attrs["Conventions"] = "CF-1.11"
        file.attrs["history"] = f"written for {first}"
        file.attrs.update(attributes or {})
        file.dimensions = {"time": None, "lat": shape[1], "lon": shape[2]}
        file.resize_dimension("time", days)
        into = file if group is None else file.create_group(group)
        time = file.create_variable("time", ("time",), "i4", data=np.arange(first, first + days))
        time.attrs["units"] = units
        time.attrs["calendar"] = "standard"
        file.create_variable("lat", ("lat",), "f4", data=latitudes).attrs["units"] = "degrees_north"
        file.create_variable("lon", ("lon",), "f4", data=longitudes).attrs["units"] = "degrees_east"
        file.create_variable("crs", (), "i4", data=7).attrs["grid_mapping_name"] = (
            "latitude_longitude"
        )
        filters: dict[str, Any] = {}
        if chunks is not None:
            filters = {"chunks": chunks, "compression": "gzip", "compression_opts": gzip}
            filters["shuffle"] = True
        dims = ("time", "lat", "lon")
        t2m = into.create_variable(
            "t2m", dims, dtype, data=packed, fillvalue=np.dtype(dtype).type(-32768), **filters
        )
        t2m.attrs["scale_factor"] = 0.01
        t2m.attrs["add_offset"] = 273.15
        t2m.attrs["units"] = "K"
        rain = into.create_variable("rain", dims, "f4", data=numbers.astype("f4") / 8, **filters)
        rain.attrs["units"] = "mm"
        height = np.arange(shape[1] * shape[2], dtype="f4").reshape(shape[1:]) + latitudes[:, None]
        into.create_variable("height", ("lat", "lon"), "f4", data=height).attrs["units"] = "m"
        for name in more:
            into.create_variable(name, dims, "f4", data=numbers.astype("f4"))
    return path


def write_files(folder: Path, count: int = 4, days: int = 2, **options: Any) -> list[Path]:
    """Write files of some days each, one after the other."""
    return [
        write_file(folder / f"part-{number:03}.nc", number * days, days, **options)
        for number in range(count)
    ]


def create(
    path: Path, folder: Path, *, generation: str | None = None, **options: Any
) -> icefloe.Repository:
    """Create a repository that may refer to the files of a folder."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0, **options)
    prefix = f"{folder.as_uri()}/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(folder)))
    )
    return icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(path)),
        config,
        {prefix: icefloe.Credentials.LocalFileSystemAccess()},
        generation=generation,
    )


def dataset(repository: icefloe.Repository, group: str | None = None, **options: Any) -> Any:
    """Open a group at the tip of main with xarray."""
    store = repository.readonly_session("main").store
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # HDF5's filters are in no specification of Zarr
        found = xarray.open_zarr(store, group=group, consolidated=False, chunks=None, **options)
        return found.load()


def files_dataset(paths: Sequence[Path], **options: Any) -> Any:
    """Open files with xarray, which is what a repository is compared with."""
    combined = {"combine": "by_coords", "data_vars": "minimal", "compat": "override", **options}
    return xarray.open_mfdataset(
        paths, engine="h5netcdf", coords="minimal", join="outer", **combined
    ).load()


def assert_same(found: Any, expected: Any) -> None:
    """Compare values, coordinates, dimensions and variables' attributes."""
    assert set(found.variables) == set(expected.variables)
    xarray.testing.assert_equal(found, expected)
    for name in expected.variables:
        kept = dict(found[name].attrs)
        assert kept == {key: value for key, value in expected[name].attrs.items() if key in kept}
        assert {"units"} & kept.keys() == {"units"} & expected[name].attrs.keys()


def refs(repository: icefloe.Repository, path: str) -> dict[tuple[int, ...], Any]:
    """Return where each chunk of an array is, at the tip of main; native ones by their bytes."""
    session = repository.readonly_session("main")
    place = session.path(path)
    found: dict[tuple[int, ...], Any] = {}
    for part in session.transaction.fetch_chunk_refs(place):
        for row, coords in enumerate(part.coords.tolist()):
            ref = part.payloads[row]
            is_virtual = hasattr(ref, "location")
            assert tuple(coords) not in found
            found[tuple(coords)] = (
                ref if is_virtual else bytes(session.transaction.read(place, tuple(coords)) or b"")
            )
    return found


def arrays(repository: icefloe.Repository, group: str = "/") -> list[str]:
    """List the arrays below a group at the tip of main."""
    session = repository.readonly_session("main")
    nodes = session.transaction.iter_nodes_below(session.path(group))
    return sorted(node.path.value for node in nodes if node.is_array)


def assert_same_chunks(one: icefloe.Repository, other: icefloe.Repository) -> None:
    """Compare two repositories chunk by chunk: references, and the bytes of native chunks."""
    assert arrays(one) == arrays(other)
    for path in arrays(one):
        assert refs(one, path) == refs(other, path)


def assert_icechunk_agrees(repository: icefloe.Repository, folder: Path) -> None:
    """Compare all arrays at the tip of main with what the real Icechunk reads."""
    seen = seen_by_icechunk(repository, f"{folder.as_uri()}/")
    assert sorted(path for path, node in seen.items() if "sha256" in node) == arrays(repository)
    for path in arrays(repository):
        assert seen[path]["sha256"] == sha256(array(repository, path)[...])


def damage(path: Path, name: str) -> None:
    """Write zeros over the first chunk of a variable."""
    parsed = icefloe.virtual.parse(path).arrays[name]
    assert isinstance(parsed, icefloe.virtual.VirtualArray)
    start, length = (
        int(column[0]) for column in (parsed.refs.payloads.offset, parsed.refs.payloads.length)
    )
    data = bytearray(path.read_bytes())
    data[start : start + length] = bytes(length)
    path.write_bytes(data)
