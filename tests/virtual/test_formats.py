"""File formats: detected by content, and read through references as by their own readers."""

from __future__ import annotations

import base64
import json
import math
import shutil
import struct
from typing import TYPE_CHECKING, Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    NodeNotFoundError,
    ObjectNotFoundError,
)
from icefloe.model.chunk_payload import ChunkKind, LastModified
from icefloe.virtual import LoadedArray, VirtualArray, VirtualChunkContainer, parse
from support.generations import GENERATION_NAMES
from support.kerchunk_references import make_references
from support.netcdf_archives import (
    Place,
    assert_same,
    open_group,
    write_repository,
    write_rich_netcdf4,
    write_simple,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")


# -- detection


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.nc", b"<!DOCTYPE html><title>Sign in</title>", "an HTML page"),
        ("a.nc", b"", "empty"),
        ("a.nc", bytes(600), "filled with zeros"),
        ("a.grib", b"GRIB\0\0\0\2", "a GRIB file"),
        ("a.nc.gz", b"\x1f\x8b\x08", "compressed with gzip"),
        ("a.hdf", b"\x0e\x03\x13\x01", "an HDF4 file"),
        ("a.parquet", b"PAR1....", "a single Parquet file"),
        ("a.bin", b"\x01\x02\x03\x04", r"unknown type \(it starts with b'\\x01\\x02\\x03\\x04'\)"),
        (
            "a.tif",
            b"CDF\x01" + bytes(40),
            r"a NetCDF3 file, which does not match its extension \.tif",
        ),
        ("a.json", b'{"some": "thing"}', "not a Kerchunk file"),
        ("a.json", b'{"some": ', "not JSON"),
    ],
)
def test_a_file_that_is_something_else(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    """The error identifies the file by its content, not its name."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        parse(tmp_path / name)
    assert caught.value.kind is ErrorKind.INVALID_FILE_FORMAT
    assert name in str(caught.value)


def test_a_claimed_format_is_checked(tmp_path: Path) -> None:
    """`format` must match the content, and overrides the file name."""
    path = write_simple(tmp_path / "a.nc")
    assert parse(path, format="netcdf4").arrays.keys() == parse(path, format="hdf5").arrays.keys()
    with pytest.raises(FormatError, match="is an HDF5 or NetCDF4 file, not a NetCDF3 file"):
        parse(path, format="netcdf3")
    with pytest.raises(
        InvalidInputError, match="unknown format 'grib'; expected one of: hdf5, netcdf4"
    ):
        parse(path, format="grib")
    shutil.copy(path, tmp_path / "b.tif")
    with pytest.raises(FormatError, match=r"b\.tif: is an HDF5 .*pass format='hdf5'"):
        parse(tmp_path / "b.tif")
    assert parse(tmp_path / "b.tif", format="hdf5").arrays
    shutil.copy(path, tmp_path / "without_a_suffix")
    assert parse(tmp_path / "without_a_suffix").arrays


def test_what_is_not_there(tmp_path: Path) -> None:
    """Missing files, and directories of other kinds."""
    with pytest.raises(
        ObjectNotFoundError, match=r"missing\.nc: there is no such file or directory"
    ):
        parse(tmp_path / "missing.nc")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ObjectNotFoundError, match="directory"):
        parse(tmp_path / "folder")
    (tmp_path / "folder" / "x").write_text("x")
    with pytest.raises(FormatError, match="is a directory, but neither a Zarr hierarchy"):
        parse(tmp_path / "folder")
    for generation in GENERATION_NAMES:
        storage = icefloe.local_filesystem_storage(str(tmp_path / generation))
        icefloe.Repository.create(storage, generation=generation)
        with pytest.raises(FormatError, match="is an Icechunk repository"):
            parse(tmp_path / generation)
    with pytest.raises(InvalidInputError, match="empty"):
        parse("")


# -- NetCDF3


def _netcdf3(path: Path, kind: Any, *, alone: bool = False) -> Path:
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.setncatts({"title": "old", "number": np.int32(3), "list": np.array([1.5, 2.5])})
        file.createDimension("time", None)
        file.createDimension("x", 3)
        short = file.createVariable("short", "i2", ("time", "x"), fill_value=-1)
        short.setncatts({"scale_factor": 0.5, "units": "m"})
        short[:] = np.ma.masked_equal(np.arange(15).reshape(5, 3), 4)
        if not alone:
            time = file.createVariable("time", "f8", ("time",))
            time.units = "hours since 1999-12-31"
            time[:] = np.arange(5)
            file.createVariable("byte", "i1", ("time",))[:] = np.arange(5)
            file.createVariable("x", "f4", ("x",))[:] = [1, 2, 3]
            file.createVariable("fixed", "i4", ("x",))[:] = [4, 5, 6]
            file.createVariable("scalar", "f8", ())[...] = 2.5
            file.createVariable("char", "S1", ("x",))[:] = np.array([b"a", b"b", b"c"], "S1")
    return path


@pytest.mark.parametrize("kind", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"])
@pytest.mark.parametrize("alone", [False, True])
def test_netcdf3(place: Place, kind: str, alone: bool) -> None:  # noqa: FBT001
    """Interleaved records are padded, except if there is one record variable."""
    path = _netcdf3(place.folder / "a.nc", kind, alone=alone)
    found = open_group(write_repository(place, parse(path)))
    assert_same(found, xr.open_dataset(path, engine="netcdf4").load())
    assert found["short"].isnull().sum() == 1


def test_netcdf3_of_an_unknown_number_of_records(place: Place) -> None:
    """For streamed files, the number of records follows from the file size."""
    path = _netcdf3(place.folder / "a.nc", "NETCDF3_CLASSIC")
    expected = xr.open_dataset(path, engine="netcdf4").load()
    data = bytearray(path.read_bytes())
    data[4:8] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert_same(open_group(write_repository(place, parse(path))), expected)


def test_damaged_netcdf3(tmp_path: Path) -> None:
    """Truncated and corrupted files give a dataset or an error with the file name."""
    path = _netcdf3(tmp_path / "a.nc", "NETCDF3_CLASSIC")
    data = path.read_bytes()
    with pytest.raises(NodeNotFoundError, match="NetCDF3 files have no groups"):
        parse(path, group="a")
    for end in (30, 200, len(data) - 8):
        path.write_bytes(data[:end])
        with pytest.raises(FormatError, match=r"a\.nc: is truncated"):
            parse(path)
    rng = np.random.default_rng(1)
    for _ in range(80):
        damaged = bytearray(data)
        damaged[int(rng.integers(4, len(data)))] = int(rng.integers(0, 256))
        path.write_bytes(damaged)
        try:
            parse(path)
        except (FormatError, InvalidInputError) as error:
            assert "a.nc" in str(error)  # noqa: PT017 - or no error at all


# -- Zarr


def _example() -> xr.Dataset:
    values = np.arange(60.0).reshape(5, 12)
    values[:, 3] = np.nan
    return xr.Dataset(
        {
            "a": (("time", "x"), values, {"units": "K"}),
            "i": (("x",), np.arange(12, dtype="i2")),
            "s": ((), 3.5),
        },
        {"time": np.datetime64("2000-01-01", "ns") + np.arange(5) * np.timedelta64(1, "D")},
        {"title": "zarr"},
    )


@pytest.mark.parametrize("zarr_format, separator", [(2, "."), (2, "/"), (3, "/"), (3, ".")])
def test_zarr(place: Place, zarr_format: Any, separator: str) -> None:
    """Zarr v2 and v3, with either separator, groups and missing chunks."""
    path = place.folder / "a b.zarr"
    encoding: dict[str, Any] = {"a": {"chunks": (2, 5)}}
    key = {"name": "default", "separator": separator}
    encoding["a"] |= {"chunk_key_encoding": key} if zarr_format == 3 else {}
    with zarr.config.set({"array.v2_default_dimension_separator": separator}):
        _example().to_zarr(path, encoding=encoding, zarr_format=zarr_format, consolidated=False)
    group = zarr.open_group(path, mode="a")
    keys: Any = {"name": "v2" if zarr_format == 2 else "default", "separator": separator}
    sparse = group.create_array(
        "deep/sparse",
        shape=(6, 4),
        chunks=(2, 4),
        dtype="i4",
        fill_value=9,
        chunk_key_encoding=keys,
    )
    sparse[2:4] = 1
    dataset = parse(path)
    assert set(dataset.groups) == {"", "deep"}
    refs = dataset.arrays["deep/sparse"]
    assert isinstance(refs, VirtualArray)
    assert refs.refs.coords.tolist() == [[1, 0]]
    checksum = refs.refs.payloads[0].checksum  # type: ignore[union-attr]
    assert isinstance(checksum, LastModified)
    repository = write_repository(place, dataset)
    assert_same(open_group(repository), xr.open_zarr(path, consolidated=False).load())
    store = repository.readonly_session("main").store
    np.testing.assert_array_equal(zarr.open_array(store, path="deep/sparse")[...], sparse[...])
    only = parse(path, group="deep")
    assert list(only.arrays) == ["sparse"]
    with pytest.raises(NodeNotFoundError, match="no group 'high'"):
        parse(path, group="high")


def test_zarr_shards_and_fortran_order(place: Place) -> None:
    """A shard is one reference; v2 Fortran order becomes a v3 codec."""
    path = place.folder / "a.zarr"
    group = zarr.create_group(path, zarr_format=3)
    sharded = group.create_array("sharded", shape=(8, 8), chunks=(2, 2), shards=(4, 8), dtype="i4")
    sharded[...] = np.arange(64).reshape(8, 8)
    dataset = parse(path)
    assert len(dataset.arrays["sharded"].refs) == 2  # type: ignore[union-attr]
    other = place.folder / "f.zarr"
    zarr.create_group(other, zarr_format=2).create_array(
        "f", shape=(4, 6), chunks=(2, 3), dtype="i4", order="F"
    )[...] = np.arange(24).reshape(4, 6)
    session = place.repository().writable_session("main")
    dataset.write(session, group="one")
    parse(other).write(session, group="two")
    np.testing.assert_array_equal(
        zarr.open_array(session.store, path="one/sharded")[...], np.arange(64).reshape(8, 8)
    )
    np.testing.assert_array_equal(
        zarr.open_array(session.store, path="two/f")[...], np.arange(24).reshape(4, 6)
    )


def test_a_zarr_array_without_a_group(tmp_path: Path) -> None:
    """Only groups can be parsed."""
    zarr.create_array(tmp_path / "a.zarr", shape=(2,), dtype="i4")
    with pytest.raises(InvalidInputError, match=r"a\.zarr: its root is an array, not a group"):
        parse(tmp_path / "a.zarr")


def test_damaged_zarr(tmp_path: Path) -> None:
    """Errors about invalid metadata name the key."""
    path = tmp_path / "a.zarr"
    _example().to_zarr(path, zarr_format=2, consolidated=False)
    (path / "a" / ".zarray").write_text("{")
    with pytest.raises(FormatError, match=r"a\.zarr: is damaged: a/\.zarray is not JSON"):
        parse(path)
    (path / "a" / ".zarray").write_text('{"shape": 3}')
    with pytest.raises(FormatError, match=r"a/\.zarray"):
        parse(path)


# -- Kerchunk


def test_kerchunk_json(place: Place) -> None:
    """Kerchunk references, including inline ones, read as the file."""
    path = write_simple(place.folder / "a.nc", days=4, fill=-5.0)
    refs = make_references(path, inline_threshold=40)
    assert any(isinstance(value, str) for key, value in refs["refs"].items() if ".z" not in key)
    (place.folder / "a.json").write_text(json.dumps(refs))
    dataset = parse(place.folder / "a.json")
    found = open_group(write_repository(place, dataset))
    expected = xr.open_dataset(path, engine="h5netcdf").load()
    xr.testing.assert_equal(found, expected)
    assert found["rain"].attrs["units"] == "mm"
    rain = dataset.arrays["rain"]
    assert isinstance(rain, VirtualArray)
    changed = LastModified(math.ceil((place.folder / "a.json").stat().st_mtime))
    assert {ref.checksum for ref in rain.refs.payloads} == {changed}  # type: ignore[union-attr]


def test_kerchunk_templates_paths_and_inline_chunks(place: Place) -> None:
    """Templates are expanded, paths resolved, base64 decoded, null chunks skipped."""
    (place.folder / "raw.bin").write_bytes(np.arange(8, dtype="<i4").tobytes())
    zarray = {
        "zarr_format": 2,
        "shape": [5, 2],
        "chunks": [1, 2],
        "dtype": "<i4",
        "compressor": None,
        "filters": None,
        "fill_value": 7,
        "order": "C",
    }
    inline = base64.b64encode(np.array([90, 91], "<i4").tobytes()).decode()
    refs: dict[str, Any] = {
        ".zgroup": '{"zarr_format":2}',
        "g/.zgroup": '{"zarr_format":2}',
        "g/a/.zarray": json.dumps(zarray),
        "g/a/.zattrs": '{"_ARRAY_DIMENSIONS":["t","x"]}',
        "g/a/0.0": ["{{u}}", 0, 8],
        "g/a/1.0": ["raw.bin", 8, 8],
        "g/a/2.0": f"base64:{inline}",
        "g/a/3.0": [str(place.folder / "raw.bin"), 24, 8],
    }
    document = {"version": 1, "templates": {"u": f"{place.prefix}raw.bin"}, "refs": refs}
    path = place.folder / "refs.json"
    path.write_text(json.dumps(document))
    dataset = parse(path, group="g")
    array = dataset.arrays["a"]
    assert isinstance(array, VirtualArray)
    assert array.refs.payloads.kind.tolist() == [2, 2, ChunkKind.INLINE, 2]
    assert list(array.refs.payloads.locations) == [f"{place.prefix}raw.bin"]
    session = place.repository().writable_session("main")
    dataset.write(session)
    found = zarr.open_array(session.store, path="a")[...]
    assert found.tolist() == [[0, 1], [2, 3], [90, 91], [6, 7], [7, 7]]  # type: ignore[union-attr]

    slashed = {**zarray, "dimension_separator": "/"}
    moved = {
        ".zgroup": refs[".zgroup"],
        "a/.zarray": slashed,
        "a/0/0": refs["g/a/0.0"],
        "a/3/0": refs["g/a/3.0"],
    }
    path.write_text(json.dumps({**document, "refs": moved}))
    array = parse(path).arrays["a"]
    assert isinstance(array, VirtualArray)
    assert array.refs.coords.tolist() == [[0, 0], [3, 0]]

    refs["g/a/9.0"] = ["raw.bin", 0, 8]
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match=r"a/9\.0 is outside the chunk grid"):
        parse(path, group="g")
    path.write_text(json.dumps({**document, "gen": [{}]}))
    with pytest.raises(InvalidInputError, match="generated"):
        parse(path, group="g")


def test_references_do_not_reach_out_on_their_own(tmp_path: Path) -> None:
    """An untrusted reference file must not read arbitrary local files."""
    (tmp_path / "private").mkdir()
    data = write_simple(tmp_path / "private" / "a.nc")
    (tmp_path / "refs").mkdir()
    path = tmp_path / "refs" / "a.json"
    path.write_text(json.dumps(make_references(data, inline_threshold=0)))
    with pytest.raises(
        InvalidInputError, match=r"a\.json refers to .*private.*containers="
    ) as caught:
        parse(path)
    assert caught.value.kind is ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
    assert parse(path, loadable_variables=()).num_refs
    prefix = f"{(tmp_path / 'private').as_uri()}/"
    container = VirtualChunkContainer(
        prefix, icefloe.local_filesystem_store(str(tmp_path / "private"))
    )
    assert isinstance(parse(path, containers=[container]).arrays["time"], LoadedArray)


def test_kerchunk_parquet(place: Place) -> None:
    """Directories of Parquet files, in several parts, with inline and missing chunks."""
    import fsspec  # noqa: PLC0415
    from fsspec.implementations.reference import LazyReferenceMapper  # noqa: PLC0415

    path = write_simple(place.folder / "a.nc", days=30, chunks=(2, 4))
    refs = make_references(path)["refs"]
    folder = place.folder / "a.parq"
    made = LazyReferenceMapper.create(
        str(folder), fs=fsspec.filesystem("file"), record_size=4, engine="pyarrow"
    )
    metadata = [key for key in refs if "/.z" in f"/{key}"]
    for key in metadata:
        made[key] = refs[key].encode()
    made.flush()
    made = LazyReferenceMapper(str(folder), fsspec.filesystem("file"), engine="pyarrow")
    for key in refs.keys() - {*metadata, "rain/3.0"}:
        made[key] = refs[key].encode() if isinstance(refs[key], str) else refs[key]
    made.flush()
    dataset = parse(folder)
    rain = dataset.arrays["rain"]
    assert isinstance(rain, VirtualArray)
    assert len(rain.refs) == 14
    found = open_group(write_repository(place, dataset))
    expected = xr.open_dataset(path, engine="h5netcdf").load()
    expected["rain"][6:8] = 0
    np.testing.assert_array_equal(found["rain"].values[:6], expected["rain"].values[:6])
    np.testing.assert_array_equal(found["rain"].values[8:], expected["rain"].values[8:])
    xr.testing.assert_equal(found["time"], expected["time"])
    (folder / "rain" / "refs.0.parq").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"refs\.0\.parq: is damaged"):
        parse(folder)


# -- TIFF


def _tiff(path: Path, values: np.ndarray[Any, Any]) -> Path:
    """Write an uncompressed little-endian TIFF in strips of two rows."""
    height, width = values.shape
    strips = [values[row : row + 2].tobytes() for row in range(0, height, 2)]
    tags = [
        (256, 3, [width]),
        (257, 3, [height]),
        (258, 3, [values.dtype.itemsize * 8]),
        (259, 3, [1]),
        (262, 3, [1]),
        (273, 4, [0] * len(strips)),
        (277, 3, [1]),
        (278, 3, [2]),
        (279, 4, [len(strip) for strip in strips]),
        (284, 3, [1]),
        (339, 3, [1]),
    ]
    directory = 8
    extra_at = directory + 2 + 12 * len(tags) + 4
    data_at = extra_at + 8 * len(strips)
    tags[5] = (273, 4, [data_at + sum(map(len, strips[:number])) for number in range(len(strips))])
    body, extra = struct.pack("<H", len(tags)), b""
    for tag, kind, numbers in tags:
        packed = struct.pack(f"<{len(numbers)}{'HI'[kind - 3]}", *numbers)
        if len(packed) > 4:
            body += struct.pack("<HHII", tag, kind, len(numbers), extra_at + len(extra))
            extra += packed
        else:
            body += struct.pack("<HHI", tag, kind, len(numbers)) + packed.ljust(4, b"\0")
    body += struct.pack("<I", 0)
    path.write_bytes(b"II*\0" + struct.pack("<I", directory) + body + extra + b"".join(strips))
    return path


def test_tiff(place: Place) -> None:
    """TIFF images are parsed by virtual-tiff."""
    pytest.importorskip("virtual_tiff", reason="GEOTIFF IS NOT TESTED: no virtual-tiff here")
    values = np.arange(48, dtype="u2").reshape(8, 6)
    path = _tiff(place.folder / "a.tif", values)
    dataset = parse(path)
    (name,) = dataset.arrays
    session = place.repository().writable_session("main")
    dataset.write(session)
    found = np.asarray(zarr.open_array(session.store, path=name)[...])
    np.testing.assert_array_equal(found.reshape(values.shape), values)
    path.write_bytes(b"II*\0" + bytes(20))
    with pytest.raises(FormatError, match=r"a\.tif: cannot be parsed"):
        parse(path)


def test_any_parser_of_virtualizarr(place: Place) -> None:
    """A VirtualiZarr parser passed by the user gives the same dataset as ours."""
    from virtualizarr.parsers import HDFParser  # noqa: PLC0415

    path = write_rich_netcdf4(place.folder / "a.nc")
    drop = ["letters", "ocean"]
    theirs = parse(path, parser=HDFParser(drop_variables=drop))
    mine = parse(path, drop_variables=drop)
    assert {name: type(array) for name, array in theirs.arrays.items()} == {
        name: type(array) for name, array in mine.arrays.items()
    }
    for name, array in mine.arrays.items():
        their = theirs.arrays[name]
        if isinstance(array, VirtualArray) and isinstance(their, VirtualArray):
            assert array.refs.coords.tolist() == their.refs.coords.tolist()
            assert array.refs.payloads == their.refs.payloads
        elif isinstance(array, LoadedArray) and isinstance(their, LoadedArray):
            np.testing.assert_array_equal(array.values, their.values)

    failing: Callable[..., Any] = HDFParser(group="nowhere")
    with pytest.raises(FormatError, match=r"a\.nc: cannot be parsed by HDFParser"):
        parse(path, parser=failing)
