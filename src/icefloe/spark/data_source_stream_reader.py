"""What Spark calls to follow a branch: wiring around `icefloe.spark.streaming.branch_follower`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from icefloe.spark.streaming.branch_follower import OFFSET_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.spark.streaming.branch_follower import BranchFollower


class IcefloeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Hands the commits of a branch to Spark, micro-batch by micro-batch."""

    def __init__(self, follower: BranchFollower) -> None:
        self._follower = follower
        self._target: str | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a stream without a checkpoint starts."""
        return {OFFSET_KEY: self._follower.initial()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Decide where a stream that reads what is available now ends."""
        self._target = self._follower.tip()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: ARG002, N802
        """Return how far the next micro-batch goes."""
        target = self._follower.tip() if self._target is None else self._target
        return {OFFSET_KEY: self._follower.advance(start[OFFSET_KEY], target)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a micro-batch into tasks."""
        tasks = self._follower.tasks(start[OFFSET_KEY], end[OFFSET_KEY])
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one task's part as Arrow batches."""
        return iter(()) if partition.value is None else self._follower.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to forget: history stays."""

    def stop(self) -> None:
        """Nothing to close."""
