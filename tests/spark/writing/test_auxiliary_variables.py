"""Appending to groups with variables that grow along, and have not a value for each row."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr

from icefloe.errors import InvalidInputError
from icefloe.spark import write
from icefloe.spark.option_parsing import encode_options
from icefloe.spark.writing.staged_commit import commit_staged_rows
from icefloe.spark.writing.staged_rows import stage_rows
from icefloe.spark.writing.write_options import WriteOptions
from support.rows_in_memory import write_table
from support.spark_tables import commit, rows

if TYPE_CHECKING:
    from icefloe.repository import Repository

LATS = [10.0, 20.0]


def days(first: int, stop: int) -> Any:
    return np.arange(first, stop).astype("M8[D]").astype("M8[ns]")


def archive(first: int, stop: int) -> xr.Dataset:
    """Make days with bounds, with a number for each, and with a column that every day shares."""
    times = days(first, stop)
    count = len(times)
    return xr.Dataset(
        {
            "v": (("time", "lat"), np.arange(count * 2.0).reshape(count, 2) + first),
            "orbit": (("time",), np.arange(first, stop, dtype="i4")),
            "time_bnds": (("time", "bnds"), np.stack([times, times + np.timedelta64(1, "D")], 1)),
            "height": (("lat",), [1.0, 2.0]),
        },
        coords={
            "time": ("time", times, {"bounds": "time_bnds"}),
            "lat": LATS,
            "edges": (("bnds", "time"), np.stack([np.arange(count), np.arange(count)]) + 0.5),
        },
    )


ENCODING: dict[str, Any] = {
    "time": {"units": "hours since 1970-01-01", "dtype": "i8"},
    "v": {"chunks": (2, 2)},
    "time_bnds": {"chunks": (4, 2), "units": "hours since 1970-01-01", "dtype": "i8"},
}


def table(first: int, stop: int, **columns: Any) -> pa.Table:
    """Return the rows of some days, as Spark has them."""
    dataset = archive(first, stop)
    times = [time for time in dataset["time"].values.astype("M8[us]").tolist() for _ in LATS]
    bounds = [pair for pair in dataset["time_bnds"].values.astype("M8[us]").tolist() for _ in LATS]
    edges = [pair for pair in dataset["edges"].values.T.tolist() for _ in LATS]
    numbers = [number for number in dataset["orbit"].values.tolist() for _ in LATS]
    made = {
        "time": pa.array(times, pa.timestamp("us")),
        "lat": pa.array(LATS * (stop - first)),
        "v": pa.array(dataset["v"].values.ravel()),
        "orbit": pa.array(numbers, pa.int32()),
        "time_bnds": pa.array(bounds, pa.list_(pa.timestamp("us"))),
        "edges": pa.array(edges, pa.list_(pa.float64())),
    }
    return pa.table({name: one for name, one in {**made, **columns}.items() if one is not None})


@pytest.fixture
def begun(empty: Repository) -> Repository:
    commit(empty, archive(0, 3), ENCODING)
    # As most archives have it: bounds say nothing that the coordinate says.
    session = empty.writable_session("main")
    bounds = zarr.open_array(session.store, path="time_bnds", mode="r+")
    for name in ("units", "calendar"):
        bounds.attrs.pop(name, None)
    session.commit("bare bounds")
    return empty


def found(repository: Repository) -> xr.Dataset:
    store = repository.readonly_session("main").store
    dataset: xr.Dataset = xr.open_zarr(store, consolidated=False).load()
    return dataset


def whole(middle: int, stop: int) -> xr.Dataset:
    parts = [archive(0, middle), archive(middle, stop)]
    joined: xr.Dataset = xr.concat(parts, "time", data_vars="minimal")
    return joined


@pytest.mark.parametrize("way", ["tasks", "aside"])
def test_columns_for_them(begun: Repository, way: str) -> None:
    """A column that repeats itself, and columns of arrays, whichever way rows take."""
    more = table(3, 6)
    if way == "tasks":
        write_table(begun, more, append_dim="time")
    else:
        options = WriteOptions.parse(encode_options(append_dim="time"))
        asides = [stage_rows(begun.readonly_session("main").connection, more.to_batches())]
        commit_staged_rows(begun, options, more.schema, asides, overwrite=False, job=None)
    xr.testing.assert_equal(found(begun), whole(3, 6))


def test_a_group_that_is_no_single_table(begun: Repository) -> None:
    """The columns tell which variables are the table; nothing else says that edges is none."""
    session = begun.writable_session("main")
    del zarr.open_array(session.store, path="time_bnds", mode="r+").attrs["coordinates"]
    session.commit("edges are a variable as others are")
    with pytest.raises(InvalidInputError, match="do not fit into one table"):
        rows(begun.readonly_session("main"))
    write_table(begun, table(3, 6), append_dim="time")
    xr.testing.assert_equal(found(begun), whole(3, 6).reset_coords("edges"))
    with pytest.raises(
        InvalidInputError, match=r"for variable 'edges' with dimensions \(bnds, tim"
    ):
        write_table(begun, table(6, 7, edges=None), append_dim="time")


def test_bounds_are_read_as_they_are_written(begun: Repository) -> None:
    """The bounds of times are times, though only the coordinate has the units."""
    read = rows(begun.readonly_session("main"), variables="time_bnds")
    assert read.schema.field("time_bnds").type == pa.timestamp("us")
    assert read["time_bnds"].to_pylist()[:2] == [datetime(1970, 1, 1), datetime(1970, 1, 2)]  # noqa: DTZ001


def test_what_is_left_missing(begun: Repository) -> None:
    """Only what was named is missing; a variable with a value for each row may be named too."""
    more = table(3, 5, edges=None, v=None)
    write_table(begun, more, append_dim="time", leave_missing=["edges", "v"])
    read = found(begun)
    assert read["orbit"].values.tolist() == [0, 1, 2, 3, 4]
    for name in ("edges", "v"):
        np.testing.assert_array_equal(
            read[name].isnull().any([dim for dim in read[name].dims if dim != "time"]),
            [False, False, False, True, True],
        )


@pytest.mark.parametrize(
    "columns, given, problem",
    [
        (
            {"orbit": None},
            {},
            r"no column of int32 for variable 'orbit' with dimensions \(time\).*leave_m",
        ),
        (
            {"time_bnds": None},
            {},
            r"arrays of 2 timestamp.* for variable 'time_bnds' with dimensions \(time, bnds",
        ),
        ({"orbit": None}, {"leave_missing": "orbit"}, "'orbit' cannot be left missing.*column"),
        ({}, {"leave_missing": "edges"}, "'edges' is in 'leave_missing' and has a column"),
        ({"edges": None}, {"leave_missing": "edgse"}, "no variable 'edgse' .*mean 'edges'"),
        ({"edges": pa.array([1.0] * 4)}, {}, "'edges': expected arrays of 2 double, got double"),
        ({"edges": pa.array([["a", "b"]] * 4)}, {}, "'edges': expected double, got string"),
        ({"edges": pa.array([[1.0]] * 4)}, {}, r"arrays of 2 double, got \[1\.0\] at time="),
        ({"edges": pa.array([None, *[[1.0, 2]] * 3])}, {}, r"'edges'.*, got None at"),
        (
            {"orbit": pa.array([1, 2, 3, 3], pa.int32())},
            {},
            r"'orbit' has different values at time=",
        ),
        ({"height": pa.array([1.0, 2] * 2)}, {}, "'height' does not have the dimension time: drop"),
    ],
)
def test_what_does_not_fit(
    begun: Repository, columns: dict[str, Any], given: dict[str, Any], problem: str
) -> None:
    """The variable and the remedy are named, and nothing is committed."""
    tip = begun.lookup_branch("main")
    with pytest.raises(InvalidInputError, match=problem):
        write_table(begun, table(3, 5, **columns), append_dim="time", **given)
    assert begun.lookup_branch("main") == tip


def test_a_region_has_none_of_them(begun: Repository) -> None:
    with pytest.raises(
        InvalidInputError, match="'time_bnds' does not have the dimensions time, lat"
    ):
        write_table(begun, table(0, 1), overwrite=True, replace_where={"time": "1970-01-01"})


def test_on_spark(spark: Any, begun: Repository) -> None:
    frame = spark.createDataFrame(
        [tuple(row.values()) for row in table(3, 6).to_pylist()],
        "time timestamp_ntz, lat double, v double, orbit int, time_bnds array<timestamp_ntz>, "
        "edges array<double>",
    )
    write(frame, begun, append_dim="time")
    xr.testing.assert_equal(found(begun), whole(3, 6))
