"""What a commit added comes once: all of it, stored or not, and nothing that was there before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr

from support.generations import STORES_STRINGS
from support.stream_cells import LATS, NEW, batch, day, found, write_rows
from support.stream_following import follow, read, steps

if TYPE_CHECKING:
    from icefloe.repository import Repository


def floats(*days: int, missing: bool = False) -> pa.RecordBatch:
    rows = batch(days).remove_column(3)
    return rows.set_column(2, "v", pa.nulls(len(rows), pa.float32())) if missing else rows


def last(repository: Repository, **given: Any) -> list[dict[str, Any]]:
    """Read what the newest commit gives."""
    after, before, *_ = (info.id for info in repository.ancestry(branch="main"))
    return read(follow(repository, **given), before, after)


def places(rows: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return sorted((row["time"].day, row["lat"]) for row in rows)


def cells(*days: int) -> list[tuple[int, float]]:
    return [(number, lat) for number in days for lat in LATS]


def test_rows_of_missing_values_are_rows(repository: Repository) -> None:
    """No chunk is stored for them, in a new group or behind another day."""
    write_rows(repository, floats(1, 2, missing=True), **NEW)
    assert places(last(repository)) == cells(1, 2)
    write_rows(repository, floats(3, missing=True), append_dim="time")
    after, before, *_ = (info.id for info in repository.ancestry(branch="main"))
    diff = repository.diff(from_snapshot_id=before, to_snapshot_id=after)
    assert "/v" not in diff.updated_chunks
    rows = last(repository)
    assert places(rows) == cells(3)
    assert {row["v"] for row in rows} == {None}
    assert last(repository, layout="chunks", variables="v") == []


def test_a_chunk_that_is_filled_later(repository: Repository) -> None:
    """Its old rows are not read again, in however many commits it is filled."""
    write_rows(repository, batch([1]), dims=["time", "lat"], chunks={"time": 4, "lat": 2})
    for number in range(2, 7):
        write_rows(repository, batch([number]), append_dim="time")
        assert places(last(repository)) == cells(number)
    (chunk, *_) = last(repository, layout="chunks", variables="v")
    assert (chunk["chunk"], chunk["shape"]) == ([1, 0], [2, 2])


def test_a_correction_beside_an_append(repository: Repository) -> None:
    """The chunk whose old value changed gives its old rows, and no other chunk does."""
    write_rows(repository, floats(1, 2, 3), **NEW)
    session = repository.writable_session("main")
    v = zarr.open_array(session.store, path="v", mode="r+")
    time = zarr.open_array(session.store, path="time", mode="r+")
    time.resize((4,))
    time[3] = 1577836800 + 3 * 86400
    v.resize((4, 3))
    v[3] = [410, 420, 430]
    v[2, 2] = np.nan
    session.commit("a day, and a value of the day before is found to be wrong")
    assert places(last(repository)) == sorted([(3, 30.0), *cells(4)])

    session = repository.writable_session("main")
    zarr.open_array(session.store, path="v", mode="r+")[2:, 2] = [np.nan, 7]
    session.commit("without growing: the whole chunk, as ever")
    assert places(last(repository)) == [(3, 30.0), (4, 30.0)]


def test_missing_stays_missing(repository: Repository) -> None:
    """NaN is equal to NaN, whether a chunk said so before or none was stored."""
    write_rows(repository, floats(1, missing=True), dims=["time", "lat"], chunks={"time": 4})
    write_rows(repository, floats(2), append_dim="time")
    assert places(last(repository)) == cells(2)
    write_rows(repository, floats(3), append_dim="time")
    assert places(last(repository)) == cells(3)


def test_growing_along_two_dimensions(repository: Repository) -> None:
    write_rows(repository, floats(1, 2, 3), **NEW)
    session = repository.writable_session("main")
    for name, shape in {"time": (4,), "lat": (4,), "v": (4, 4)}.items():
        zarr.open_array(session.store, path=name, mode="r+").resize(shape)
    zarr.open_array(session.store, path="time", mode="r+")[3] = 1577836800 + 3 * 86400
    zarr.open_array(session.store, path="lat", mode="r+")[3] = 40
    zarr.open_array(session.store, path="v", mode="r+")[:, 3] = 1
    session.commit("a day and a latitude")
    assert places(last(repository)) == sorted([(1, 40.0), (2, 40.0), (3, 40.0), *cells(4), (4, 40)])


def test_selected_rows(repository: Repository) -> None:
    """Selections choose among what was added."""
    write_rows(repository, floats(1), dims=["time", "lat"], chunks={"time": 4, "lat": 1})
    write_rows(repository, floats(2, 3, 4, 5), append_dim="time")
    every_other = last(repository, isel={"time": slice(None, None, 2), "lat": [0, 2]})
    assert places(every_other) == [(3, 10.0), (3, 30.0), (5, 10.0), (5, 30.0)]
    some = last(repository, sel={"time": ["2020-01-01", "2020-01-02", "2020-01-05"], "lat": 20})
    assert places(some) == [(2, 20.0), (5, 20.0)]


def test_arrays_made_anew_are_new(repository: Repository) -> None:
    """Nothing of what is overwritten counts as known, stored or not."""
    write_rows(repository, floats(1, 2), **NEW)
    write_rows(repository, floats(1, 2, missing=True), overwrite=True)
    assert places(last(repository)) == cells(1, 2)


def test_variables_that_are_repeated_with_each_append(repository: Repository) -> None:
    """What varies along fewer dimensions gives its rows if it differs, not if it is written."""

    def dataset(number: int, height: float) -> xr.Dataset:
        return xr.Dataset(
            {
                "v": (("time", "lat"), np.full((1, 3), number, "f4")),
                "height": (("lat",), [1.0, 2.0, height]),
                "orbit": (("time",), [number]),
            },
            coords={"time": [np.datetime64(day(number), "ns")], "lat": list(LATS)},
        )

    def commit(rows: xr.Dataset, **given: Any) -> None:
        with repository.transaction("main", message="with xarray") as store:
            rows.to_zarr(store, zarr_format=3, consolidated=False, **given)

    commit(dataset(1, 3.0), encoding={"v": {"chunks": (2, 3)}, "orbit": {"chunks": (8,)}})
    for number, height, given in [
        (2, 3.0, cells(2)),
        (3, 3.0, cells(3)),
        (4, 4.0, cells(1, 2, 3, 4)),
    ]:
        commit(dataset(number, height), append_dim="time")
        height_written = repository.diff(
            from_snapshot_id=next(iter(repository.ancestry(branch="main"))).parent_id,
            to_branch="main",
        ).updated_chunks.get("/height")
        assert height_written
        assert places(last(repository)) == given


@pytest.mark.parametrize("repository", STORES_STRINGS, indirect=True)
def test_tables_of_every_kind(repository: Repository) -> None:
    """Texts, labels alone, no dimension at all."""
    with repository.transaction("main", message="begin") as store:
        texts = zarr.create_array(
            store, name="texts/t", shape=(3,), chunks=(4,), dtype="string", dimension_names=["x"]
        )
        texts[:] = np.array(["a", "", "c"], object)
        zarr.create_array(
            store, name="labels/x", data=np.arange(3), chunks=(4,), dimension_names=["x"]
        )
        zarr.create_array(store, name="one/s", data=np.array(1.0))
    for group, length in {"texts": 3, "labels": 3, "one": 1}.items():
        assert len(last(repository, group=group)) == length
    with repository.transaction("main", message="more") as store:
        for name, value in {"texts/t": "d", "labels/x": 7}.items():
            array: Any = zarr.open_array(store, path=name, mode="r+")
            array.resize((4,))
            array[3] = value
        one: Any = zarr.open_array(store, path="one/s", mode="r+")
        one[...] = 2
    assert last(repository, group="texts") == [{"x": 3, "t": "d"}]
    assert last(repository, group="labels") == [{"x": 7}]
    assert last(repository, group="one") == [{"s": 2.0}]


def test_a_group_that_was_moved(repository: Repository) -> None:
    """Where it is now, all of its rows are new."""
    write_rows(repository, batch([1, 2, 3]), group="there", **NEW)
    session = repository.rearrange_session("main")
    session.move("/there", "/here")
    session.commit("moved")
    assert places(last(repository, group="here")) == cells(1, 2, 3)


def test_commits_of_other_groups_and_of_attributes_give_nothing(repository: Repository) -> None:
    """Nor does a group without arrays, which a history may begin with."""
    with repository.transaction("main", message="a group") as store:
        zarr.create_group(store)
    write_rows(repository, batch([1, 2]), **NEW)
    write_rows(repository, batch([1]), group="other", **NEW)
    assert last(repository) == []
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="v", mode="r+").attrs["scale_factor"] = 10
    session.commit("an attribute that would make another column")
    follower = follow(repository, starting="earliest", variables="n")
    assert [len(read(follower, start, stop)) for start, stop in steps(follower)] == [6]


def test_a_copy_is_equal(repository: Repository) -> None:
    """Batches appended one after the other make the group again, whatever chunks they filled."""
    write_rows(repository, floats(1), group="source", **NEW)
    for number in range(2, 9):
        table = floats(number, missing=number in {3, 6, 7})
        write_rows(repository, table, group="source", append_dim="time")
    follower = follow(repository, group="source", maxCommitsPerTrigger=1)
    target = follower.fetch_tip()
    place = follower.find_initial_snapshot()
    while place != target:
        reached = follower.advance(place, target)
        batches = [
            part for task in follower.plan_tasks(place, reached) for part in follower.read(task)
        ]
        write_rows(repository, *batches, group="copy", append_dim="time", **NEW)
        place = reached
    xr.testing.assert_equal(found(repository, "copy"), found(repository, "source"))


@pytest.mark.parametrize("seed", range(6))
def test_whatever_commits_do(repository: Repository, seed: int) -> None:
    """New and changed rows are read; an append adds only new rows."""
    random = np.random.default_rng(seed)
    chunks = {"v": random.integers(1, 5, 2), "w": random.integers(1, 5, 2)}
    model = {name: np.full((2, 3), np.nan, "f4") for name in chunks}
    with repository.transaction("main", message="begin") as store:
        group = zarr.create_group(store)
        for name, lengths in chunks.items():
            group.create_array(
                name,
                shape=(2, 3),
                chunks=tuple(map(int, lengths)),
                dtype="f4",
                fill_value=np.nan,
                dimension_names=["x", "y"],
            )
    for number in range(12):
        is_append = bool(random.integers(2))
        before = {name: values.copy() for name, values in model.items()}
        with repository.transaction("main", message=str(number)) as store:
            group = zarr.open_group(store, mode="r+")
            if is_append:
                more = int(random.integers(1, 4))
                for name, old in before.items():
                    new = random.normal(size=(more, 3)).astype("f4")
                    new[random.random((more, 3)) < 0.5] = np.nan
                    model[name] = np.concatenate([old, new])
                    array: Any = group[name]
                    array.resize(model[name].shape)
                    array[-more:] = new
            if not is_append or random.integers(3) == 0:
                is_append = False
                name = "vw"[random.integers(2)]
                place = tuple(int(random.integers(size)) for size in model[name].shape)
                model[name][place] = number
                corrected: Any = group[name]
                corrected[place] = number
        length = len(before["v"])
        changed = {
            place
            for place in np.ndindex(model["v"].shape)
            if place[0] >= length
            or any(
                not np.array_equal(before[name][place], model[name][place], equal_nan=True)
                for name in model
            )
        }
        told = [(row["x"], row["y"]) for row in last(repository)]
        assert len(told) == len(set(told))
        assert changed <= set(told)
        if is_append:
            assert changed == set(told)
