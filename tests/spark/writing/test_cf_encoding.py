"""Columns become stored values that are read back as what they were, or are refused."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr

from icefloe.errors import InvalidInputError
from icefloe.spark.reading.cf_decoding import Coding
from icefloe.spark.writing.cf_encoding import encode, require_writable
from support.rows_in_memory import write_table
from support.spark_tables import commit, rows

if TYPE_CHECKING:
    from icefloe.repository import Repository

NAN = float("nan")
DAYS = {"units": "days since 2000-01-01"}
PACKED = {"scale_factor": 0.001, "_FillValue": -1}


def written(dtype: str, attributes: dict[str, Any], values: list[Any]) -> list[Any]:
    """Store values, and read them back."""
    coding = Coding.from_attributes("x", np.dtype(dtype), attributes)
    stored = encode(coding, pa.array(values, coding.type))
    assert stored.dtype == coding.dtype
    back: list[Any] = coding.decode(stored, nan_as_null=True).to_pylist()
    return back


def at(*parts: int) -> datetime:
    return datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001 - as CF times are


@pytest.mark.parametrize(
    "dtype, attributes, values",
    [
        ("i2", PACKED, [0.5, None, 32.767]),
        ("i2", {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -9}, [250.12, None]),
        ("i1", {"_Unsigned": "true", "_FillValue": -1}, [200, None, 0]),
        ("f4", {"scale_factor": 0.5}, [0.25, None]),
        ("f8", {"_FillValue": -999.0}, [1.5, None]),
        ("u8", {}, [2**64 - 1]),
        ("M8[s]", {}, [at(2020, 1, 1, 12), None]),
        ("i4", DAYS, [at(2020, 2, 29), at(1999, 12, 31)]),
        ("f8", DAYS, [at(2020, 2, 29, 12, 30), None]),
        ("i8", {"_FillValue": 2**63 - 1}, [2**63 - 2, None]),
        ("S3", {}, [b"abc", b""]),
        ("<U3", {}, ["äbc"]),
    ],
    ids=str,
)
def test_what_fits(dtype: str, attributes: dict[str, Any], values: list[Any]) -> None:
    back = written(dtype, attributes, values)
    assert back == [pytest.approx(value) if isinstance(value, float) else value for value in values]


@pytest.mark.parametrize(
    "dtype, attributes, value, problem",
    [
        ("i2", PACKED, 100.0, r"value 100\.0, .*-31\.072.* int16 with .*'scale_factor': 0\.001"),
        ("i2", PACKED, -0.001, "value -0.001.*read as nan"),
        ("i2", {"scale_factor": 0.001}, NAN, "'x' has NaN.*no _FillValue"),
        ("i1", {"_Unsigned": "true"}, 300, "value 300.*read as 44"),
        ("f2", {}, 1e30, "read as inf .*float16"),
        ("u1", {}, 300, "outside 0 to 255"),
        ("i4", {"_FillValue": 7}, 7, "the value 7, which represents missing"),
        ("i4", {"missing_value": [7, 8]}, 8, "the value 8, which represents missing"),
        ("i4", {}, None, "'x' has nulls.*df.fillna"),
        ("bool", {}, None, "'x' has nulls"),
        ("O", {}, None, "'x' has nulls"),
        ("S3", {}, b"abcd", "read as b'abc'"),
        ("<U3", {}, "abcd", "read as abc"),
        ("M8[D]", {}, at(2020, 1, 1, 12), "datetime64"),
        ("i4", DAYS, at(2020, 1, 1, 12), "cannot represent exactly.*date_trunc"),
        ("i2", {"units": "seconds since 1970-01-01"}, at(2020, 1, 1), "cannot represent exactly"),
        ("f4", {"units": "seconds since 1900-01-01"}, at(2020, 1, 1, 0, 0, 1), "cannot represent"),
    ],
    ids=str,
)
def test_what_would_be_read_as_something_else(
    dtype: str, attributes: dict[str, Any], value: Any, problem: str
) -> None:
    """Nothing wraps around, is cut off, or turns into what means missing."""
    with pytest.raises(InvalidInputError, match=problem):
        written(dtype, attributes, [value])


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
@pytest.mark.parametrize("stored", [[1, None], [None]])
def test_missing_times(calendar: str, stored: list[int | None]) -> None:
    """They are null also where xarray makes a time of them, or finds no other."""
    coding = Coding.from_attributes(
        "x", np.dtype("f8"), {"units": "days since 0001-01-01", "calendar": calendar}
    )
    back = coding.decode(np.array(stored, "f8"), nan_as_null=True)
    assert [value is None for value in back.to_pylist()] == [value is None for value in stored]


CALENDARS = [("noleap", "i8", "days"), ("360_day", "f8", "hours"), ("julian", "i4", "hours")]


def series(calendar: str) -> xr.Dataset:
    times = xr.date_range("2004-02-27", periods=6, calendar=calendar, use_cftime=True)
    return xr.Dataset({"v": ("time", np.arange(6.0))}, coords={"time": times})


@pytest.mark.parametrize("calendar, dtype, unit", CALENDARS, ids=str)
def test_times_of_other_calendars(empty: Repository, calendar: str, dtype: str, unit: str) -> None:
    """What rows show as text is written from that text, on days that Spark does not know."""
    whole = series(calendar)
    encoding = {"time": {"units": f"{unit} since 2000-01-01", "dtype": dtype}}
    commit(empty, whole, encoding, group="whole")
    commit(empty, whole.isel(time=slice(2)), encoding, group="part")
    later = rows(
        empty.readonly_session("main"), group="whole", isel={"time": {"start": 2, "stop": 6}}
    )
    assert later["time"][0].as_py() == whole["time"].values[2].isoformat()
    write_table(empty, later, group="part", append_dim="time")
    store = empty.readonly_session("main").store
    part = xr.open_zarr(store, group="part", consolidated=False).load()
    xr.testing.assert_equal(part, whole)


@pytest.mark.parametrize(
    "time, problem",
    [
        (
            "2004-02-30T00:00:00",
            "'2004-02-30T00:00:00', which does not exist in the calendar 'noleap'",
        ),
        ("2004-03-09", r"got '2004-03-09'.*date_format\(time"),
        ("2004-03-09T12:00:00", "'days since 2000-01-01'.*cannot represent exactly"),
        ("2004-02-28T00:00:00", "'time' already exist, such as 2004-02-28T00:00:00"),
    ],
)
def test_text_that_is_no_such_time(empty: Repository, time: str, problem: str) -> None:
    encoding = {"time": {"units": "days since 2000-01-01", "dtype": "i8"}}
    first = "2004-02-28" if "02-30" in time else "2004-02-27"
    times = xr.date_range(first, periods=2, calendar="noleap", use_cftime=True)[:1]
    dataset = series("noleap").isel(time=slice(2))
    if "02-30" in time:
        dataset = dataset.isel(time=slice(1)).assign_coords(time=times)
    commit(empty, dataset, encoding)
    tip = empty.lookup_branch("main")
    with pytest.raises(InvalidInputError, match=problem):
        write_table(empty, pa.table({"time": [time], "v": [1.0]}), append_dim="time")
    assert empty.lookup_branch("main") == tip


def test_timestamps_are_refused_for_other_calendars() -> None:
    """Before anything is written, and with the expression that makes the text."""
    coding = Coding.from_attributes("time", np.dtype("i8"), {**DAYS, "calendar": "360_day"})
    with pytest.raises(InvalidInputError, match=r"'360_day'.*as text.*date_format\(time, \"yyyy"):
        require_writable(coding, pa.timestamp("us"))
