"""Spark's writer interfaces, for batches and for the micro-batches of a stream.

Spark creates a writer in one process, calls ``write`` in others, and ``commit`` in yet another; it
creates a new stream writer for each commit. Tasks pass only references and ids to the commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from icefloe.errors import RebaseFailedError
from icefloe.session.exactly_once import JobId
from icefloe.spark.engine.packing import enable_packing
from icefloe.spark.option_parsing import input_error
from icefloe.spark.reading.repository_options import open_from_options
from icefloe.spark.spark_versions import to_arrow_schema
from icefloe.spark.writing.staged_commit import commit_staged_rows
from icefloe.spark.writing.staged_rows import StagedRows, stage_rows
from icefloe.spark.writing.write_job import WriteJob, WrittenBlocks, find_written
from icefloe.spark.writing.write_planning import parse_labels, plan_write, prepare_write
from icefloe.spark.writing.write_retries import explain_conflict

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from icefloe.spark.writing.write_options import WriteOptions

_SAVE: Final = 'df.write.format("icefloe").mode("append").save({path})'
_START: Final = 'df.writeStream.format("icefloe").option("checkpointLocation", …).start({path})'


@dataclass(frozen=True, slots=True)
class CommitMessage(WriterCommitMessage):
    """Result of a task: references to its chunks or staged rows, and the id of the stream."""

    content: WrittenBlocks | StagedRows | None
    query_id: str | None = None


class IcefloeWriter(DataSourceArrowWriter):
    """Writes one DataFrame in one commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._schema = to_arrow_schema(schema)
        self._repository = enable_packing(open_from_options(options.repository, example=_SAVE))
        self._job: WriteJob | None = None
        self._base: str | None = None
        # Open the tip before the search: a commit of this job after the search is then a conflict.
        session = self._repository.writable_session(options.branch)
        if find_written(self._repository, options.branch, options.job):
            return
        self._base = session.snapshot_id
        plan = plan_write(session, options, self._schema, overwrite=overwrite)
        if options.coords.keys() >= set(plan.growing_dims) and not plan.auxiliary:
            labels = parse_labels(plan, options.coords)
            grid = prepare_write(session, options, plan, labels)
            self._job = WriteJob.start(self._repository, session, options, plan, grid)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        if self._base is None:
            return CommitMessage(None)  # committed by an earlier attempt
        if self._job is not None:
            return CommitMessage(self._job.write_unrouted(iterator))
        session = self._repository.readonly_session(snapshot_id=self._base)
        return CommitMessage(stage_rows(session.connection, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the chunks and rows of the tasks, unless an earlier attempt did."""
        if self._base is None:
            return
        contents = _get_contents(messages)
        if self._job is not None:
            results = [content for content in contents if isinstance(content, WrittenBlocks)]
            try:
                self._job.commit(results, self._options.job)
            except RebaseFailedError as error:
                # No retry: the rows are no longer available.
                raise explain_conflict(error) from error
            return
        commit_staged_rows(
            self._repository,
            self._options,
            self._schema,
            [content for content in contents if isinstance(content, StagedRows)],
            overwrite=self._overwrite,
            job=self._options.job,
            # An append starts from the tip; an overwrite fails if its region changed meanwhile.
            base=self._base if self._overwrite else None,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: Spark also calls this after a commit that may have succeeded."""


class IcefloeStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch in one commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._schema = to_arrow_schema(schema)
        self._repository = enable_packing(open_from_options(options.repository, example=_START))
        # Checks the columns before anything is written.
        session = self._repository.readonly_session(options.branch)
        plan_write(session, options, self._schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        session = self._repository.readonly_session(self._options.branch)
        return CommitMessage(stage_rows(session.connection, iterator), query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit a micro-batch, unless an earlier attempt did."""
        commit_staged_rows(
            self._repository,
            self._options,
            self._schema,
            [content for content in _get_contents(messages) if isinstance(content, StagedRows)],
            overwrite=self._overwrite,
            job=JobId(self._get_application_id(messages), batchId),
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: Spark also calls this after a commit that may have succeeded."""

    def _get_application_id(self, messages: list[WriterCommitMessage | None]) -> str:
        if self._options.transaction_id is not None:
            return self._options.transaction_id
        for message in messages:
            if isinstance(message, CommitMessage) and message.query_id is not None:
                return f"spark-stream/{message.query_id}"
        raise input_error(
            "Spark did not pass the query id of this stream, which makes commits idempotent: set "
            "the option 'transaction_id'"
        )


def _get_contents(
    messages: list[WriterCommitMessage | None],
) -> list[WrittenBlocks | StagedRows | None]:
    return [message.content for message in messages if isinstance(message, CommitMessage)]
