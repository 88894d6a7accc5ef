"""Rows become arrays, and a write is committed once or not at all, whatever tasks and others do."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr

from icefloe.errors import InvalidInputError, RebaseFailedError
from icefloe.session.exactly_once import JobId
from support.generations import STORES_STRINGS
from support.spark_tables import ENCODING, commit, rows, weather, with_secret
from support.stream_cells import (
    LATS,
    NEW,
    SCHEMA,
    batch,
    chunk_ids,
    day,
    expected,
    found,
    num_commits,
    options,
    start,
    write_rows,
)

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.repository import Repository

COORDS = {"time": ["2020-01-01", "2020-01-02"], "lat": list(LATS)}


def test_rows_make_a_group(repository: Repository) -> None:
    """Labels are the sorted distinct values, and xarray sees what the rows said."""
    write_rows(repository, batch([2, 1]), batch([3], reversed(LATS)), **NEW)
    xr.testing.assert_equal(found(repository), expected([1, 2, 3]))
    assert found(repository)["n"].dtype == "int32"
    array = zarr.open_array(repository.readonly_session("main").store, path="v", mode="r")
    assert array.chunks == (2, 2)


def test_missing_cells_are_missing(repository: Repository) -> None:
    """A cell without a row is null, of integers as well, and so is a null."""
    with_null = batch([2]).set_column(2, "v", pa.array([None, 1, 2], pa.float32()))
    write_rows(repository, batch([1], [10.0]), with_null, **NEW)
    table = rows(repository.readonly_session("main"), group="/").sort_by(
        [("time", "ascending"), ("lat", "ascending")]
    )
    assert table["v"].to_pylist() == [110, None, None, None, 1, 2]
    assert table["n"].to_pylist() == [1, None, None, 2, 2, 2]


def test_a_cell_that_comes_twice(repository: Repository) -> None:
    """The cell is named, and nothing is committed."""
    with pytest.raises(InvalidInputError, match=r"time=2020-01-02 00:00:00, lat=20\.0"):
        write_rows(repository, batch([1, 2]), batch([2], [20.0]), **NEW)
    assert num_commits(repository) == 0


def test_columns_that_do_not_fit(repository: Repository, folder: Path) -> None:
    """All problems are reported at once, before anything is written."""
    write_rows(repository, batch([1]), **NEW)
    before = sorted(folder.rglob("*"))
    schema = pa.schema(
        [("time", pa.timestamp("us")), ("v", pa.string()), ("n", pa.int32()), ("w", pa.int32())]
    )
    with pytest.raises(InvalidInputError) as error:
        start(repository, schema=schema, append_dim="time")
    for part in ("dimension 'lat'", "'v': expected float", "'w' is not a variable"):
        assert part in str(error.value)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "given, mode, problem",
    [
        ({}, "append", "set the option 'dims'"),
        ({"dims": "time,lta"}, "append", "did you mean 'lat'"),
        ({"dims": "time,lat", "chunks": {"lon": 2}}, "append", "'lon'"),
        ({"replace_where": {"time": "2020"}}, "append", "mode 'overwrite'"),
        ({"replace_where": {"time": "2020"}}, "overwrite", "has no arrays"),
    ],
)
def test_options_that_do_not_fit(
    repository: Repository, given: dict[str, Any], mode: str, problem: str
) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        start(repository, overwrite=mode == "overwrite", **given)


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"append_dmi": "time"}, "append_dim"),
        ({"secret_key": "x"}, "Spark displays options"),
        ({"sel": {}}, "there is no option 'sel'"),
        ({"transaction_version": 1}, "transaction_id"),
        ({"chunks": {"time": 0}}, "-1 along 'time'"),
    ],
)
def test_options_that_nobody_has(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        options(**given)


@pytest.mark.parametrize("repository", STORES_STRINGS, indirect=True)
def test_every_type_of_a_new_group(repository: Repository) -> None:
    """Texts, dates, times with and without a zone, booleans and integers come back as written."""
    zoned = pa.timestamp("us", "Europe/Berlin")
    seen = datetime.fromisoformat("2020-01-01T12:00:00.000005")
    given = {
        "station": pa.array(["b", "a"]),
        "date": pa.array([date(2020, 2, 1)] * 2),
        "seen": pa.array([seen, None], pa.timestamp("us")),
        "at": pa.array([datetime(2020, 7, 1, tzinfo=UTC)] * 2, zoned),
        "ok": pa.array([True, False]),
        "name": pa.array(["ö", ""]),
        "small": pa.array([-128, 127], pa.int8()),
        "big": pa.array([2**62, -(2**62)]),
    }
    table = pa.table(given)
    with pytest.raises(
        InvalidInputError, match="'small' has the value -128, which represents missing"
    ):
        write_rows(repository, *table.to_batches(), dims=["station", "date"])
    table = table.set_column(6, "small", pa.array([-127, 127], pa.int8()))
    write_rows(repository, *table.to_batches(), dims=["station", "date"])
    first, second = (
        rows(repository.readonly_session("main"), group="/")
        .sort_by([("station", "descending")])
        .to_pylist()
    )
    assert (first["station"], first["date"]) == ("b", datetime.fromisoformat("2020-02-01"))
    assert (first["seen"], second["seen"]) == (seen, None)
    assert first["at"] == datetime.fromisoformat("2020-07-01")
    assert [row["ok"] for row in (first, second)] == [True, False]
    assert [row["name"] for row in (first, second)] == ["ö", ""]
    assert [row["small"] for row in (first, second)] == [-127, 127]
    assert [row["big"] for row in (first, second)] == [2**62, -(2**62)]


def test_append_goes_on_in_a_chunk(repository: Repository) -> None:
    """A chunk that the old rows filled in part gets the new ones, and keeps the old."""
    write_rows(repository, batch([1, 2, 3]), **NEW)
    write_rows(repository, batch([4, 5]), append_dim="time")
    xr.testing.assert_equal(found(repository), expected([1, 2, 3, 4, 5]))


@pytest.mark.parametrize("days, problem", [([3, 4], "already exist"), ([2], "out of order")])
def test_append_refuses_labels(repository: Repository, days: list[int], problem: str) -> None:
    write_rows(repository, batch([1, 3]), **NEW)
    with pytest.raises(InvalidInputError, match=problem):
        write_rows(repository, batch(days), append_dim="time")
    assert num_commits(repository) == 1


def test_append_of_integers_needs_all_cells(repository: Repository) -> None:
    """A variable without a missing value needs every cell."""
    write_rows(repository, batch([1]), **NEW)
    with pytest.raises(InvalidInputError, match=r"'n' has no _FillValue.* 2 rows for 3 cells"):
        write_rows(repository, batch([2], LATS[:2]), append_dim="time")
    assert num_commits(repository) == 1


def test_rows_go_the_way_back(repository: Repository) -> None:
    """Packed integers, fill values, CF times and other orders of dimensions are written as read."""
    dataset = weather().drop_vars(["height", "day", "region", "run"])
    commit(repository, dataset.isel(time=slice(0, 7)), ENCODING, group="part")
    commit(repository, dataset, ENCODING, group="whole")
    later = rows(
        repository.readonly_session("main"),
        group="whole",
        sel={"time": {"start": "2020-02-04", "stop": "2020-02-06"}},
    )
    write_rows(repository, *later.to_batches(), group="part", append_dim="time")
    assert found(repository, "part").sizes["time"] == 10
    xr.testing.assert_equal(found(repository, "part"), found(repository, "whole"))


def test_a_region_is_replaced(repository: Repository) -> None:
    """What no row tells of becomes missing, and what is outside stays."""
    floats = SCHEMA.names.index("n")
    write_rows(repository, batch([1, 2, 3, 4]).remove_column(floats), **NEW)
    job = start(
        repository,
        overwrite=True,
        schema=SCHEMA.remove(floats),
        replace_where={"time": {"start": "2020-01-02", "stop": "2020-01-04"}},
    )
    new = batch([3], [20.0]).remove_column(floats)
    job.commit([job.write_unrouted([new])], None)
    wanted = expected([1, 2, 3, 4]).drop_vars("n")
    wanted["v"][1:] = np.nan
    wanted["v"][2, 1] = 320
    xr.testing.assert_equal(found(repository), wanted)
    with pytest.raises(InvalidInputError, match=r"time=2020-01-01.*2020-01-02"):
        job.write_unrouted([batch([1]).remove_column(floats)])


def test_overwriting_replaces_the_group(repository: Repository) -> None:
    write_rows(repository, batch([1, 2]), **NEW)
    write_rows(repository, batch([7], [5.0]), overwrite=True)
    xr.testing.assert_equal(found(repository), expected([7], [5.0]))


def test_two_tasks_with_rows_of_one_chunk(repository: Repository) -> None:
    """They are staged, and the process that commits writes them."""
    job = start(repository, coords=COORDS, **NEW)
    parts = [job.write_unrouted([batch([number])]) for number in (1, 2)]
    assert not any(part.blocks for part in parts)
    job.commit(parts, None)
    xr.testing.assert_equal(found(repository), expected([1, 2]))


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_chunks_in_any_tasks(repository: Repository, seed: int) -> None:
    """A region is replaced as one task would; whole chunks are written where their rows are."""
    random = np.random.default_rng(seed)
    floats = SCHEMA.names.index("n")
    given = {
        "overwrite": True,
        "schema": SCHEMA.remove(floats),
        "replace_where": {"time": {"start": "2020-01-02", "stop": "2020-01-06"}},
    }
    new = batch(range(2, 7)).remove_column(floats)
    new = new.set_column(2, "v", pa.array(random.random(len(new)), pa.float32()))
    new = new.filter(pa.array(random.random(len(new)) < random.choice([0.6, 1.0])))
    # Some chunks whole, in the first task, and the rest anywhere.
    chunks = [(row["time"].day // 2, row["lat"] // 20) for row in new.to_pylist()]
    kept = {chunk for chunk in chunks if random.random() < 0.5}
    tasks = np.array([0 if chunk in kept else random.integers(3) for chunk in chunks])
    order = random.permutation(len(new))
    answers = []
    for together in (True, False):
        name = f"together {together}"
        write_rows(repository, batch(range(1, 8)).remove_column(floats), group=name, **NEW)
        job = start(repository, group=name, **given)
        parts = [
            job.write_unrouted([new.take(order[np.isin(tasks[order], numbers)])])
            for numbers in ([[0, 1, 2]] if together else [[0], [1], [2]])
        ]
        job.commit(parts, None)
        answers.append((found(repository, name), parts))
    xr.testing.assert_equal(answers[0][0], answers[1][0])
    assert np.isfinite(answers[0][0]["v"][1:6]).sum() == len(new)
    for part in answers[1][1]:
        assert part.rows == sum(
            (job.grid.get_box(block)[0][1] - job.grid.get_box(block)[0][0])
            * (job.grid.get_box(block)[1][1] - job.grid.get_box(block)[1][0])
            for block in part.blocks
        )


@pytest.mark.parametrize(
    "tasks",
    [
        [batch([1, 2]), batch([1, 2])],
        [batch([1, 2]), batch([2], [20.0])],
        [batch([1, 2], [10.0]), batch([1]), batch([2], LATS[1:])],
    ],
    ids=["whole and whole", "whole and part", "part and part"],
)
def test_cells_that_two_tasks_have(repository: Repository, tasks: list[pa.RecordBatch]) -> None:
    """Neither wins, whichever way each of them went."""
    job = start(repository, coords=COORDS, **NEW)
    parts = [job.write_unrouted([task]) for task in tasks]
    with pytest.raises(InvalidInputError, match=r"occur more than once, such as .*time"):
        job.commit(parts, None)
    assert num_commits(repository) == 0


def test_more_rows_aside_than_one_process_takes(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted before they are fetched; whole chunks do not count."""
    monkeypatch.setattr("icefloe.spark.writing.staged_rows._MAX_BYTES", 50)
    job = start(repository, coords=COORDS, **NEW)
    parts = [job.write_unrouted([batch([number])]) for number in (1, 2)]
    with pytest.raises(InvalidInputError, match=r"144 bytes.*icefloe\.spark\.write"):
        job.commit(parts, None)
    assert num_commits(repository) == 0
    job.commit([job.write_unrouted([batch([1, 2])])], None)
    xr.testing.assert_equal(found(repository), expected([1, 2]))


def test_attempts_that_ran_twice(repository: Repository) -> None:
    """Both leave files, one is committed; the job that comes again finds its commit."""
    job = start(repository, coords=COORDS, **NEW)
    once = job.write_unrouted([batch([1, 2], LATS[:2])])
    again = job.write_unrouted([batch([1, 2], LATS[:2])])
    other = job.write_unrouted([batch([1, 2], LATS[2:])])
    ids = [chunk_ids(part) for part in (once, again)]
    assert ids[0]
    assert not ids[0] & ids[1]
    made = job.commit([again, other], JobId("load"))
    assert made.is_new
    found_again = job.commit([once, other], JobId("load"))
    assert (found_again.snapshot_id, found_again.is_new) == (made.snapshot_id, False)
    assert num_commits(repository) == 1
    xr.testing.assert_equal(found(repository), expected([1, 2]))


def test_others_commit_the_same_chunks(repository: Repository) -> None:
    """What was committed after the write began is never overwritten unsaid."""
    write_rows(repository, batch([1, 2]), **NEW)
    job = start(repository, overwrite=True, replace_where={"time": "2020-01-01"})
    part = job.write_unrouted([batch([1])])
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="v", mode="r+")[0, 0] = -1
    session.commit("another writer")
    with pytest.raises(RebaseFailedError):
        job.commit([part], JobId("late"))
    assert found(repository)["v"][0, 0] == -1


def test_others_commit_elsewhere(repository: Repository) -> None:
    """Commits that have nothing to do with each other are both there."""
    write_rows(repository, batch([1]), group="first", **NEW)
    job = start(repository, group="mine", coords=COORDS, **NEW)
    part = job.write_unrouted([batch([1, 2])])
    write_rows(repository, batch([3]), group="theirs", **NEW)
    job.commit([part], None)
    xr.testing.assert_equal(found(repository, "mine"), expected([1, 2]))
    xr.testing.assert_equal(found(repository, "theirs"), expected([3]))


def test_rows_put_aside_find_their_place_at_the_tip(repository: Repository) -> None:
    """A micro-batch goes behind rows that another writer appended before it."""
    write_rows(repository, batch([1]), **NEW)
    base = repository.lookup_branch("main")
    write_rows(repository, batch([2]), append_dim="time")
    write_rows(repository, batch([3]), append_dim="time", job=JobId("stream", 4))
    xr.testing.assert_equal(found(repository), expected([1, 2, 3]))
    with pytest.raises(RebaseFailedError):
        write_rows(repository, batch([9]), append_dim="time", base=base)
    assert found(repository).sizes["time"] == 3


def test_messages_hold_no_secrets(repository: Repository, folder: Path) -> None:
    """Tasks know credentials; what they answer does not."""
    assert num_commits(repository) == 0
    job = start(with_secret(folder, "hush-hush"), coords=COORDS, **NEW)
    assert b"hush-hush" in pickle.dumps(job)
    assert b"hush-hush" not in pickle.dumps(job.write_unrouted([batch([1])]))


@pytest.mark.parametrize("repository", ["v1"], indirect=True)
def test_the_real_icechunk_reads_it(repository: Repository, folder: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    write_rows(repository, batch([1, 2, 3]), **NEW)
    write_rows(repository, batch([4]), append_dim="time")
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
    store = theirs.readonly_session("main").store
    dataset = xr.open_zarr(store, consolidated=False).load()
    xr.testing.assert_identical(dataset, found(repository))
    xr.testing.assert_equal(dataset, expected([1, 2, 3, 4]))
    assert dataset["time"].values[0] == np.datetime64(day(1))
