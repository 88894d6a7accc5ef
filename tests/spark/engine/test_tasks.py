"""Tasks on Spark: shared evenly, answered in their order, and with one core each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import zarr
from pyspark import TaskContext

from icefloe.spark.engine.tasks import Outcome, get_parallelism, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def partition_of(_: int) -> int:
    context: Any = TaskContext.get()
    found: int = context.partitionId()
    return found


def zarr_threads(_: int) -> Any:
    return zarr.config.get("threading.max_workers")


def half_of(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2


def test_tasks_are_dealt_out_evenly(spark: SparkSession) -> None:
    per_partition = 3
    partitions = get_parallelism(spark) * 3
    tasks = range(per_partition * partitions)
    outcomes = run_tasks(spark, tasks, partition_of)
    shares = Counter(outcome.result for outcome in outcomes)
    assert list(shares.values()) == [per_partition] * partitions


def test_a_task_that_raises_is_an_answer_in_its_place(spark: SparkSession) -> None:
    outcomes = run_tasks(spark, [4, 3, 2], half_of)
    assert outcomes == [
        Outcome(0, 2, None),
        Outcome(1, None, "ValueError: 3 is odd"),
        Outcome(2, 1, None),
    ]
    assert run_tasks(None, [4, 3, 2], half_of) == outcomes


def test_a_task_has_one_core_and_so_one_thread_of_zarr(spark: SparkSession) -> None:
    assert [outcome.result for outcome in run_tasks(spark, [0, 1], zarr_threads)] == [1, 1]
    assert run_tasks(None, [0], zarr_threads)[0].result == zarr.config.get("threading.max_workers")
