from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe.errors import InvalidInputError
from icefloe.spark.reading.chunks import plan_chunks, read_chunks
from icefloe.spark.reading.read_options import ReadOptions
from support.spark_tables import chunk_rows, commit

if TYPE_CHECKING:
    from icefloe.repository import Repository
    from icefloe.session import Session


def placed(shape: tuple[int, ...], rows: list[dict[str, Any]], dtype: str) -> np.ndarray[Any, Any]:
    """Put chunks where their rows say that they belong."""
    whole = np.full(shape, 0, dtype)
    for row in rows:
        region = tuple(
            slice(first, first + size)
            for first, size in zip(row["offset"], row["shape"], strict=True)
        )
        whole[region] = np.frombuffer(row["data"], row["dtype"]).reshape(row["shape"])
    return whole


@pytest.mark.parametrize("target_bytes", ["1", "500", "100000000"])
def test_chunks_make_the_array_again(session: Session, target_bytes: str) -> None:
    """As stored: packed values are not unpacked."""
    for name in ("t2m", "rain", "flipped", "height"):
        stored = zarr.open_array(session.store, path=name, mode="r")
        rows = chunk_rows(session, variables=[name], target_bytes=target_bytes)
        assert {row["path"] for row in rows} == {f"/{name}"}
        assert len(rows) == stored.nchunks
        np.testing.assert_array_equal(
            placed(stored.shape, rows, stored.dtype.str), np.asarray(stored[:])
        )


def test_a_selection_brings_whole_chunks_that_touch_it(session: Session) -> None:
    rows = chunk_rows(session, variables=["t2m"], isel={"time": [0, 9]}, sel={"lon": slice(0, 1)})
    assert sorted(tuple(row["chunk"]) for row in rows) == [
        (0, 0, 0),
        (0, 1, 0),
        (2, 0, 0),
        (2, 1, 0),
    ]
    assert [row["shape"] for row in rows if row["chunk"] == [2, 0, 0]] == [[2, 3, 4]]


def test_chunks_that_were_never_written_have_no_row(empty: Repository) -> None:
    with empty.transaction("main", message="sparse") as store:
        array = zarr.create_array(store, name="a", shape=(10, 10), chunks=(2, 2), dtype="i4")
        array[4:6, 4:8] = 1
    rows = chunk_rows(empty.readonly_session("main"))
    assert [row["chunk"] for row in rows] == [[2, 2], [2, 3]]


def test_a_shard_is_one_row(empty: Repository) -> None:
    values = np.arange(64, dtype="i4").reshape(8, 8)
    with empty.transaction("main", message="sharded") as store:
        array = zarr.create_array(
            store, name="a", shape=(8, 8), shards=(4, 8), chunks=(2, 2), dtype="i4"
        )
        array[:] = values
    rows = chunk_rows(empty.readonly_session("main"))
    assert [row["shape"] for row in rows] == [[4, 8], [4, 8]]
    np.testing.assert_array_equal(placed((8, 8), rows, "i4"), values)


def test_arrays_that_disagree_about_a_dimension_are_fine_until_it_is_selected(
    empty: Repository,
) -> None:
    with empty.transaction("main", message="two") as store:
        zarr.create_array(store, name="a", data=np.ones(2, "i4"))
        zarr.create_array(store, name="b", data=np.ones(3, "i4"))
    session = empty.readonly_session("main")
    assert [row["shape"] for row in chunk_rows(session)] == [[2], [3]]
    with pytest.raises(InvalidInputError, match="'dim_0' has 2 positions in 'a' and 3 in 'b'"):
        chunk_rows(session, isel={"dim_0": 0})


def test_strings_are_no_bytes_of_an_array(empty: Repository) -> None:
    names = np.array(["a", "bc"], dtype=object)
    commit(empty, xr.Dataset({"name": ("x", names), "v": ("x", [1, 2])}))
    session = empty.readonly_session("main")
    assert {row["path"] for row in chunk_rows(session)} == {"/v"}
    with pytest.raises(InvalidInputError, match="'name' has values of variable length"):
        chunk_rows(session, variables=["name"])


def test_small_arrays_share_tasks(empty: Repository) -> None:
    """A task costs more than a few small arrays do."""
    with empty.transaction("main", message="many") as store:
        for number in range(70):
            zarr.create_array(store, name=f"a{number:02}", data=np.full(2, number))
    session = empty.readonly_session("main")
    plan = plan_chunks(session, ReadOptions.parse({"layout": "chunks"}))
    tasks = plan.partitions()
    assert sorted(map(len, tasks)) == [6, 64]
    # Zeros are what a chunk that is not there has, so the first array has none.
    batches = [list(read_chunks(session, plan, task)) for task in tasks]
    assert [len(task) for task in batches] == [1, 1]
    found = [row for (batch,) in batches for row in batch.to_pylist()]
    assert [np.frombuffer(row["data"], row["dtype"])[0] for row in found] == list(range(1, 70))
    assert [row["path"] for row in found] == [f"/a{number:02}" for number in range(1, 70)]
