"""Job that converts a repository to another generation of the specification.

`icefloe.maintenance.conversion` does the work; tasks on Spark copy chunk files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.format.generation import get_generation
from icefloe.maintenance.conversion import convert_storage
from icefloe.maintenance.conversion.convert import DEFAULT_BATCH_BYTES
from icefloe.maintenance.conversion.history import Selection
from icefloe.maintenance.progress import ignore_progress
from icefloe.pipeline.report import Failure, JobFailedError
from icefloe.pipeline.run import REMEDY
from icefloe.repository import Repository
from icefloe.spark.engine.tasks import run_tasks
from icefloe.storage import Storage, storage_from_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from icefloe.maintenance.conversion import ConversionReport
    from icefloe.maintenance.conversion.chunks import ChunkFiles, CopyBatch, CopyResult
    from icefloe.maintenance.conversion.convert import ReportBatches
    from icefloe.maintenance.progress import Progress
    from icefloe.spark.engine.deferred_session import DeferredSession


def convert_repository(
    source: Repository | Storage | str,
    target: Storage | str,
    *,
    to: str,
    branch: str | None = None,
    newest: bool = False,
    spark: SparkSession | DeferredSession | None = None,
    dry_run: bool = False,
    task_bytes: int = DEFAULT_BATCH_BYTES,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert a repository to another generation, into another root.

    Branches, tags, history with messages, times and metadata, attributes, configuration and data
    are kept; ids of snapshots are mapped, and the map is in the report and in ``conversion.json``
    in the target. The source does not change, and commits to it after the start are not converted.
    The target appears as a repository when it is complete. If the conversion is interrupted, the
    same call continues it.

    If the target is the source, generations v1 and v2 are converted in place: v1 to v2 is
    `icefloe.upgrade_icechunk_repository`; v2 to v1 makes the repository read-only until it is done.

    Parameters
    ----------
    source
        The repository, its storage, or its URL or directory.
    target
        The root of the new repository, which must be empty.
    to
        The generation: ``draft``, ``sequence``, ``v1`` or ``v2``.
    branch
        Convert only this branch, with its history and the tags on it; by default everything.
    newest
        Convert only the newest snapshot of the branch (default: main), without its history.
    spark
        Copies chunk files in Spark tasks; None copies them in this process.
    dry_run
        Whether to report what would be converted and write nothing.
    task_bytes
        Size of the chunk files that a task copies, and holds in memory at most.
    progress
        Called with a `Step` after each file that was read or written.

    Raises
    ------
    FormatError
        Of kind ``UNSUPPORTED_OPERATION_FOR_VERSION`` if the target generation cannot express
        something, with a list of everything that it cannot; nothing is written.
    AlreadyExistsError
        If the target is not empty, or has another conversion.
    """

    def run_batches(
        batches: Sequence[ChunkFiles],
        copy: CopyBatch,
        report: ReportBatches,
    ) -> list[CopyResult]:
        outcomes = run_tasks(spark, batches, copy, progress=report)
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        if errors:
            failures = [Failure("copying chunks", error) for error in errors]
            raise JobFailedError("convert", failures, remedy=REMEDY)
        return [outcome.result for outcome in outcomes if outcome.result is not None]

    return convert_storage(
        _get_storage(source),
        _get_storage(target),
        to=get_generation(to),
        selection=Selection(branch, newest),
        dry_run=dry_run,
        batch_bytes=task_bytes,
        run_batches=run_batches,
        progress=ignore_progress if progress is None else progress,
    )


def _get_storage(place: Repository | Storage | str) -> Storage:
    if isinstance(place, Repository):
        return place.storage
    return place if isinstance(place, Storage) else storage_from_url(place)
