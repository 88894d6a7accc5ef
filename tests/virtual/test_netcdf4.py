"""NetCDF4 and HDF5: references read the same values as the file."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from icefloe.errors import ErrorKind, FormatError, InvalidInputError, NodeNotFoundError
from icefloe.model.chunk_payload import LastModified
from icefloe.virtual import LoadedArray, VirtualArray, parse
from support.generations import OLDER
from support.netcdf_archives import (
    Place,
    assert_same,
    open_group,
    read_files,
    write_odd_hdf5,
    write_repository,
    write_rich_netcdf4,
    write_simple,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_file_of_the_netcdf_library(place: Place, generation: str) -> None:
    """CF packing, fill values, filters, bounds, scalars, characters and groups are preserved."""
    path = write_rich_netcdf4(place.folder / "a.nc")
    if generation in OLDER:
        session = place.repository(generation, "refused").writable_session("main")
        with pytest.raises(FormatError, match=r"letters.*needs a repository of generation v2"):
            parse(path).write(session)
    dropped = ["letters"] if generation in OLDER else []
    repository = write_repository(place, parse(path, drop_variables=dropped), generation)
    found = open_group(repository)
    assert_same(found, read_files(path).drop_vars(dropped))
    assert found["t2m"].isnull().any()
    assert dropped or found["letters"].dtype == "S5"
    assert_same(open_group(repository, "ocean"), read_files(path, "ocean"))


def test_a_file_of_h5netcdf(place: Place) -> None:
    """Times, labels and attributes as xarray writes them, and partial edge chunks."""
    dataset = xr.Dataset(
        {
            "a": (("time", "site"), np.arange(35.0).reshape(7, 5), {"long_name": "some"}),
            "b": ("time", np.arange(7, dtype="u1")),
            "c": ((), 4.5),
        },
        {
            "time": np.datetime64("2021-05-01", "ns") + np.arange(7) * np.timedelta64(6, "h"),
            "site": ["aa", "b", "ü", "dddd", ""],
        },
    )
    path = place.folder / "b.nc"
    encoding = {"a": {"chunksizes": (3, 2), "zlib": True, "complevel": 1}}
    dataset.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    found = open_group(write_repository(place, parse(path)))
    xr.testing.assert_identical(found.drop_attrs(), read_files(path).drop_attrs())
    assert found["a"].attrs["long_name"] == "some"


def test_an_odd_file_of_h5py(place: Place) -> None:
    """Missing chunks, compact storage, big-endian, boolean and complex values."""
    path = write_odd_hdf5(place.folder / "c.h5")
    dataset = parse(path)
    assert len(dataset.arrays["sparse"].refs) == 1  # type: ignore[union-attr]
    assert len(dataset.arrays["never_written"].refs) == 0  # type: ignore[union-attr]
    assert isinstance(dataset.arrays["compact"], LoadedArray)
    found = open_group(write_repository(place, dataset))
    with h5py.File(path) as file:
        for name in file:
            np.testing.assert_array_equal(found[name].values, file[name][...], err_msg=name)
    assert found.attrs == {"numbers": [1, 2, 3], "empty": "", "texts": ["a", "ü"]}
    assert found["sparse"].values[0, 0] == -1


def test_the_same_as_virtualizarr(place: Place) -> None:
    """Metadata and references equal those of VirtualiZarr's parser."""
    from obspec_utils.registry import ObjectStoreRegistry  # noqa: PLC0415
    from obstore.store import LocalStore  # noqa: PLC0415
    from virtualizarr.parsers import HDFParser  # noqa: PLC0415

    path = write_simple(place.folder / "a.nc", days=5, chunks=(2, 3), fill=-9.0)
    theirs = HDFParser()(
        url=path.as_uri(), registry=ObjectStoreRegistry({"file://": LocalStore()})
    )._group
    mine = parse(path, loadable_variables=())
    assert set(mine.arrays) == set(theirs.arrays)
    assert mine.attributes == theirs.metadata.attributes
    for name, array in mine.arrays.items():
        assert isinstance(array, VirtualArray)
        their = theirs.arrays[name]
        assert array.shape == their.shape
        grid: Any = their.metadata.to_dict()["chunk_grid"]
        assert array.chunk_shape == tuple(grid["configuration"]["chunk_shape"])
        assert array.attributes == their.metadata.attributes
        assert array.dimension_names == their.metadata.dimension_names
        assert [codec["name"] for codec in array.metadata["codecs"]] == [
            codec.to_dict()["name"] for codec in their.metadata.codecs
        ]
        manifest = their.manifest
        np.testing.assert_array_equal(array.refs.payloads.offset, manifest._offsets.reshape(-1))
        np.testing.assert_array_equal(array.refs.payloads.length, manifest._lengths.reshape(-1))
        assert list(array.refs.payloads.locations) == [path.as_uri()]


def test_what_is_loaded(tmp_path: Path) -> None:
    """By default coordinates, their bounds and scalars are loaded."""
    path = write_rich_netcdf4(tmp_path / "a.nc")

    def loaded(**options: Any) -> set[str]:
        arrays = parse(path, **options).arrays
        return {name for name, array in arrays.items() if isinstance(array, LoadedArray)}

    assert loaded() == {"time", "time_bnds", "lat", "lon", "crs"}
    assert loaded(loadable_variables=["rain", "/lat"]) == {"rain", "lat"}
    assert loaded(loadable_variables=[]) == set()
    assert "mask" in loaded(inline_below_bytes=200)
    assert "t2m" not in loaded(inline_below_bytes=200)


def test_groups_and_dropped_variables(tmp_path: Path) -> None:
    """A group can be the root, and any path can be dropped."""
    path = write_rich_netcdf4(tmp_path / "a.nc")
    below = parse(path, group="/ocean/")
    assert list(below.arrays) == ["sst"]
    assert below.attributes == {"description": "below"}
    dropped = parse(path, drop_variables=["ocean", "rain"])
    assert not {"ocean/sst", "rain"} & set(dropped.arrays)
    assert set(dropped.groups) == {""}
    with pytest.raises(NodeNotFoundError, match=r"a\.nc: there is no group 'sea'"):
        parse(path, group="sea")


def test_results_pickle_and_remember_the_file(tmp_path: Path) -> None:
    """Datasets pickle; references have the modification time as checksum."""
    path = write_rich_netcdf4(tmp_path / "a.nc")
    dataset = parse(path)
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert repr(again) == repr(dataset)
    assert again.sources == dataset.sources
    first, second = dataset.arrays["t2m"], again.arrays["t2m"]
    assert isinstance(first, VirtualArray)
    assert isinstance(second, VirtualArray)
    assert first.refs.payloads == second.refs.payloads
    changed = math.ceil(path.stat().st_mtime)
    assert dataset.sources[0].size_bytes == path.stat().st_size
    assert {ref.checksum for ref in first.refs.payloads} == {LastModified(changed)}  # type: ignore[union-attr]
    plain = parse(path, checksum=None).arrays["t2m"]
    assert isinstance(plain, VirtualArray)
    assert {ref.checksum for ref in plain.refs.payloads} == {None}  # type: ignore[union-attr]


def _parse_error(path: Path, make: Any) -> InvalidInputError:
    with h5py.File(path, "w") as file:
        make(file)
        file["fine"] = [1, 2]
    with pytest.raises(InvalidInputError) as caught:
        parse(path)
    assert caught.value.kind is ErrorKind.UNSUPPORTED_VARIABLE
    assert path.name in str(caught.value)
    assert "drop_variables=['bad']" in str(caught.value)
    assert list(parse(path, drop_variables=["bad"]).arrays) == ["fine"]
    return caught.value


def test_types_that_cannot_be_stored_name_their_variable(tmp_path: Path) -> None:
    """Compound, variable-length and empty variables: the error suggests drop_variables."""

    def compound(file: h5py.File) -> None:
        file["bad"] = np.zeros(2, [("a", "i4"), ("b", "f4")])

    def vectors(file: h5py.File) -> None:
        file.create_dataset("bad", (2,), h5py.vlen_dtype(np.int32))

    def nothing(file: h5py.File) -> None:
        file["bad"] = h5py.Empty("f4")

    assert "compound (a, b)" in str(_parse_error(tmp_path / "1.h5", compound))
    assert "variable length" in str(_parse_error(tmp_path / "2.h5", vectors))
    assert "no shape" in str(_parse_error(tmp_path / "3.h5", nothing))


def test_values_in_other_places_are_refused(tmp_path: Path) -> None:
    """Virtual datasets, external files and chunks that skip filters are refused."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(4)

    def virtual(file: h5py.File) -> None:
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "x", (4,))
        file.create_virtual_dataset("bad", layout)

    def external(file: h5py.File) -> None:
        file.create_dataset("bad", (4,), "i4", external=[(str(tmp_path / "raw"), 0, 16)])

    def skipped(file: h5py.File) -> None:
        bad = file.create_dataset("bad", (4,), "i4", chunks=(4,), compression="gzip")
        bad.id.write_direct_chunk((0,), np.arange(4, dtype="i4").tobytes(), filter_mask=1)

    assert "other files" in str(_parse_error(tmp_path / "1.h5", virtual))
    assert "other files" in str(_parse_error(tmp_path / "2.h5", external))
    assert "skip filters" in str(_parse_error(tmp_path / "3.h5", skipped))


def test_a_filter_without_a_codec(tmp_path: Path) -> None:
    """The error names the filter."""

    def packed(file: h5py.File) -> None:
        file.create_dataset("bad", data=np.arange(99), chunks=(50,), scaleoffset=8)

    assert "HDF5 filter 6 (scaleoffset)" in str(_parse_error(tmp_path / "1.h5", packed))


def test_strings_of_variable_length_are_loaded_or_refused(place: Place) -> None:
    """They are in a heap and cannot be referenced, but can be loaded."""
    path = place.folder / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("site", 3)
        file.createVariable("code", str, ("site",))[:] = np.array(["a", "üb", ""], object)
    with pytest.raises(
        InvalidInputError, match=r"code: variable-length strings .* loadable_variables=\['code'"
    ):
        parse(path)
    dataset = parse(path, loadable_variables=["code"])
    assert open_group(write_repository(place, dataset))["code"].values.tolist() == ["a", "üb", ""]


def test_two_dimensional_scales_and_unnamed_dimensions(tmp_path: Path) -> None:
    """Coordinates with two dimensions; unnamed dimensions are named by length."""
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", 3)
        file.createDimension("level", 2)
        file.createVariable("level", "f4", ("time", "level"))[:] = np.ones((3, 2))
        file.createVariable("time", "f4", ("time", "level"))[:] = np.ones((3, 2))
    arrays = parse(path).arrays
    assert arrays["level"].dimension_names == ("time", "level")
    assert arrays["time"].dimension_names == ("time", "level")
    with h5py.File(tmp_path / "b.h5", "w") as plain:
        plain["a"] = np.zeros((2, 3, 2))
        plain["b"] = np.zeros((3, 4))
    arrays = parse(tmp_path / "b.h5").arrays
    assert arrays["a"].dimension_names == ("phony_dim_0", "phony_dim_1", "phony_dim_2")
    assert arrays["b"].dimension_names == ("phony_dim_1", "phony_dim_3")


def test_links_into_other_files_are_left_out(tmp_path: Path) -> None:
    """External links would have offsets in other files."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(4)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"] = np.arange(3)
        file["outside"] = h5py.ExternalLink("other.h5", "/x")
        file["nowhere"] = h5py.SoftLink("/z")
        file["loop/self"] = h5py.SoftLink("/loop")
        file["loop/again"] = file["loop"]
    assert list(parse(tmp_path / "a.h5").arrays) == ["y"]


def test_a_file_that_starts_after_something_else(place: Place) -> None:
    """Offsets count from the start of the file, including the user block."""
    path = place.folder / "a.h5"
    with h5py.File(path, "w", userblock_size=1024) as file:
        file.create_dataset("a", data=np.arange(100.0), chunks=(30,))
        file["b"] = np.arange(50)
    found = open_group(write_repository(place, parse(path)))
    np.testing.assert_array_equal(found["a"], np.arange(100.0))
    np.testing.assert_array_equal(found["b"], np.arange(50))


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_file_that_is_cut_off(tmp_path: Path, kept: float) -> None:
    """A truncated file is refused with its name."""
    path = write_rich_netcdf4(tmp_path / "a.nc")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(FormatError, match=r"a\.nc: is damaged or truncated"):
        parse(path)


def test_a_damaged_file(tmp_path: Path) -> None:
    """Corrupted files give a dataset or an error with the file name."""
    path = write_rich_netcdf4(tmp_path / "a.nc")
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(25):
        damaged = bytearray(data)
        for at in rng.integers(8, 6000, 12).tolist():
            damaged[at] = int(rng.integers(0, 256))
        path.write_bytes(damaged)
        try:
            parse(path)
        except (FormatError, InvalidInputError) as error:
            assert "a.nc" in str(error)  # noqa: PT017 - or no error at all


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_a_file_that_is_open(place: Place, engine: Any) -> None:
    """A file that xarray has open can be parsed in the same process."""
    path = write_rich_netcdf4(place.folder / "a.nc")
    with xr.open_dataset(path, engine=engine) as open_one:
        open_one["t2m"].load()
        assert parse(path).num_refs > 0
