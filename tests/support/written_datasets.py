"""Sequences of writes of xarray objects, for icefloe and the real Icechunk to make alike.

Knows neither of them: each sequence yields the writes of one commit after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
import xarray as xr

Write: TypeAlias = tuple[xr.Dataset | xr.DataArray, dict[str, Any]]
Commits: TypeAlias = Iterator[list[Write]]

_T0 = np.datetime64("2024-01-01", "ns")
_TEXT = np.dtypes.StringDType()
_EPOCH = {"time": {"units": "hours since 2024-01-01", "dtype": "int64"}}


def assert_same_dataset(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Compare datasets apart from the data type of strings, which depends on xarray's version."""
    xr.testing.assert_identical(_with_string_objects(found), _with_string_objects(expected))


def _with_string_objects(dataset: xr.Dataset) -> xr.Dataset:
    strings = [name for name in dataset.variables if dataset[name].dtype.kind in "OTU"]
    return dataset.assign({name: dataset[name].astype(object) for name in strings})


def weather(start: int, stop: int, *, columns: int = 8) -> xr.Dataset:
    """Make some hours of a dataset with a bit of everything; the same hours are the same values."""
    hours = np.arange(start, stop)
    values = np.sin(hours[:, None] * 100.0 + np.arange(columns))
    return xr.Dataset(
        {
            "temperature": (("time", "x"), values, {"units": "K"}),
            "count": (("time",), (hours * 7).astype("i4")),
            "station": ("x", np.array([f"st-{number}" for number in range(columns)], _TEXT)),
            "height": ((), 1.5),
        },
        {"time": _T0 + hours * np.timedelta64(1, "h"), "x": np.arange(columns, dtype="f8")},
        {"title": "weather", "levels": [1, 2]},
    )


def _dataset() -> Commits:
    yield [(weather(0, 6), {})]


def _dask_dataset() -> Commits:
    yield [(weather(0, 6).chunk(time=2, x=4), {})]


def _named_array() -> Commits:
    yield [(weather(0, 6)["temperature"], {})]


def _unnamed_array() -> Commits:
    yield [(weather(0, 6).temperature.rename(None), {})]


def _array_named_as_its_coordinate() -> Commits:
    yield [(xr.DataArray(np.arange(3.0), {"x": [1, 2, 3]}, name="x"), {})]


def _groups() -> Commits:
    yield [(weather(0, 3), {"group": "a"}), (weather(3, 6), {"group": "b/c/d"})]


def _encoding() -> Commits:
    packed = {"dtype": "i2", "scale_factor": 0.001, "_FillValue": -9999, "chunks": (2, 8)}
    dataset = weather(0, 6)[["temperature"]].where(lambda data: data.x != 3)
    yield [(dataset.chunk(time=2), {"encoding": {"temperature": packed}})]


def _empty_chunks() -> Commits:
    zeros = xr.Dataset({"z": (("y", "x"), da.zeros((4, 4), chunks=(2, 2)))})
    yield [(zeros, {"group": "kept", "encoding": {"z": {"write_empty_chunks": True}}})]
    yield [(zeros, {"group": "left out"})]


def _appends() -> Commits:
    yield [(weather(0, 4), {"encoding": _EPOCH | {"temperature": {"chunks": (2, 8)}}})]
    yield [(weather(4, 8).drop_vars(["station", "height"]), {"append_dim": "time"})]
    later = weather(8, 16).drop_vars(["station", "height"]).chunk(time=4)
    yield [(later, {"append_dim": "time", "mode": "a-"})]


def _regions() -> Commits:
    full = weather(0, 8).drop_vars(["height", "station"])
    yield [(xr.zeros_like(full.chunk(time=2)), {"encoding": _EPOCH})]
    part = full.isel(time=slice(2, 4)).drop_vars("x")
    yield [(part, {"region": {"time": slice(2, 4)}})]
    yield [(full.isel(time=slice(4, 8)).drop_vars("x").chunk(time=2), {"region": "auto"})]
    yield [(full.isel(time=slice(0, 2)).drop_vars("x").chunk(time=2), {"region": {"time": "auto"}})]


def _replaced() -> Commits:
    yield [(weather(0, 6).chunk(time=2), {})]
    yield [(weather(0, 4)[["count"]].chunk(time=1), {"mode": "w"})]


def _added_variable() -> Commits:
    yield [(weather(0, 6), {})]
    twice = (weather(0, 6)[["temperature"]].chunk(time=3) * 2).rename(temperature="twice")
    yield [(twice, {"mode": "a"})]


def _aligned() -> Commits:
    uneven = weather(0, 9)[["temperature"]].chunk(time=(2, 3, 4))
    encoding = {"temperature": {"chunks": (4, 8)}}
    yield [(uneven, {"align_chunks": True, "encoding": encoding})]


def _no_dimension() -> Commits:
    yield [(xr.Dataset({"scalar": ((), da.arange(4, chunks=4).sum())}), {})]


def _no_length() -> Commits:
    yield [(xr.Dataset({"nothing": (("n", "x"), da.zeros((0, 3), chunks=(1, 3)))}), {})]


SEQUENCES: dict[str, Callable[[], Commits]] = {
    function.__name__.strip("_"): function
    for function in (
        _dataset,
        _dask_dataset,
        _named_array,
        _unnamed_array,
        _array_named_as_its_coordinate,
        _groups,
        _encoding,
        _empty_chunks,
        _appends,
        _regions,
        _replaced,
        _added_variable,
        _aligned,
        _no_dimension,
        _no_length,
    )
}
