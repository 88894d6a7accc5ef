"""What Spark calls to follow a branch: wiring around `streaming.branch_follower`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.spark_versions import HAS_READ_LIMITS, SupportsTriggerAvailableNow
from icefloe.spark.streaming.branch_follower import OFFSET_KEY, BranchFollower

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class IcefloeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Passes the commits of a branch to Spark, micro-batch by micro-batch."""

    def __init__(self, follower: BranchFollower) -> None:
        options = follower.options
        if not HAS_READ_LIMITS and (options.max_commits or options.max_bytes):
            raise invalid_input(
                "maxCommitsPerTrigger and maxBytesPerTrigger need Spark 4.2 or later: leave them "
                "out, or upgrade Spark"
            )
        self._follower = follower
        self._target: str | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a stream without a checkpoint starts."""
        return {OFFSET_KEY: self._follower.initial()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of a stream that reads what is available now."""
        self._target = self._follower.tip()

    def latestOffset(  # noqa: N802
        self,
        start: dict[str, Any] | None = None,
        limit: Any = None,  # noqa: ARG002 - of options
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch; Spark 4.1 does not pass ``start``."""
        target = self._follower.tip() if self._target is None else self._target
        if start is None:
            return {OFFSET_KEY: target}
        return {OFFSET_KEY: self._follower.advance(start[OFFSET_KEY], target)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Split a micro-batch into tasks."""
        tasks = self._follower.tasks(start[OFFSET_KEY], end[OFFSET_KEY])
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one task as Arrow batches."""
        return iter(()) if partition.value is None else self._follower.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: history stays."""

    def stop(self) -> None:
        """Do nothing: there is nothing to close."""
