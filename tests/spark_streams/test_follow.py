"""A stream tells what each commit changed, once, whatever the micro-batches are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icefloe.errors import InvalidInputError
from icefloe.spark.options import encode_options
from icefloe.spark.stream_source import Follower
from icefloe.spark.write_options import StreamOptions, is_of_stream
from spark_streams.cells import NEW, batch, day, write_rows

if TYPE_CHECKING:
    from icefloe.repository import Repository


def follow(repository: Repository, **given: Any) -> Follower:
    return Follower.begin(repository, StreamOptions.parse(encode_options(**given)))


def read(follower: Follower, start: str, stop: str) -> list[dict[str, Any]]:
    tasks = follower.tasks(start, stop)
    return [row for task in tasks for part in follower.read(task) for row in part.to_pylist()]


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
    assert follower.initial() == history[0]
    found = read(follower, follower.initial(), follower.tip())
    by_commit = {
        one: sorted((row["time"], row["lat"]) for row in found if row["_snapshot_id"] == one)
        for one in history
    }
    lats = [10.0, 20.0, 30.0]
    assert by_commit[history[1]] == [(day(one), lat) for one in (1, 2) for lat in lats]
    assert by_commit[history[2]] == [(day(one), lat) for one in (3, 4) for lat in lats]
    assert by_commit[history[3]] == []
    assert by_commit[history[4]] == [(day(1), 30.0), (day(2), 30.0)]
    # Each commit is read as it was: the first does not know the correction.
    values = {row["_snapshot_id"]: row["v"] for row in found if (row["n"], row["lat"]) == (1, 30)}
    assert values == {history[1]: 130, history[4]: -1}


def test_micro_batches_add_up(repository: Repository, history: list[str]) -> None:
    """A limit cuts the way into pieces that give the same rows."""
    follower = follow(repository, maxCommitsPerTrigger=1, starting="earliest")
    place, found, steps = follower.initial(), [], [follower.initial()]
    while (reached := follower.advance(place, follower.tip())) != place:
        found += read(follower, place, reached)
        place = reached
        steps.append(place)
    assert steps == history
    assert found == read(follower, history[0], history[-1])


def test_chunks_that_changed(repository: Repository, history: list[str]) -> None:
    """A correction is one chunk of one array."""
    follower = follow(repository, layout="chunks", variables="v,n")
    (row,) = read(follower, history[-2], history[-1])
    assert (row["path"], row["chunk"], row["offset"]) == ("/v", [0, 1], [0, 2])
    assert np.frombuffer(row["data"], row["dtype"]).tolist() == [-1, 230]


def test_where_a_stream_starts(repository: Repository, history: list[str]) -> None:
    assert follow(repository, starting="latest").initial() == history[-1]
    assert follow(repository, startingSnapshot=history[2]).initial() == history[2]
    with pytest.raises(InvalidInputError, match="not in the history"):
        follow(repository, startingSnapshot="ZZZZZZZZZZZZZZZZZZZG").initial()


def test_a_branch_that_was_reset(repository: Repository, history: list[str]) -> None:
    """Nothing is guessed: the error says what was lost, and what to do."""
    repository.reset_branch("main", history[1])
    follower = follow(repository)
    with pytest.raises(InvalidInputError, match=r"reset.*new checkpoint.*startingSnapshot"):
        follower.advance(history[-1], follower.tip())


def test_columns_that_change(repository: Repository, history: list[str]) -> None:
    """A commit with other columns is an error that names both."""
    follower = follow(repository)
    write_rows(repository, batch([9]).remove_column(3), overwrite=True, dims=["time", "lat"])
    with pytest.raises(InvalidInputError, match=r"option\s+'variables'"):
        follower.tasks(history[-1], follower.tip())


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"starting": "now"}, "earliest or latest"),
        ({"startingSnapshot": "x", "starting": "latest"}, "exclude each other"),
        ({"maxCommitsPerTrigger": 0}, "above zero"),
        ({"starting": "latest", "tag": "v1"}, "follows a branch"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        StreamOptions.parse(encode_options(**given))


def test_options_of_streams_are_told_apart() -> None:
    assert is_of_stream({"maxCommitsPerTrigger": "1"})
    assert not is_of_stream({"path": "x", "group": "y"})
