from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr

from icefloe.errors import InvalidInputError
from support.spark_tables import assert_same_rows, commit, rows

if TYPE_CHECKING:
    from icefloe.repository import Repository
    from icefloe.session import Session

TIME = datetime(2020, 2, 1)  # noqa: DTZ001 - CF times have no zone


def opened(session: Session) -> xr.Dataset:
    opened: xr.Dataset = xr.open_zarr(session.store, consolidated=False, chunks=None)
    return opened


@pytest.mark.parametrize(
    "sel",
    [
        {"time": slice("2020-01-30", "2020-02-02")},
        {"time": slice(None, "2020-01-29")},
        {"time": ["2020-01-28", "2020-02-03"]},
        {"time": [TIME]},
        {"time": [np.datetime64("2020-02-01")]},
        {"time": "2020-01"},
        {"lat": slice(48, 42), "lon": slice(1, 2.5)},
        {"lat": [40.0, 50.0], "lon": [0.5]},
        {"lon": slice(0, 3, 2)},
    ],
    ids=str,
)
def test_labels_select_what_they_select_in_xarray(session: Session, sel: dict[str, Any]) -> None:
    assert_same_rows(rows(session, sel=sel), opened(session).sel(sel))


def test_a_single_label_keeps_its_column(session: Session) -> None:
    """A table has the same columns whatever is selected."""
    found = rows(session, variables="t2m", sel={"time": TIME}, isel={"lat": 0, "lon": -1})
    assert found.column_names[:3] == ["time", "lat", "lon"]
    assert found.select(["time", "lat", "lon"]).to_pylist() == [
        {"time": TIME, "lat": 50.0, "lon": 3.5}
    ]


def test_the_nearest_label(session: Session) -> None:
    found = rows(session, sel={"lat": {"nearest": 43.9}, "time": {"nearest": "2020-01-31T20:00"}})
    assert set(found["lat"].to_pylist()) == {44.0}
    assert set(found["time"].to_pylist()) == {TIME}


def test_labels_of_other_calendars(empty: Repository) -> None:
    times = xr.date_range("2001-02-28", periods=4, calendar="noleap", use_cftime=True)
    commit(empty, xr.Dataset({"t": ("time", np.arange(4))}, coords={"time": times}))
    found = rows(empty.readonly_session("main"), sel={"time": slice("2001-03-01", "2001-03-02")})
    assert found["time"].to_pylist() == ["2001-03-01T00:00:00", "2001-03-02T00:00:00"]


def test_a_dimension_without_labels_is_selected_by_position(empty: Repository) -> None:
    commit(empty, xr.Dataset({"t": ("x", np.arange(4))}))
    found = rows(empty.readonly_session("main"), sel={"x": {"start": 1, "stop": 3}})
    assert found["x"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    "given, message",
    [
        ({"sel": {"lat": 200}}, r"nothing along 'lat' with 200: its labels range from 40.0 to"),
        ({"sel": {"lat": 41.2}}, r"\{\"nearest\": 41.2\} selects the closest"),
        (
            {"sel": {"lat": slice(41, 49)}},
            r"they are descending: start the slice at the larger",
        ),
        (
            {"sel": {"time": slice("2021-01-01", None)}},
            r"nothing along 'time' .* from 2020-01-28T00:00:00 to 2020-02-06T00:00:00",
        ),
        ({"sel": {"time": "yesterday"}}, r"nothing along 'time' with 'yesterday'.*is not a time"),
        ({"sel": {"time": "2024-13-45"}}, r"from \S+ to \S+; '2024-13-45' is not a time: [^{]*$"),
        ({"sel": {"time": slice("2020-01-29", "2020-31-01")}}, r"'2020-31-01' is not a time"),
        ({"sel": {"time": {"nearest": "2024-13-45"}}}, r"'2024-13-45' is not a time"),
        ({"sel": {"time": "2021-01-01"}}, r"\{\"nearest\": \"2021-01-01\"\} selects the closest"),
        ({"sel": {"lat": "north"}}, r"with 'north': its labels range from 40.0 to 50.0$"),
        ({"sel": {"latitude": 1}}, r"sel: there is no dimension 'latitude': did you mean 'lat'"),
        ({"isel": {"time": 10}}, r"'time' has no position 10, only 0 to 9"),
        ({"isel": {"time": slice(10, 20)}}, r"isel selects nothing along 'time'"),
        ({"isel": {"time": []}}, r"isel selects nothing along 'time'"),
        ({"isel": {"time": "first"}}, r"isel along 'time': expected an integer, a list"),
        ({"isel": {"time": {"from": 1}}}, r"unknown key 'from', expected one of"),
        ({"sel": {"lat": 40}, "isel": {"lat": 0}}, r"'lat' is in both sel and isel"),
    ],
    ids=str,
)
def test_selections_that_match_nothing_say_what_is_there(
    session: Session, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        rows(session, **given)
