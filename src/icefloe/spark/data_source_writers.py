"""What Spark calls to write: a batch, or the micro-batches of a stream.

Spark makes a writer in one process, writes in others, and commits in yet another; the writer of a
stream is made for each commit. Only messages go from tasks to commits: references and ids.
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
from icefloe.spark.option_parsing import invalid_input
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
class Message(WriterCommitMessage):
    """Answer of a task: references to what it wrote, and the id of the stream's query."""

    content: WrittenBlocks | StagedRows | None
    query: str | None = None


class IcefloeWriter(DataSourceArrowWriter):
    """Writes one DataFrame, in one commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._schema = to_arrow_schema(schema)
        self._repository = enable_packing(open_from_options(options.place, example=_SAVE))
        self._job: WriteJob | None = None
        self._base: str | None = None
        # The tip before the search: a later commit of this job is a conflict, and found then.
        session = self._repository.writable_session(options.branch)
        if find_written(self._repository, options.branch, options.job):
            return
        self._base = session.snapshot_id
        plan = plan_write(session, options, self._schema, overwrite=overwrite)
        if options.coords.keys() >= set(plan.unknown) and not plan.auxiliary:
            labels = parse_labels(plan, options.coords)
            grid = prepare_write(session, options, plan, labels)
            self._job = WriteJob.start(self._repository, session, options, plan, grid)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        if self._base is None:
            return Message(None)  # committed by an earlier attempt
        if self._job is not None:
            return Message(self._job.write_unrouted(iterator))
        session = self._repository.readonly_session(snapshot_id=self._base)
        return Message(stage_rows(session.connection, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what the tasks wrote, unless an earlier attempt did."""
        if self._base is None:
            return
        contents = _contents(messages)
        if self._job is not None:
            answers = [content for content in contents if isinstance(content, WrittenBlocks)]
            try:
                self._job.commit(answers, self._options.job)
            except RebaseFailedError as error:
                raise explain_conflict(error) from error  # no retry: the rows are gone
            return
        commit_staged_rows(
            self._repository,
            self._options,
            self._schema,
            [content for content in contents if isinstance(content, StagedRows)],
            overwrite=self._overwrite,
            job=self._options.job,
            # Appended rows are placed at the tip; what is overwritten must not have changed.
            base=self._base if self._overwrite else None,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: Spark calls this also after a commit that may have succeeded."""


class IcefloeStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches, each in one commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._schema = to_arrow_schema(schema)
        self._repository = enable_packing(open_from_options(options.place, example=_START))
        # Columns that do not fit are refused before anything is written.
        session = self._repository.readonly_session(options.branch)
        plan_write(session, options, self._schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        session = self._repository.readonly_session(self._options.branch)
        return Message(stage_rows(session.connection, iterator), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit a micro-batch, unless an earlier attempt did."""
        commit_staged_rows(
            self._repository,
            self._options,
            self._schema,
            [part for part in _contents(messages) if isinstance(part, StagedRows)],
            overwrite=self._overwrite,
            job=JobId(self._application(messages), batchId),
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: Spark calls this also after a commit that may have succeeded."""

    def _application(self, messages: list[WriterCommitMessage | None]) -> str:
        if self._options.transaction_id is not None:
            return self._options.transaction_id
        for message in messages:
            if isinstance(message, Message) and message.query is not None:
                return f"spark-stream/{message.query}"
        raise invalid_input(
            "Spark did not pass the id of this stream, without which commits are not idempotent: "
            "name the stream with the option 'transaction_id'"
        )


def _contents(
    messages: list[WriterCommitMessage | None],
) -> list[WrittenBlocks | StagedRows | None]:
    return [message.content for message in messages if isinstance(message, Message)]
