"""Spark's stream reader interface, implemented by `streaming.branch_follower`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from icefloe.spark.option_parsing import input_error
from icefloe.spark.spark_versions import HAS_READ_LIMITS, SupportsTriggerAvailableNow
from icefloe.spark.streaming.branch_follower import OFFSET_KEY, BranchFollower

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class IcefloeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the commits of a branch in micro-batches."""

    def __init__(self, follower: BranchFollower) -> None:
        options = follower.options
        if not HAS_READ_LIMITS and (options.max_commits or options.max_bytes):
            raise input_error(
                "maxCommitsPerTrigger and maxBytesPerTrigger need Spark 4.2 or later: omit "
                "them, or upgrade Spark"
            )
        self._follower = follower
        self._target: str | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset at which a stream without a checkpoint starts."""
        return {OFFSET_KEY: self._follower.find_initial_snapshot()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the final offset of a stream with the trigger ``availableNow``."""
        self._target = self._follower.fetch_tip()

    def latestOffset(  # noqa: N802
        self,
        start: dict[str, Any] | None = None,
        limit: Any = None,  # noqa: ARG002 - limits are options
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch; Spark 4.1 does not pass ``start``."""
        target = self._follower.fetch_tip() if self._target is None else self._target
        if start is None:
            return {OFFSET_KEY: target}
        return {OFFSET_KEY: self._follower.advance(start[OFFSET_KEY], target)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Split a micro-batch into tasks."""
        tasks = self._follower.plan_tasks(start[OFFSET_KEY], end[OFFSET_KEY])
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one task as Arrow batches."""
        return iter(()) if partition.value is None else self._follower.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the history of the branch is kept."""

    def stop(self) -> None:
        """Do nothing: there is nothing to close."""
