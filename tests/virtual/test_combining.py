"""Combined files: joined along dimensions, or refused with a list of all disagreements."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import cftime
import h5netcdf
import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, FilesDisagreeError, InvalidInputError
from icefloe.virtual import LoadedArray, VirtualArray, combine, parse
from icefloe.virtual.cf_time import (
    convert_times,
    format_coordinate,
    parse_time_units,
    reconcile_units,
)
from support.generations import OLDER
from support.netcdf_archives import (
    Place,
    assert_same,
    open_group,
    read_files,
    write_repository,
    write_rich_netcdf4,
    write_simple,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")


def disagreements(files: Sequence[Path], **options: Any) -> FilesDisagreeError:
    with pytest.raises(FilesDisagreeError) as caught:
        combine([parse(file) for file in files], dims="time", **options)
    assert caught.value.kind is ErrorKind.FILES_DISAGREE
    assert pickle.loads(pickle.dumps(caught.value)).disagreements == caught.value.disagreements  # noqa: S301
    return caught.value


def pair(folder: Path, **different: Any) -> list[Path]:
    return [
        write_simple(folder / "a.nc"),
        write_simple(folder / "b.nc", **{"first": 2, **different}),
    ]


# -- joined


def test_files_along_time(place: Place, generation: str) -> None:
    """Groups, bounds and packed values equal xarray's own concatenation."""
    paths = [
        write_rich_netcdf4(place.folder / f"{number}.nc", first_day=number * 4, days=days)
        for number, days in enumerate([4, 4, 3])
    ]
    # The older generations have no data type for them.
    dropped = ["letters"] if generation in OLDER else []
    dataset = combine([parse(path, drop_variables=dropped) for path in paths], dims=("time",))
    assert dataset.lengths()["time"] == 11
    assert len(dataset.sources) == 3
    repository = write_repository(place, dataset, generation)
    assert_same(open_group(repository), read_files(paths).drop_vars(dropped))
    found = open_group(repository, "ocean")
    np.testing.assert_array_equal(found["sst"], read_files(paths, "ocean")["sst"])


def test_times_that_count_from_different_days(place: Place) -> None:
    """Files with different time units: times and their bounds are converted."""
    paths = [
        write_rich_netcdf4(place.folder / "0.nc", days=4),
        write_rich_netcdf4(place.folder / "1.nc", days=4, since="days since 2020-01-05"),
        write_rich_netcdf4(place.folder / "2.nc", days=4, since="days since 2020-01-09 06:00:00"),
    ]
    found = open_group(write_repository(place, combine([parse(path) for path in paths], "time")))
    assert found["time"].values[[0, 4, 8, 11]].astype("M8[h]").tolist() == [
        np.datetime64(text, "h").item()
        for text in ("2020-01-01T00", "2020-01-05T00", "2020-01-09T06", "2020-01-12T06")
    ]
    bounds = found["time_bnds"].values
    assert (bounds[:, 0] == found["time"].values).all()
    assert (np.diff(bounds, axis=1) == np.timedelta64(1, "D")).all()


def test_whole_numbers_of_time_stay_exact(tmp_path: Path) -> None:
    """Units get finer if needed; the data type of the first file is kept if values fit."""
    one = write_simple(tmp_path / "a.nc", times=np.array([0, 1], "i4"))
    two = write_simple(
        tmp_path / "b.nc", times=np.array([54, 60], "i4"), units="hours since 2020-01-01"
    )
    time = combine([parse(one), parse(two)], "time").arrays["time"]
    assert isinstance(time, LoadedArray)
    assert time.attributes["units"] == "hours since 2020-01-01"
    assert time.values.tolist() == [0, 24, 54, 60]
    assert time.values.dtype == "i4"


def test_attributes_that_may_differ(tmp_path: Path) -> None:
    """They are dropped, taken from the first file, or refused."""
    datasets = [parse(path) for path in pair(tmp_path, attributes={"comment": "new"})]
    assert combine(datasets, "time").attributes == {"title": "rain"}
    assert combine(datasets, "time", combine_attrs="override").attributes["history"] == "from 0"
    error = disagreements(pair(tmp_path), combine_attrs="identical")
    assert "b.nc: has attribute history = 'from 2', but 'from 0' in" in str(error)


def test_months_in_one_piece_each(place: Place) -> None:
    """Contiguous arrays of 30, 28 and 31 days are split to a common chunk length."""
    paths, first = [], 0
    for number, days in enumerate([30, 28, 31]):
        paths.append(
            write_simple(place.folder / f"{number}.nc", first=first, days=days, zlib=False)
        )
        first += days
    dataset = combine([parse(path) for path in paths], "time")
    rain = dataset.arrays["rain"]
    assert isinstance(rain, VirtualArray)
    assert rain.chunk_shape == (1, 4)
    assert len(rain.refs) == 89
    assert_same(open_group(write_repository(place, dataset)), read_files(paths))


def tiles(folder: Path) -> list[list[Path]]:
    return [
        [
            write_simple(folder / f"{t}{x}.nc", first=t * 2, x=np.arange(4.0) + x * 4, name="rain")
            for x in range(3)
        ]
        for t in range(2)
    ]


def test_along_two_dimensions(place: Place) -> None:
    """The order is that of nested lists, or of coordinates."""
    paths = tiles(place.folder)
    nested = combine([[parse(path) for path in row] for row in paths], dims=("time", "x"))
    shuffled = [parse(path) for row in paths for path in row]
    shuffled.reverse()
    sorted_out = combine(shuffled, dims=("time", "x"), order="coordinates")
    for dataset in (nested, sorted_out):
        rain = dataset.arrays["rain"]
        assert isinstance(rain, VirtualArray)
        assert rain.shape == (4, 12)
        assert rain.refs.coords.tolist() == [[t, x] for t in range(2) for x in range(3)]
    expected = xr.combine_nested(
        [[xr.open_dataset(path, engine="h5netcdf") for path in row] for row in paths],
        ["time", "x"],
        combine_attrs="drop_conflicts",
    )
    assert_same(open_group(write_repository(place, sorted_out)), expected.load())


def test_a_grid_of_files_with_a_gap(tmp_path: Path) -> None:
    """Errors name the missing file, two files in one position, and lists that are not nested."""
    flat = [parse(path) for row in tiles(tmp_path) for path in row]
    with pytest.raises(InvalidInputError, match=r"5 files, .* a grid of 2 x 3 .* time 2, x 4.0"):
        combine([*flat[:4], flat[5]], ("time", "x"), order="coordinates")
    with pytest.raises(
        FilesDisagreeError, match=r"00\.nc: starts at the same position along time, x"
    ):
        combine([*flat, flat[0]], ("time", "x"), order="coordinates")
    with pytest.raises(InvalidInputError, match="pass nested lists, or order='coordinates'"):
        combine(flat, ("time", "x"))


def test_tiles_of_a_row_have_the_same_times(tmp_path: Path) -> None:
    """Arrays without a dimension must be equal along it."""
    one = write_simple(tmp_path / "a.nc")
    two = write_simple(tmp_path / "b.nc", first=1, x=np.arange(4.0) + 4)
    with pytest.raises(FilesDisagreeError, match=r"b\.nc: time: has other values"):
        combine([[parse(one), parse(two)]], ("time", "x"))


# -- refused: each kind of disagreement


def only(error: FilesDisagreeError, variable: str, aspect: str) -> str:
    (found,) = error.disagreements
    assert (found.variable, found.aspect) == (variable, aspect)
    assert found.file.endswith("b.nc")
    assert str(found) in str(error)
    return str(found.text)


def test_variables(tmp_path: Path) -> None:
    """A missing and an extra variable."""
    error = disagreements(
        [write_simple(tmp_path / "a.nc"), write_simple(tmp_path / "b.nc", name="snow")]
    )
    texts = [problem.text for problem in error.disagreements]
    assert texts[0].startswith("has no rain, unlike file://")
    assert "has snow, unlike file://" in texts[1]
    assert "drop_variables=['snow']" in texts[1]


def test_dtype(tmp_path: Path) -> None:
    """Different data types."""
    error = disagreements(pair(tmp_path, dtype="f8"))
    assert "has dtype float64, but float32 in file://" in str(error)
    assert {problem.aspect for problem in error.disagreements} == {"dtype"}


def test_codecs(tmp_path: Path) -> None:
    """Different compression."""
    paths = pair(tmp_path)
    with h5py.File(paths[1], "r+") as file:
        values = file["rain"][...]
        scales = [file["rain"].dims[axis][0] for axis in range(2)]
        attributes = dict(file["rain"].attrs)
        del file["rain"]
        rain = file.create_dataset(
            "rain", data=values, chunks=(2, 4), compression="gzip", compression_opts=9
        )
        rain.attrs["units"] = attributes["units"]
        for axis, scale in enumerate(scales):
            rain.dims[axis].attach_scale(scale)
    text = only(disagreements(paths), "rain", "codecs")
    assert "numcodecs.zlib(level=9), but" in text
    assert "numcodecs.zlib(level=4)" in text


def test_chunk_shape(tmp_path: Path) -> None:
    """Different chunk grids."""
    text = only(disagreements(pair(tmp_path, chunks=(1, 4))), "rain", "chunks")
    assert text.startswith("has chunks of 1 x 4, but 2 x 4 in file://")


def test_fill_value(tmp_path: Path) -> None:
    """In Zarr metadata and as an attribute."""
    error = disagreements(pair(tmp_path, fill=-1.0))
    assert {problem.aspect for problem in error.disagreements} == {"fill value", "attribute"}
    assert "has fill value -1.0, but 0.0 in" in str(error)


def test_dimension_names(tmp_path: Path) -> None:
    """Different dimensions."""
    paths = pair(tmp_path)
    dataset = xr.load_dataset(paths[1], engine="h5netcdf").rename(x="lon")
    dataset.to_netcdf(paths[1], engine="h5netcdf")
    error = disagreements(paths)
    assert "rain: has dimensions (time, lon), but (time, x) in" in str(error)


def test_units_and_other_attributes_with_a_meaning(tmp_path: Path) -> None:
    """Scales, units and calendars must be equal; titles may differ."""
    attributes = {"units": "m", "scale_factor": 0.1, "comment": "may differ"}
    error = disagreements(pair(tmp_path, attributes=attributes))
    assert [problem.text.split(" in file")[0] for problem in error.disagreements] == [
        "has attribute scale_factor = 0.1, but None",
        "has attribute units = 'm', but 'mm'",
    ]


def test_lengths_and_values_of_other_coordinates(tmp_path: Path) -> None:
    """Coordinates of the other dimensions must be equal."""
    error = disagreements(pair(tmp_path, x=np.array([0.0, 1.0, 2.5, 3.0])))
    assert only(error, "x", "values").startswith(
        "differs in 1 of 4 values, first at [2]: 2.5, but 2.0"
    )
    paths = pair(tmp_path)
    xr.load_dataset(paths[1], engine="h5netcdf").isel(x=slice(3)).to_netcdf(
        paths[1], engine="h5netcdf", encoding={"rain": {"chunksizes": (2, 3)}}
    )
    error = disagreements(paths)
    assert "rain: has 3 steps along x, but 4 in" in str(error)
    assert "x: has 3 steps along x, but 4 in" in str(error)


def test_overlapping_and_unsorted_times(tmp_path: Path) -> None:
    """Errors name the files and their ranges."""
    text = only(disagreements(pair(tmp_path, first=1)), "time", "overlap")
    assert text.startswith("goes from 2020-01-02 to 2020-01-03, and overlaps 2020-01-01 to ")
    later = [write_simple(tmp_path / "a.nc", first=8), write_simple(tmp_path / "b.nc", first=2)]
    text = only(disagreements(later), "time", "order")
    assert "goes from 2020-01-03 to 2020-01-04, before 2020-01-09 to 2020-01-10 of file://" in text
    assert "order='coordinates'" in text
    time = combine([parse(path) for path in later], "time", order="coordinates").arrays["time"]
    assert isinstance(time, LoadedArray)
    assert time.values.tolist() == [2, 3, 8, 9]
    within = pair(tmp_path, times=np.array([5, 4]))
    assert "is not sorted" in only(disagreements(within), "time", "order")


def test_a_file_that_ends_within_a_chunk(tmp_path: Path) -> None:
    """Only the last file may end within a chunk."""
    paths = [
        write_simple(tmp_path / "b.nc", days=3),
        write_simple(tmp_path / "c.nc", first=3, days=3),
    ]
    text = only(disagreements(paths), "rain", "chunks")
    assert (
        "has 3 steps along time, not a multiple of its chunk length 2: only the last file" in text
    )


def test_calendars(tmp_path: Path) -> None:
    """Days of different calendars cannot be compared."""
    paths = pair(tmp_path)
    with h5py.File(paths[1], "r+") as file:
        file["time"].attrs["calendar"] = "noleap"
    error = disagreements(paths)
    assert "time: has calendar 'noleap', but " in str(error)


def test_all_at_once(tmp_path: Path) -> None:
    """All files are checked, and equal problems are listed once."""
    paths = [write_simple(tmp_path / "a.nc")]
    paths += [
        write_simple(tmp_path / f"{number}.nc", first=2 + 2 * number, dtype="f8")
        for number in range(5)
    ]
    paths.append(
        write_simple(tmp_path / "z.nc", first=20, chunks=(1, 2), attributes={"units": "m"})
    )
    error = disagreements(paths)
    assert len({problem.file for problem in error.disagreements}) == 6
    message = str(error)
    assert message.startswith("combining: 6 files disagree, and nothing was written:")
    assert message.count("float64") == 1
    assert "(and 4 more files)" in message
    assert "z.nc: rain: has chunks of 1 x 2" in message
    assert "z.nc: rain: has attribute units" in message


def test_what_cannot_be_combined(tmp_path: Path) -> None:
    """An empty list, other objects, missing dimensions."""
    dataset = parse(write_simple(tmp_path / "a.nc"))
    with pytest.raises(InvalidInputError, match="at least one dataset"):
        combine([], "time")
    with pytest.raises(InvalidInputError, match=r"a\.nc: no variable has the dimension 'day'"):
        combine([dataset], "day")
    with pytest.raises(InvalidInputError, match="expected datasets returned by parse, got a int"):
        combine([dataset, 3], "time")
    with pytest.raises(InvalidInputError, match="distinct dimension names"):
        combine([dataset], ("time", "time"))
    assert combine([dataset], "time") is dataset


def test_loaded_in_one_file_only(tmp_path: Path) -> None:
    """The error suggests loadable_variables."""
    paths = pair(tmp_path)
    with pytest.raises(FilesDisagreeError, match=r"rain: is loaded .*loadable_variab"):
        combine([parse(paths[0]), parse(paths[1], inline_below_bytes=500)], "time")


# -- properties


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 3))
def test_references_keep_their_order(lengths: list[int], chunk: int) -> None:
    """Chunk `i` of the result is the chunk of the file with those steps."""
    from icefloe.model.manifest import ArrayManifest, ChunkPayloads  # noqa: PLC0415
    from icefloe.model.strings import Strings  # noqa: PLC0415
    from icefloe.virtual import SourceFile, VirtualDataset  # noqa: PLC0415

    datasets = []
    for number, chunks in enumerate(lengths):
        coords = np.stack([np.repeat(np.arange(chunks), 2), np.tile([0, 1], chunks)], 1)
        payloads = ChunkPayloads.make_virtual(
            np.zeros(2 * chunks, np.int32),
            Strings.of([f"s3://b/{number}"]),
            np.arange(2 * chunks, dtype=np.uint64),
            np.full(2 * chunks, 7, np.uint64),
        )
        metadata = {
            "shape": [chunks * chunk, 4],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk, 2]}},
            "data_type": "int8",
            "codecs": [{"name": "bytes"}, {"name": "zstd"}],
            "fill_value": 0,
            "dimension_names": ["t", "x"],
            "attributes": {},
        }
        array = VirtualArray(metadata, ArrayManifest(coords.astype(np.uint32), payloads))
        datasets.append(VirtualDataset((SourceFile(f"s3://b/{number}"),), {"": {}}, {"a": array}))
    joined = combine(datasets, "t").arrays["a"]
    assert isinstance(joined, VirtualArray)
    assert joined.shape == (sum(lengths) * chunk, 4)
    expected = [
        (f"s3://b/{number}", offset)
        for number, chunks in enumerate(lengths)
        for offset in range(2 * chunks)
    ]
    assert [(ref.location, ref.offset) for ref in joined.refs.payloads] == expected  # type: ignore[union-attr]
    rows = joined.refs.coords.tolist()
    assert all(before < after for before, after in pairwise(rows))


CALENDARS = ("standard", "proleptic_gregorian", "julian", "noleap", "all_leap", "360_day")
# The standard calendar has no days from October 5 to 14, 1582.
DATES = st.tuples(st.integers(1, 2500), st.integers(1, 12), st.integers(1, 28)).filter(
    lambda date: not (1582, 10, 5) <= date <= (1582, 10, 14)
)


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(CALENDARS),
    DATES,
    DATES,
    st.sampled_from(["days", "hours", "minutes", "seconds"]),
    st.sampled_from(["days", "hours", "minutes", "seconds"]),
    st.integers(-10_000, 10_000),
)
def test_times_are_those_of_cftime(  # noqa: PLR0917 - drawn by name
    calendar: str,
    one: tuple[int, int, int],
    other: tuple[int, int, int],
    unit: str,
    other_unit: str,
    value: int,
) -> None:
    """Converted times agree with cftime in every calendar."""
    texts = [
        "{} since {:04d}-{:02d}-{:02d}".format(name, *date)
        for name, date in ((unit, one), (other_unit, other))
    ]
    first, second = (parse_time_units({"units": text, "calendar": calendar}) for text in texts)
    assert first is not None
    assert second is not None
    exact = convert_times(np.array([value]), first, second)
    seconds = parse_time_units({"units": f"seconds since {second.reference}", "calendar": calendar})
    assert seconds is not None
    always = convert_times(np.array([value]), first, seconds)
    assert always is not None
    dates = cftime.num2date([value], texts[0], calendar, only_use_cftime_datetimes=True)
    expected = cftime.date2num(dates, seconds.text, calendar)
    assert always.tolist() == expected.tolist()
    if exact is not None:
        assert exact.tolist() == cftime.date2num(dates, texts[1], calendar).tolist()


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(-500, 500), min_size=1, max_size=4), st.integers(0, 400)),
        min_size=1,
        max_size=4,
    )
)
def test_common_units_change_no_time(parts: list[tuple[list[int], int]]) -> None:
    """Conversion to common units preserves all times."""
    units = [
        parse_time_units({"units": f"hours since 2000-01-01 {hours % 24:02d}:{hours % 60:02d}"})
        for _, hours in parts
    ]
    known = [(np.array(values), one) for (values, _), one in zip(parts, units, strict=True) if one]
    found = reconcile_units(known)
    assert found is not None
    wanted, converted = found
    for (before, given_units), after in zip(known, converted, strict=True):
        first = before.astype(object) * given_units.step_ns + given_units.epoch_ns
        second = after.astype(object) * wanted.step_ns + wanted.epoch_ns
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "units",
    ["m", "days since yesterday", "months since 2000-01-01", "days since 2000-13-01", "days", 3],
)
def test_units_that_are_not_of_time(units: Any) -> None:
    """They are compared as text."""
    assert parse_time_units({"units": units}) is None


@pytest.mark.parametrize(
    "attribute, dtype", [(-999, "i4"), (-999, "i8"), ("AAAAAAA4j8A=", "f4"), (-999.0, "f8")]
)
def test_missing_times_do_not_change(attribute: Any, dtype: str) -> None:
    """Conversion changes times alone; a time that would become a missing value is refused."""
    days = parse_time_units({"units": "days since 2000-01-02", "_FillValue": attribute})
    hours = parse_time_units({"units": "hours since 2000-01-01", "_FillValue": attribute})
    assert days is not None
    assert hours is not None
    converted = convert_times(np.array([1, -999, 3], dtype), days, hours)
    assert converted is not None
    assert converted.tolist() == [48, -999, 96]
    assert convert_times(np.array([-1023], dtype), hours, hours) is not None
    earlier = parse_time_units({"units": "hours since 2000-01-02", "_FillValue": attribute})
    assert earlier is not None
    assert convert_times(np.array([-1023], dtype), earlier, hours) is None
    coarse = convert_times(np.array([24, -999], dtype), hours, days)
    assert coarse is not None
    assert coarse.tolist() == [0, -999]


def test_missing_times_that_do_not_fit() -> None:
    """Converted integers are signed; a larger number for missing times is refused."""
    missing = 2**64 - 1
    days = parse_time_units({"units": "days since 2000-01-02", "_FillValue": missing})
    hours = parse_time_units({"units": "hours since 2000-01-01", "_FillValue": missing})
    assert days is not None
    assert hours is not None
    assert convert_times(np.array([1, missing], "u8"), days, hours) is None
    converted = convert_times(np.array([1, 2], "u8"), days, hours)
    assert converted is not None
    assert converted.tolist() == [48, 72]


def test_missing_times_in_files_of_different_units(tmp_path: Path) -> None:
    """They stay missing in the combined dataset, also if it needs a larger data type."""
    paths = [tmp_path / "a.nc", tmp_path / "b.nc"]
    units = ["milliseconds since 2020-01-01", "milliseconds since 2020-06-01"]
    for number, path in enumerate(paths):
        with h5netcdf.File(path, "w") as file:
            file.dimensions = {"step": 3}
            times = np.array([1, -999, 2**31 - 1], "i4")
            seen = file.create_variable("seen", ("step",), "i4", data=times, fillvalue=-999)
            seen.attrs["units"] = units[number]
    combined = combine([parse(path, loadable_variables=["seen"]) for path in paths], "step")
    seen = combined.arrays["seen"]
    assert isinstance(seen, LoadedArray)
    assert seen.attributes["_FillValue"] == -999
    offset = 152 * 86_400_000
    last = 2**31 - 1
    assert seen.values.tolist() == [1, -999, last, offset + 1, -999, offset + last]


def test_the_two_calendars_since_1582() -> None:
    """The two calendars are equal since the reform, and not before."""
    standard = parse_time_units({"units": "days since 1600-01-01"})
    proleptic = parse_time_units(
        {"units": "days since 1600-01-02", "calendar": "proleptic_gregorian"}
    )
    assert standard is not None
    assert proleptic is not None
    found = convert_times(np.array([5, 9]), standard, proleptic)
    assert found is not None
    assert found.tolist() == [4, 8]
    assert convert_times(np.array([-10_000, 9]), standard, proleptic) is None


def test_zones_and_ways_to_write_a_reference() -> None:
    """Different spellings of the same time."""
    texts = [
        "hours since 2000-01-01 00:00:00",
        "hours since 2000-1-1",
        "hour since 2000-01-01T00:00:00Z",
        "h since 2000-01-01 00:00:00.0 UTC",
        "hours since 2000-01-01 01:30 +01:30",
        "hours since 1999-12-31 19:00:00 -5:00",
    ]
    found = {
        units.epoch_ns
        for units in map(parse_time_units, ({"units": text} for text in texts))
        if units
    }
    assert len(found) == 1


@given(
    value=st.integers(-400_000, 400_000),
    unit=st.sampled_from(["days", "hours", "seconds"]),
    calendar=st.sampled_from(
        ["standard", "proleptic_gregorian", "julian", "noleap", "all_leap", "360_day"]
    ),
)
def test_messages_show_dates(value: int, unit: str, calendar: str) -> None:
    """In every calendar whose dates can be computed; otherwise the value with its units."""
    units = f"{unit} since 2000-02-28 06:00"
    text = format_coordinate(np.int64(value), {"units": units, "calendar": calendar})
    found = cftime.num2date(value, units, calendar, only_use_cftime_datetimes=True)
    is_julian = calendar == "standard" and (found.year, found.month, found.day) < (1582, 10, 15)
    if calendar == "julian" or is_julian or not 1 <= found.year <= 9999:
        assert text in {f"{value} {units}", str(found)[:10]}
    else:
        assert text == str(found).removesuffix(" 00:00:00")


def test_messages_show_other_values_as_they_are() -> None:
    assert format_coordinate(np.float32(1.5), {"units": "K"}) == "1.5"
    assert format_coordinate(np.float64("nan"), {"units": "days since 2000-01-01"}) == "nan"
    times = {"units": "days since 2000-01-01", "calendar": "noleap"}
    assert format_coordinate(np.float64(59.5), times) == "2000-03-01 12:00:00"
    assert format_coordinate(np.str_("a"), times) == "a"
