"""A branch as a stream: the rows or chunks that each new commit changed.

An offset names a snapshot: everything up to it was seen. Between two offsets lie commits; each is
read as it was when it was made, so that the same commits give the same rows, however they are cut
into micro-batches. No commit is cut in two.

A commit gives the rows that it added, and the rows of the chunks that it wrote, which are more than
those whose values changed where it wrote to a part of a chunk (`commit_changes`). New
labels alone, new attributes, and deletions give none.

Where snapshots expired, the oldest commit that was kept is the first one's child, and all that it
has is new: it gives every row, or every chunk that is there, as of itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from icefloe.errors import NodeNotFoundError, SnapshotNotFoundError
from icefloe.spark.reading.chunks import ChunksPlan, read_chunks
from icefloe.spark.reading.group import has_arrays
from icefloe.spark.reading.partitions import choose_target_bytes, pack_tasks
from icefloe.spark.reading.read_options import invalid_input
from icefloe.spark.reading.read_plan import plan_read
from icefloe.spark.reading.rows import RowsPlan, read_rows
from icefloe.spark.reading.snapshot_source import SnapshotSource
from icefloe.spark.streaming.commit_changes import (
    find_all_chunks,
    find_changed_chunks,
    find_changed_rows,
    find_written_chunks,
    may_affect,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.snapshots import SnapshotInfo
    from icefloe.spark.streaming.commit_changes import Changed, CommitPart
    from icefloe.spark.writing.write_options import StreamOptions

COMMIT_COLUMNS: Final = (
    pa.field("_snapshot_id", pa.string()),
    pa.field("_committed_at", pa.timestamp("us", "UTC")),
)
OFFSET_KEY: Final = "snapshot"


@dataclass(frozen=True, slots=True, eq=False)
class BranchFollower:
    """Follows a branch; pickles, with the credentials of its repository inside."""

    repository: Repository
    options: StreamOptions
    schema: pa.Schema

    @classmethod
    def begin(cls, repository: Repository, options: StreamOptions) -> BranchFollower:
        """Learn the columns from the branch as it is now."""
        plan = plan_read(SnapshotSource.resolve(repository, options.read), options.read)
        return cls(repository, options, _columns(plan.schema, options))

    def initial(self) -> str:
        """Return the snapshot that a new stream starts after."""
        options = self.options
        infos = list(self.repository.ancestry(branch=options.branch))
        if options.starting_snapshot is not None:
            if all(info.id != options.starting_snapshot for info in infos):
                raise invalid_input(
                    f"startingSnapshot {options.starting_snapshot!r} is not in the history of "
                    f"branch {options.branch!r}; that goes from {infos[-1].id} to {infos[0].id}"
                )
            return options.starting_snapshot
        return infos[0].id if options.starting == "latest" else infos[-1].id

    def tip(self) -> str:
        """Return the newest snapshot of the branch."""
        return self.repository.lookup_branch(self.options.branch)

    def advance(self, start: str, target: str) -> str:
        """Return how far a micro-batch goes, on the way from a snapshot to another.

        It has one commit at least, however large that is: otherwise it would stay where it is.
        """
        if start == target:
            return start
        newer = self.between(start, target)[: self.options.max_commits]
        room = self.options.max_bytes
        if room is None:
            return newer[-1].id
        reached = start
        total = 0.0
        for info, changed in self._changes(start, newer):
            total += sum(one.num_bytes for one in changed)
            if total > room and reached != start:
                break
            reached = info.id
        return reached

    def between(self, start: str, stop: str) -> list[SnapshotInfo]:
        """Return the commits after a snapshot, up to another one, oldest first.

        Raises
        ------
        InvalidInputError
            If the second does not come from the first.
        """
        found: list[SnapshotInfo] = []
        gone = None
        try:
            for info in self.repository.ancestry(snapshot_id=stop):
                if info.id == start:
                    return found[::-1]
                found.append(info)
        except SnapshotNotFoundError as error:
            gone = error
        raise invalid_input(
            f"snapshot {start}, up to which this stream has read, is not in the history of "
            f"{stop}, up to which it is to read branch {self.options.branch!r}: the branch was "
            "reset, or one of the two expired. Nobody can tell what is new. Start the stream with "
            "a new checkpoint, which reads all that is there, or with the option startingSnapshot "
            "what came after that; or reset the branch to a snapshot that comes from this one"
        ) from gone

    def tasks(self, start: str, stop: str) -> list[tuple[CommitPart, ...]]:
        """Cut what commits changed into tasks; small commits share one."""
        newer = self.between(start, stop)
        changed = [one for _, some in self._changes(start, newer) for one in some]
        total = sum(one.num_bytes for one in changed)
        target = choose_target_bytes(total, self.options.read.target_bytes)
        return pack_tasks((part for one in changed for part in one.cut(target)), target)

    def read(self, task: tuple[CommitPart, ...]) -> Iterator[pa.RecordBatch]:
        """Read a task as batches."""
        for (snapshot_id, committed_at), some in groupby(
            task, lambda one: (one.snapshot_id, one.committed_at)
        ):
            session = SnapshotSource(self.repository, snapshot_id).session()
            plan = self._plan(session)
            self._require_columns(session, plan)
            listed = list(some)
            parts = [part for one in listed for part in one.parts]
            batches: Iterator[pa.RecordBatch]
            if isinstance(plan, RowsPlan):
                cut = plan.split(listed[0].ends)
                batches = (batch for part in parts for batch in read_rows(session, cut, part))
            else:
                batches = read_chunks(session, plan, parts)
            for batch in batches:
                yield self._with_commit(batch, snapshot_id, committed_at)

    def _changes(
        self, start: str, newer: Sequence[SnapshotInfo]
    ) -> Iterator[tuple[SnapshotInfo, list[Changed]]]:
        """Tell commit by commit what each changed; they follow each other from a snapshot on."""
        # The first snapshot is empty: whatever the commit after it has is new. Its log would tell
        # the same, were nothing expired between the two; but nothing tells whether that is so, and
        # in version 1 nothing leads to the logs that expired.
        is_first = bool(newer) and self.repository.lookup_snapshot(start).parent_id is None
        before = None if is_first else start
        for info in newer:
            yield info, list(self._find_changes(info, before))
            before = info.id

    def _find_changes(self, info: SnapshotInfo, before: str | None) -> Iterator[Changed]:
        session = SnapshotSource(self.repository, info.id).session()
        group = self.options.read.group
        if not has_arrays(session, group):
            return
        diff = parent = None
        if before is not None:
            diff = self.repository.diff(from_snapshot_id=before, to_snapshot_id=info.id)
            if not may_affect(diff, group):
                return
            parent = SnapshotSource(self.repository, before).session()
        try:
            plan = self._plan(session)
        except NodeNotFoundError:
            return  # it was not made yet, or is gone: this commit has none of its rows
        if isinstance(plan, RowsPlan):
            found = [find_changed_rows(info, plan, parent, session, diff)]
        else:
            written = (
                find_all_chunks(session, group)
                if diff is None
                else find_written_chunks(diff, session)
            )
            found = list(find_changed_chunks(info, plan, written))
        for one in found:
            if len(one.numbers):
                self._require_columns(session, plan)
                yield one

    def _plan(self, session: Session) -> RowsPlan | ChunksPlan:
        source = SnapshotSource(self.repository, session.snapshot_id)
        plan = plan_read(source, self.options.read).plan
        assert isinstance(plan, (RowsPlan, ChunksPlan))  # noqa: S101 - streams have no tables
        return plan

    def _require_columns(self, session: Session, plan: RowsPlan | ChunksPlan) -> None:
        """Refuse rows that have other columns than the stream."""
        found = _columns(plan.schema, self.options)
        if found != self.schema:
            raise invalid_input(
                f"in snapshot {session.snapshot_id} the columns are {_format_schema(found)}, and "
                f"this stream has {_format_schema(self.schema)}: choose those that stay with the "
                "option 'variables', or start a stream after it with startingSnapshot"
            )

    def _with_commit(
        self, batch: pa.RecordBatch, snapshot_id: str, committed_at: datetime
    ) -> pa.RecordBatch:
        if not self.options.commit_columns:
            return batch
        columns = [
            pa.repeat(pa.scalar(value, field.type), len(batch))
            for value, field in zip((snapshot_id, committed_at), COMMIT_COLUMNS, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self.schema)


def _columns(schema: pa.Schema, options: StreamOptions) -> pa.Schema:
    return pa.schema([*schema, *COMMIT_COLUMNS]) if options.commit_columns else schema


def _format_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
