"""Tasks on Spark: a list of values, a function, and the outcome of each.

One `mapInArrow` stage: tasks and results travel as bytes, and arrays stay in the Python workers. A
task that raises is an outcome, so that one bad file does not hide the others and is not retried.
Spark retries tasks whose worker died.

Credentials travel in the function, never in rows, which are shown, shuffled and spilled.
"""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from icefloe.errors import IcefloeError
from icefloe.spark.engine.progress import Progress, is_connect, run_with_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession


T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)

_WAVES: Final = 3
"""Spark tasks per core: a slow one then delays a third of a core's work."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """Result of one task, or the text of its error."""

    index: int
    result: R | None
    error: str | None


def parallelism(spark: SparkSession | None) -> int:
    """Return how many tasks run at the same time; a guess on Spark Connect."""
    if spark is None:
        return 1
    if is_connect(spark):
        return int(spark.conf.get("spark.default.parallelism", "8") or 8)
    return int(spark.sparkContext.defaultParallelism)


def run_tasks(
    spark: SparkSession | None,
    tasks: Sequence[T],
    work: Callable[[T], R],
    *,
    progress: Progress | None = None,
) -> list[Outcome[R]]:
    """Run a function for each task, and return the outcomes in the order of the tasks.

    Without ``spark`` they run in-process, to the same result. Tasks are pickled, and visible to
    everyone who sees the job; ``work`` is pickled too, with the credentials that it needs.
    """
    if spark is None:
        return list(_run_in_process(tasks, work, progress))
    if not tasks:
        return []
    import pyarrow as pa  # noqa: PLC0415 - an extra

    partitions = min(len(tasks), parallelism(spark) * _WAVES)
    _log.debug("running %d tasks in %d partitions", len(tasks), partitions)
    table = pa.table(
        {
            "index": pa.array(range(len(tasks)), pa.int64()),
            "partition": pa.array((index % partitions for index in range(len(tasks))), pa.int32()),
            "task": pa.array([pickle.dumps(task) for task in tasks], pa.binary()),
        }
    )
    # Round-robin: `repartition` hashes, and gives some cores twice their share.
    frame = spark.createDataFrame(table).repartitionById(partitions, "partition")
    done = frame.mapInArrow(_make_worker(work), "index long, result binary, error string")
    answers = run_with_progress(spark, done.toArrow, progress)
    columns = (answers[name].to_pylist() for name in ("index", "result", "error"))
    outcomes = [
        Outcome(index, None if result is None else pickle.loads(result), error)  # noqa: S301 - ours
        for index, result, error in zip(*columns, strict=True)
    ]
    return sorted(outcomes, key=lambda outcome: outcome.index)


def _run_in_process(
    tasks: Sequence[T], work: Callable[[T], R], progress: Progress | None
) -> Iterator[Outcome[R]]:
    for index, task in enumerate(tasks):
        try:
            outcome = Outcome(index, work(task), None)
        except Exception as error:  # noqa: BLE001 - as in a worker
            outcome = Outcome(index, None, format_error(error))
        yield outcome
        if progress is not None:
            progress(index + 1, len(tasks))


def _make_worker(
    work: Callable[[Any], Any],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - in the worker
        import zarr  # noqa: PLC0415 - in the worker

        types = {"index": pa.int64(), "result": pa.binary(), "error": pa.string()}
        schema = pa.schema(types)
        # A task has one core: more threads would compete with those of other tasks.
        with zarr.config.set({"threading.max_workers": 1}):
            for batch in batches:
                columns = (batch[name].to_pylist() for name in ("index", "task"))
                for index, task in zip(*columns, strict=True):
                    result = text = None
                    try:
                        result = pickle.dumps(work(pickle.loads(task)))  # noqa: S301 - ours
                    except Exception as error:  # noqa: BLE001 - an outcome
                        text = format_error(error)
                    row = {"index": index, "result": result, "error": text}
                    yield pa.RecordBatch.from_pylist([row], schema)

    return run


def format_error(error: Exception) -> str:
    """Return the text of an error for a report; the type is left out for errors of icefloe."""
    if isinstance(error, IcefloeError):
        return str(error)
    return f"{type(error).__name__}: {error}"
