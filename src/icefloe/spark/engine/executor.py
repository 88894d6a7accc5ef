"""`concurrent.futures.Executor` that runs functions on Spark."""

from __future__ import annotations

import pickle
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, TypeVar, cast

from icefloe.spark.engine.local_session import spark_session
from icefloe.spark.engine.tasks import Outcome, run_tasks
from icefloe.spark.option_parsing import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

    from icefloe.spark.engine.progress import Progress

T = TypeVar("T")


class SparkExecutor(Executor):
    """Runs functions on Spark, with a classic session or Spark Connect.

    ``map`` runs one Spark job for all items. ``submit`` runs a job for one call, and returns when
    the job is done. Functions and results must pickle, and the packages that they import must be
    installed on the executors.

    ``virtualizarr.open_virtual_mfdataset(urls, …, parallel=SparkExecutor)`` accepts the class and
    uses the running session.

    Parameters
    ----------
    spark
        Session to use; by default the running one, or else a new one on all cores of this machine.
    progress
        Progress callback, called with (done, total).
    """

    def __init__(
        self, spark: SparkSession | None = None, *, progress: Progress | None = None
    ) -> None:
        self._spark = spark_session() if spark is None else spark
        self._progress = progress
        self._is_shut_down = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call a function on Spark, and return a completed future."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(self._run(lambda _: fn(*args, **kwargs), [()])[0])
        except Exception as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Call a function for each item in one Spark job; results are in the order of the items.

        Raises the first exception in that order after all calls have finished. ``chunksize`` and
        ``buffersize`` have no effect; a ``timeout`` raises `InvalidInputError`.
        """
        del chunksize, buffersize
        if timeout is not None:
            raise input_error(
                "a Spark job has no timeout: omit it, or cancel the job from another thread"
            )
        return iter(self._run(lambda items: fn(*items), list(zip(*iterables, strict=False))))

    def shutdown(
        self,
        wait: bool = True,  # noqa: ARG002, FBT001, FBT002 - Python's signature
        *,
        cancel_futures: bool = False,  # noqa: ARG002 - nothing is pending
    ) -> None:
        """Reject further calls; the session keeps running, because it may be shared."""
        self._is_shut_down = True

    def _run(self, call: Callable[[Any], T], tasks: list[Any]) -> list[T]:
        if self._is_shut_down:
            raise RuntimeError("this executor was shut down: create a new one")
        outcomes = run_tasks(self._spark, tasks, _catch_errors(call), progress=self._progress)
        return [_get_result(outcome) for outcome in outcomes]


def _catch_errors(call: Callable[[Any], T]) -> Callable[[Any], tuple[T | None, Exception | None]]:
    def work(task: Any) -> tuple[T | None, Exception | None]:
        try:
            return call(task), None
        except Exception as error:  # noqa: BLE001 - the caller raises it
            try:
                pickle.loads(pickle.dumps(error))  # noqa: S301 - ours
            except Exception:  # noqa: BLE001 - any error means that it does not pickle
                raise error from None
            return None, error

    return work


def _get_result(outcome: Outcome[tuple[T | None, Exception | None]]) -> T:
    if outcome.error is not None:
        raise RuntimeError(outcome.error)
    value, error = cast("tuple[T, Exception | None]", outcome.result)
    if error is not None:
        raise error
    return value
