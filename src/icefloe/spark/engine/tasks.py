"""Running tasks on Spark: one call of a function per task, with an outcome for each.

All tasks run in one `mapInArrow` stage, which transfers tasks and results as pickled bytes. An
exception is part of the outcome: one bad file neither fails the other tasks nor is retried. Spark
retries tasks whose worker died.

Credentials are part of the function, never of rows, which Spark displays, shuffles and spills.
"""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from icefloe.errors import IcefloeError
from icefloe.spark.engine.deferred_session import DeferredSession, resolve_session
from icefloe.spark.engine.progress import Progress, is_connect, run_with_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession


T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)

_WAVES: Final = 3
"""Partitions per core: smaller ones balance better if some tasks are slow."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """Result of one task, or the text of its error."""

    index: int
    result: R | None
    error: str | None


def get_parallelism(spark: SparkSession | DeferredSession | None) -> int:
    """Return how many tasks run at the same time; an estimate on Spark Connect."""
    if spark is None:
        return 1
    if isinstance(spark, DeferredSession):
        return spark.num_cores or get_parallelism(spark.get())
    if is_connect(spark):
        return int(spark.conf.get("spark.default.parallelism", "8") or 8)
    return int(spark.sparkContext.defaultParallelism)


def run_tasks(
    spark: SparkSession | DeferredSession | None,
    tasks: Sequence[T],
    work: Callable[[T], R],
    *,
    progress: Progress | None = None,
) -> list[Outcome[R]]:
    """Call ``work`` for each task, and return the outcomes in the order of the tasks.

    None for ``spark`` runs in-process. Tasks are pickled into rows, which Spark may display;
    ``work`` is pickled with the credentials that it needs.
    """
    if spark is None:
        return list(_run_in_process(tasks, work, progress))
    if not tasks:
        return []
    import pyarrow as pa  # noqa: PLC0415 - an extra

    spark = resolve_session(spark)
    partitions = min(len(tasks), get_parallelism(spark) * _WAVES)
    _log.debug("running %d tasks in %d partitions", len(tasks), partitions)
    table = pa.table(
        {
            "index": pa.array(range(len(tasks)), pa.int64()),
            "partition": pa.array((index % partitions for index in range(len(tasks))), pa.int32()),
            "task": pa.array([pickle.dumps(task) for task in tasks], pa.binary()),
        }
    )
    # Round-robin: `repartition` hashes, and gives some partitions twice as many tasks.
    frame = spark.createDataFrame(table).repartitionById(partitions, "partition")
    results = frame.mapInArrow(_make_worker(work), "index long, result binary, error string")
    table = run_with_progress(spark, results.toArrow, progress)
    columns = (table[name].to_pylist() for name in ("index", "result", "error"))
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
        except Exception as error:  # noqa: BLE001 - part of the outcome
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
        # Spark runs one task per core: more threads would compete with other tasks.
        with zarr.config.set({"threading.max_workers": 1}):
            for batch in batches:
                columns = (batch[name].to_pylist() for name in ("index", "task"))
                for index, task in zip(*columns, strict=True):
                    result = text = None
                    try:
                        result = pickle.dumps(work(pickle.loads(task)))  # noqa: S301 - ours
                    except Exception as error:  # noqa: BLE001 - part of the outcome
                        text = format_error(error)
                    row = {"index": index, "result": result, "error": text}
                    yield pa.RecordBatch.from_pylist([row], schema)

    return run


def format_error(error: Exception) -> str:
    """Return the message of an error, with its type unless it is an error of icefloe."""
    if isinstance(error, IcefloeError):
        return str(error)
    return f"{type(error).__name__}: {error}"
