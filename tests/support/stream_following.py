"""Following a branch without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.spark.option_parsing import encode_options
from icefloe.spark.streaming.branch_follower import BranchFollower
from icefloe.spark.streaming.stream_options import StreamOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.repository import Repository


def follow(repository: Repository, **given: Any) -> BranchFollower:
    return BranchFollower.begin(repository, StreamOptions.parse(encode_options(**given)))


def read(follower: BranchFollower, start: str, stop: str) -> list[dict[str, Any]]:
    tasks = follower.plan_tasks(start, stop)
    return [row for task in tasks for part in follower.read(task) for row in part.to_pylist()]


def steps(follower: BranchFollower) -> Iterator[tuple[str, str]]:
    """Tell from where to where each micro-batch goes, up to the tip."""
    place = follower.find_initial_snapshot()
    while (reached := follower.advance(place, follower.fetch_tip())) != place:
        yield place, reached
        place = reached
