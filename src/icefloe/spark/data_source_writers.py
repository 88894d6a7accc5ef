"""What Spark calls to write: a batch, or one micro-batch of a stream after the other.

Spark makes a writer in one process, writes in others, and commits in yet another; a stream's writer
is made anew for each commit. Only messages go from tasks to commits: references and ids.
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
from icefloe.session.exactly_once import JobId, find_committed
from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.reading.repository_options import open_from_options
from icefloe.spark.spark_versions import to_arrow_schema
from icefloe.spark.writing.sink import (
    Aside,
    Part,
    WriteJob,
    commit_rows,
    packing,
    put_aside,
)
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
    """What a task tells the commit.

    Parameters
    ----------
    content
        The references of what it wrote; None where there was nothing to do.
    query
        The stream that it is of.
    """

    content: Part | Aside | None
    query: str | None = None


class IcefloeWriter(DataSourceArrowWriter):
    """Writes one DataFrame, in one commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._schema = to_arrow_schema(schema)
        self._repository = packing(open_from_options(options.place, example=_SAVE))
        self._job: WriteJob | None = None
        self._base: str | None = None
        # The tip first: a commit of this very job that comes after it is a conflict, and found.
        session = self._repository.writable_session(options.branch)
        if options.job is not None and find_committed(
            self._repository, options.branch, options.job
        ):
            return
        self._base = session.snapshot_id
        intent = plan_write(session, options, self._schema, overwrite=overwrite)
        if options.coords.keys() >= set(intent.unknown) and not intent.beside:
            labels = parse_labels(intent, options.coords)
            grid = prepare_write(session, options, intent, labels)
            self._job = WriteJob.start(self._repository, session, options, intent, grid)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        if self._base is None:
            return Message(None)  # committed long ago
        if self._job is not None:
            return Message(self._job.write_unrouted(iterator))
        session = self._repository.readonly_session(snapshot_id=self._base)
        return Message(put_aside(session.connection, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what the tasks wrote, unless this commit was made before."""
        if self._base is None:
            return
        contents = _contents(messages)
        if self._job is not None:
            parts = [one for one in contents if isinstance(one, Part)]
            try:
                self._job.commit(parts, self._options.job)
            except RebaseFailedError as error:
                raise explain_conflict(
                    error
                ) from error  # the rows are gone: nobody can try again here
            return
        commit_rows(
            self._repository,
            self._options,
            self._schema,
            [one for one in contents if isinstance(one, Aside)],
            overwrite=self._overwrite,
            job=self._options.job,
            # Appended rows find their places at the tip; what is overwritten must not have changed.
            base=self._base if self._overwrite else None,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete nothing: Spark calls this also after a commit that may have landed."""


class IcefloeStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches, each in one commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._schema = to_arrow_schema(schema)
        self._repository = packing(open_from_options(options.place, example=_START))
        # Refused before anything is written: what the rows are is known by now.
        session = self._repository.readonly_session(options.branch)
        plan_write(session, options, self._schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Put the rows of one task aside."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        session = self._repository.readonly_session(self._options.branch)
        return Message(put_aside(session.connection, iterator), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit a micro-batch, unless it was committed before."""
        commit_rows(
            self._repository,
            self._options,
            self._schema,
            [one for one in _contents(messages) if isinstance(one, Aside)],
            overwrite=self._overwrite,
            job=JobId(self._application(messages), batchId),
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete nothing: Spark calls this also after a commit that may have landed."""

    def _application(self, messages: list[WriterCommitMessage | None]) -> str:
        if self._options.transaction_id is not None:
            return self._options.transaction_id
        for message in messages:
            if isinstance(message, Message) and message.query is not None:
                return f"spark-stream/{message.query}"
        raise invalid_input(
            "Spark did not tell the id of this stream, without which a commit cannot be made once: "
            "name the stream with the option 'transaction_id'"
        )


def _contents(messages: list[WriterCommitMessage | None]) -> list[Part | Aside | None]:
    return [message.content for message in messages if isinstance(message, Message)]
