"""A stream tells what each commit changed, once, whatever the micro-batches are."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icefloe.errors import InvalidInputError
from icefloe.repository import Repository
from icefloe.spark.option_parsing import encode_options
from icefloe.spark.streaming.stream_options import StreamOptions, has_stream_options
from icefloe.storage import local_filesystem_storage
from support.stream_cells import NEW, batch, day, write_rows
from support.stream_following import follow, read, steps

if TYPE_CHECKING:
    import pathlib


@pytest.fixture
def history(repository: Repository) -> list[str]:
    """Commit days 1 and 2, day 3 and 4, an attribute, and another value of day 1."""
    write_rows(repository, batch([1, 2]), **NEW)
    write_rows(repository, batch([3, 4]), append_dim="time")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="v", mode="r+").attrs["units"] = "K"
    session.commit("an attribute")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="v", mode="r+")[0, 2] = -1
    session.commit("a correction")
    return [info.id for info in repository.ancestry(branch="main")][::-1]


def test_each_commit_gives_its_own_rows(repository: Repository, history: list[str]) -> None:
    """Appended rows come alone, and a correction gives the rows of its chunk."""
    follower = follow(repository, commit_columns=True)
    assert follower.find_initial_snapshot() == history[0]
    found = read(follower, follower.find_initial_snapshot(), follower.fetch_tip())
    by_commit = {
        commit: sorted((row["time"], row["lat"]) for row in found if row["_snapshot_id"] == commit)
        for commit in history
    }
    lats = [10.0, 20.0, 30.0]
    assert by_commit[history[1]] == [(day(number), lat) for number in (1, 2) for lat in lats]
    assert by_commit[history[2]] == [(day(number), lat) for number in (3, 4) for lat in lats]
    assert by_commit[history[3]] == []
    assert by_commit[history[4]] == [(day(1), 30.0), (day(2), 30.0)]
    # Each commit is read as it was: the first does not know the correction.
    values = {row["_snapshot_id"]: row["v"] for row in found if (row["n"], row["lat"]) == (1, 30)}
    assert values == {history[1]: 130, history[4]: -1}


def test_micro_batches_add_up(repository: Repository, history: list[str]) -> None:
    """A limit cuts the way into pieces that give the same rows."""
    follower = follow(repository, maxCommitsPerTrigger=1, starting="earliest")
    ways = list(steps(follower))
    assert ways == list(pairwise(history))
    found = [row for start, stop in ways for row in read(follower, start, stop)]
    assert found == read(follower, history[0], history[-1])


def test_micro_batches_of_so_many_bytes(repository: Repository) -> None:
    """Whole commits go into one as long as they fit, and one that is larger goes alone."""
    write_rows(repository, batch([1, 2]), **NEW)
    for days in ([3], [4], [5], [6, 7, 8, 9], [10]):
        write_rows(repository, batch(days), append_dim="time")
    day_bytes = 3 * (8 + 8 + 4 + 4)
    sizes = {1: [2, 1, 1, 1, 4, 1], 2: [2, 2, 1, 4, 1], 3: [3, 2, 4, 1], 5: [5, 5], 99: [10]}
    for room, expected in sizes.items():
        follower = follow(repository, maxBytesPerTrigger=room * day_bytes)
        ways = list(steps(follower))
        assert [len(read(follower, *way)) // 3 for way in ways] == expected
    both = follow(repository, maxBytesPerTrigger=5 * day_bytes, maxCommitsPerTrigger=2)
    assert [len(read(both, *way)) // 3 for way in steps(both)] == [3, 2, 5]
    chunks = follow(
        repository, layout="chunks", variables="v", maxBytesPerTrigger=100, target_bytes=1
    )
    sizes_of_chunks = [sum(len(row["data"]) for row in read(chunks, *way)) for way in steps(chunks)]
    assert len(sizes_of_chunks) > 1
    assert all(size <= 100 for size in sizes_of_chunks)


def test_chunks_that_changed(repository: Repository, history: list[str]) -> None:
    """A correction is one chunk of one array."""
    follower = follow(repository, layout="chunks", variables="v,n")
    (row,) = read(follower, history[-2], history[-1])
    assert (row["path"], row["chunk"], row["offset"]) == ("/v", [0, 1], [0, 2])
    assert np.frombuffer(row["data"], row["dtype"]).tolist() == [-1, 230]


def test_where_a_stream_starts(repository: Repository, history: list[str]) -> None:
    assert follow(repository, starting="latest").find_initial_snapshot() == history[-1]
    assert follow(repository, startingSnapshot=history[2]).find_initial_snapshot() == history[2]
    with pytest.raises(InvalidInputError, match="not in the history"):
        follow(repository, startingSnapshot="ZZZZZZZZZZZZZZZZZZZG").find_initial_snapshot()


def test_a_branch_that_was_reset(repository: Repository, history: list[str]) -> None:
    """Nothing is guessed: the error says what was lost, and what to do."""
    repository.reset_branch("main", history[1])
    follower = follow(repository)
    with pytest.raises(InvalidInputError, match=r"reset.*new checkpoint.*startingSnapshot"):
        follower.advance(history[-1], follower.fetch_tip())


def test_columns_that_change(repository: Repository, history: list[str]) -> None:
    """A commit with other columns is an error that names both."""
    follower = follow(repository)
    write_rows(repository, batch([9]).remove_column(3), overwrite=True, dims=["time", "lat"])
    with pytest.raises(InvalidInputError, match=r"option\s+'variables'"):
        follower.plan_tasks(history[-1], follower.fetch_tip())


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"starting": "now"}, "earliest or latest"),
        ({"startingSnapshot": "x", "starting": "latest"}, "are mutually exclusive"),
        ({"maxCommitsPerTrigger": 0}, "'maxCommitsPerTrigger': expected a positive integer"),
        ({"maxBytesPerTrigger": "1g"}, "'maxBytesPerTrigger': expected a positive integer"),
        ({"starting": "latest", "tag": "v1"}, "reads a branch"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        StreamOptions.parse(encode_options(**given))


def test_options_of_streams_are_told_apart() -> None:
    assert has_stream_options({"maxCommitsPerTrigger": "1"})
    assert has_stream_options({"maxBytesPerTrigger": "1"})
    assert not has_stream_options({"path": "x", "group": "y"})


def test_what_expired_is_read_from_the_oldest_commit_that_was_kept(
    tmp_path: pathlib.Path, generation: str
) -> None:
    """A new stream loses nothing; a stream whose offset expired fails."""
    storage = local_filesystem_storage(tmp_path / "expiring")
    repository = Repository.create(storage, generation=generation)
    write_rows(repository, batch([1, 2]), **NEW)
    for number in (3, 5, 7):
        write_rows(repository, batch([number, number + 1]), append_dim="time")
    first, *lost, kept, tip = [info.id for info in repository.ancestry(branch="main")][::-1]
    follower = follow(repository)
    everything = {(row["n"], row["lat"]) for row in read(follower, first, tip)}
    assert len(everything) == 8 * 3
    repository.expire_snapshots(repository.lookup_snapshot(kept).written_at)

    assert follower.find_initial_snapshot() == first
    assert follower.advance(first, tip) == tip
    found = read(follower, first, tip)
    assert len(found) == len(everything)
    assert {(row["n"], row["lat"]) for row in found} == everything
    assert len(read(follower, kept, tip)) == 2 * 3
    chunks = follow(repository, layout="chunks", variables="v")
    assert len(read(chunks, first, tip)) == 4 * 2
    for start, stop in (lost[-1], tip), (first, lost[-1]):
        # In v1 and sequence, the file of an expired snapshot still says what came before it.
        if stop != lost[-1] or generation not in {"v1", "sequence"}:
            with pytest.raises(InvalidInputError, match=r"expired.*new checkpoint"):
                follower.plan_tasks(start, stop)


def test_small_commits_and_arrays_share_tasks(repository: Repository) -> None:
    """A task costs more than some bytes do; as much as was asked for goes into one."""
    for step in (1, 2, 3):
        with repository.transaction("main", message=str(step)) as store:
            for name in "abcdef":
                zarr.create_array(store, name=name, data=np.full(3, step), overwrite=True)
    follower = follow(repository, layout="chunks", commit_columns=True)
    (task,) = follower.plan_tasks(follower.find_initial_snapshot(), follower.fetch_tip())
    found = [row for part in follower.read(task) for row in part.to_pylist()]
    values = [(row["path"], np.frombuffer(row["data"], row["dtype"])[0]) for row in found]
    assert values == [(f"/{name}", step) for step in (1, 2, 3) for name in "abcdef"]
    assert len({row["_snapshot_id"] for row in found}) == 3
    each = follow(repository, layout="chunks", target_bytes=1)
    assert len(each.plan_tasks(each.find_initial_snapshot(), each.fetch_tip())) == 3 * 6
