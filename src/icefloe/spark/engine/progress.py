"""Progress of Spark jobs: polled in classic sessions, received from Spark Connect."""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

T = TypeVar("T")

_POLL_SECONDS: Final = 0.2


class Progress(Protocol):
    """Progress callback."""

    def __call__(self, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` Spark tasks are done."""


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is connected to a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def run_with_progress(spark: SparkSession, action: Callable[[], T], progress: Progress | None) -> T:
    """Run a Spark action and report its progress while it runs."""
    if progress is None:
        return action()
    if is_connect(spark):
        with _forward_progress(spark, progress):
            return action()
    return _poll_progress(spark, action, progress)


@contextmanager
def _forward_progress(spark: Any, progress: Progress) -> Iterator[None]:
    def handle(stages: Any, **_: Any) -> None:
        if current := list(stages or ()):
            done = sum(stage.num_completed_tasks for stage in current)
            progress(done, sum(stage.num_tasks for stage in current))

    spark.registerProgressHandler(handle)
    try:
        yield
    finally:
        spark.removeProgressHandler(handle)


def _poll_progress(spark: SparkSession, action: Callable[[], T], progress: Progress) -> T:
    from pyspark import InheritableThread  # noqa: PLC0415 - an extra

    context = spark.sparkContext
    group = f"icefloe-{uuid.uuid4().hex}"
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            # The job group is per thread: other jobs of the caller are not counted.
            context.setJobGroup(group, "icefloe", interruptOnCancel=True)
            results.append(action())
        except BaseException as error:  # noqa: BLE001 - raised in the calling thread
            errors.append(error)
        finally:
            done.set()

    thread = InheritableThread(target=run, daemon=True)
    thread.start()
    try:
        while not done.wait(_POLL_SECONDS):
            progress(*_count_tasks(context, group))
    except BaseException:
        context.cancelJobGroup(group)
        raise
    thread.join()
    if errors:
        raise errors[0]
    progress(*_count_tasks(context, group))  # also for jobs shorter than the interval
    return results[0]


def _count_tasks(context: Any, group: str) -> tuple[int, int]:
    tracker = context.statusTracker()
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage_id in info.stageIds if info is not None else ():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
    return done, total
