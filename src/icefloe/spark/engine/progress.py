"""How far a Spark job is, the same for classic sessions and Spark Connect.

Classic sessions are asked while the job runs; Connect tells by itself. Either way a listener hears
how many Spark tasks of the job are done, of how many.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

T = TypeVar("T")

_SECONDS_BETWEEN_LOOKS: Final = 0.2


class Progress(Protocol):
    """Hears how far a job is."""

    def __call__(self, done: int, total: int) -> None:
        """Take note that ``done`` of ``total`` Spark tasks are done."""
        ...


def is_connect(spark: SparkSession) -> bool:
    """Whether a session talks to a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def run_with_progress(spark: SparkSession, action: Callable[[], T], progress: Progress | None) -> T:
    """Run something that makes Spark work, and tell how far it is meanwhile."""
    if progress is None:
        return action()
    if is_connect(spark):
        with _forward_progress(spark, progress):
            return action()
    return _poll_progress(spark, action, progress)


@contextmanager
def _forward_progress(spark: Any, progress: Progress) -> Iterator[None]:
    def handle(stages: Any, **_: Any) -> None:
        found = list(stages or ())
        if found:
            progress(
                sum(stage.num_completed_tasks for stage in found),
                sum(stage.num_tasks for stage in found),
            )

    spark.registerProgressHandler(handle)
    try:
        yield
    finally:
        spark.removeProgressHandler(handle)


def _poll_progress(spark: SparkSession, action: Callable[[], T], progress: Progress) -> T:
    from pyspark import InheritableThread  # noqa: PLC0415 - an extra

    context = spark.sparkContext
    group = f"icefloe-{uuid.uuid4().hex}"
    answer: list[T] = []
    error: list[BaseException] = []
    done = threading.Event()

    def act() -> None:
        try:
            # In this thread only: jobs that the caller starts elsewhere are not counted.
            context.setJobGroup(group, "icefloe", interruptOnCancel=True)
            answer.append(action())
        except BaseException as problem:  # noqa: BLE001 - raised again by the one who waits
            error.append(problem)
        finally:
            done.set()

    thread = InheritableThread(target=act, daemon=True)
    thread.start()
    try:
        while not done.wait(_SECONDS_BETWEEN_LOOKS):
            progress(*_count(context, group))
    except BaseException:
        context.cancelJobGroup(group)
        raise
    thread.join()
    if error:
        raise error[0]
    progress(*_count(context, group))  # also of a job that was done before anybody looked
    return answer[0]


def _count(context: Any, group: str) -> tuple[int, int]:
    tracker = context.statusTracker()
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            found = tracker.getStageInfo(stage)
            if found is not None:
                done += found.numCompletedTasks
                total += found.numTasks
    return done, total
