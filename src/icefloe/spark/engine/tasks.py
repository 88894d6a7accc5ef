"""Work that Spark does for us: a list of tasks, a function, and what became of each.

One `mapInArrow` stage: tasks go out as bytes, what they made comes back as bytes, and arrays stay
in the Python workers. A task that raises is an answer too, so that one bad file does not hide the
others, and is not tried four times. What kills a worker is Spark's to repeat.

Credentials travel in the function, never in the rows: rows are shown, shuffled and spilled.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from icefloe.errors import IcefloeError
from icefloe.spark.engine.progress import is_connect, run_with_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from icefloe.spark.engine.progress import Progress

T = TypeVar("T")
R = TypeVar("R")

_WAVES: Final = 3
"""Spark tasks per core: a slow one then holds up a third of a core's work, not all of it."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What became of one task: its result, or why there is none."""

    index: int
    result: R | None
    error: str | None

    @property
    def failed(self) -> bool:
        """Whether the task raised."""
        return self.error is not None


def parallelism(spark: SparkSession | None) -> int:
    """Tell how many tasks run at the same time."""
    if spark is None:
        return 1
    if is_connect(spark):
        # Not told; as many partitions as a local relation gets would be a guess as well.
        return int(spark.conf.get("spark.default.parallelism", "8") or 8)
    return int(spark.sparkContext.defaultParallelism)


def run_tasks(
    spark: SparkSession | None,
    tasks: Sequence[T],
    work: Callable[[T], R],
    *,
    progress: Progress | None = None,
) -> list[Outcome[R]]:
    """Do a piece of work for each task, in the order of the tasks.

    Parameters
    ----------
    spark
        A classic session or one of Spark Connect; without one this process does all tasks, one
        after the other, to the same result.
    tasks
        What differs from one to the next; pickled, seen by whoever sees the job.
    work
        Pickles too, with whatever it needs, credentials among it.
    progress
        Hears how far the work is.
    """
    if spark is None:
        return list(_run_in_process(tasks, work, progress))
    if not tasks:
        return []
    import pyarrow as pa  # noqa: PLC0415 - an extra

    partitions = min(len(tasks), parallelism(spark) * _WAVES)
    table = pa.table(
        {
            "index": pa.array(range(len(tasks)), pa.int64()),
            "partition": pa.array((index % partitions for index in range(len(tasks))), pa.int32()),
            "task": pa.array([pickle.dumps(task) for task in tasks], pa.binary()),
        }
    )
    # Dealt out like cards; by chance, as `repartition` does it, some cores get twice their share.
    frame = spark.createDataFrame(table).repartitionById(partitions, "partition")
    done = frame.mapInArrow(_make_worker(work), "index long, result binary, error string")
    answers = run_with_progress(spark, done.toArrow, progress)
    outcomes = [
        Outcome(index, None if result is None else pickle.loads(result), error)  # noqa: S301 - ours
        for index, result, error in zip(
            *(answers[name].to_pylist() for name in ("index", "result", "error")), strict=True
        )
    ]
    return sorted(outcomes, key=lambda outcome: outcome.index)


def _run_in_process(
    tasks: Sequence[T], work: Callable[[T], R], progress: Progress | None
) -> Iterator[Outcome[R]]:
    for index, task in enumerate(tasks):
        try:
            outcome = Outcome(index, work(task), None)
        except Exception as problem:  # noqa: BLE001 - told, as by a worker
            outcome = Outcome(index, None, format_error(problem))
        yield outcome
        if progress is not None:
            progress(index + 1, len(tasks))


def _make_worker(
    work: Callable[[Any], Any],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def do(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - in the worker
        import zarr  # noqa: PLC0415 - in the worker

        # A task has one core: threads of its own would take turns with those of its neighbours.
        with zarr.config.set({"threading.max_workers": 1}):
            for batch in batches:
                for index, task in zip(
                    batch["index"].to_pylist(), batch["task"].to_pylist(), strict=True
                ):
                    result = error = None
                    try:
                        result = pickle.dumps(work(pickle.loads(task)))  # noqa: S301 - ours
                    except Exception as problem:  # noqa: BLE001 - told, see above
                        error = format_error(problem)
                    yield pa.RecordBatch.from_arrays(
                        [
                            pa.array([index], pa.int64()),
                            pa.array([result], pa.binary()),
                            pa.array([error], pa.string()),
                        ],
                        names=["index", "result", "error"],
                    )

    return do


def format_error(problem: Exception) -> str:
    """Say what went wrong in a task, for somebody who was not there."""
    if isinstance(problem, IcefloeError):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"
