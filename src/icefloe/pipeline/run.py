"""One run of a job: where it starts from, what Spark does for it, and its one commit.

The driver opens a session at the branch's tip, makes nodes in it and forks it. Executors write
chunks through copies of the fork and answer with change sets: references to what they wrote,
never bytes, never a connection. The driver merges those and commits once. An attempt that is
repeated, or that nobody waits for any more, leaves objects under names that nothing refers to.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    RebaseFailedError,
    SessionStateError,
)
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.pipeline.report import Failure, JobFailedError, Plan, Report
from icefloe.session import Session, contents
from icefloe.session.commit_policy import NO_POLICY
from icefloe.session.exactly_once import JobId, commit_once, find_committed
from icefloe.session.parallel_write import ForkPoint, scratch_fork, task_changes
from icefloe.spark.engine.tasks import format_error, parallelism, run_tasks
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import zarr
    from pyspark.sql import SparkSession

    from icefloe.conflicts import ConflictSolver
    from icefloe.model.ids import SnapshotId
    from icefloe.repository import Repository
    from icefloe.session import ForkSession
    from icefloe.session.commit_policy import CommitPolicy
    from icefloe.session.exactly_once import Committed
    from icefloe.session.parallel_write import ChangeSet
    from icefloe.spark.engine.progress import Progress
    from icefloe.spark.engine.tasks import Outcome

T = TypeVar("T")
R = TypeVar("R")

TASK_BYTES: Final = 256_000_000
"""How much of an array a task holds in memory, unless somebody says otherwise."""

_MIN_TASK_BYTES: Final = 8_000_000
"""Less work than this is not worth a Spark task of its own."""

_WAVES: Final = 3
"""Into how many tasks per core work is cut where there is enough of it."""

_MAX_FAILURES: Final = 100
"""A task that failed with so many pieces does not try the rest."""

_MAX_SHOWN: Final = 5
"""So many conflicts are told of one by one."""

_REMEDY: Final = "see to the cause and start the job again"
_REMEDY_FOR_SPARK: Final = (
    "see to the cause and start the job again; if workers were killed, they may have lacked "
    "memory: lower task_bytes"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some work that is done at a time; a task does several, one after the other.

    Parameters
    ----------
    what
        Which array and which block, for whoever reads that it failed.
    size_bytes
        How much memory it takes.
    value
        What the function of the job gets; pickles, and holds no secrets.
    """

    what: str
    size_bytes: int
    value: Any


class Bench:
    """What one task works with: the fork that it writes through, and arrays opened once.

    ``left_out`` takes what a task could not do and went on without, and a reason for each.
    """

    def __init__(self, fork: ForkSession) -> None:
        self.fork = fork
        self.left_out: dict[str, str] = {}
        self._arrays: dict[tuple[int, str], zarr.Array[Any]] = {}

    def target(self, path: str) -> zarr.Array[Any]:
        """Open an array to write to."""
        return self.source(self.fork, path)

    def source(self, session: Session, path: str) -> zarr.Array[Any]:
        """Open an array of a session that lives as long as the task."""
        key = (id(session), path)
        if key not in self._arrays:
            self._arrays[key] = open_array(
                session.store, path, mode="r" if session.read_only else "r+"
            )
        return self._arrays[key]


class Failed(NamedTuple):
    """What a task answers that could not do all of its pieces."""

    failures: tuple[Failure, ...]


class _Written(NamedTuple):
    """What a task answers: references to what it wrote, and what it went on without."""

    changes: ChangeSet
    left_out: dict[str, str]


@dataclass(slots=True)
class JobRun:
    """A job under way.

    Parameters
    ----------
    name
        The kind of job.
    spark
        A classic session or one of Spark Connect; without one this process does all tasks, one
        after the other, to the same result.
    repository
        As it is open for this job: small chunks are packed.
    branch
        Gets the commit.
    session
        What the commit is made from.
    identity
        Which commit it is, if it is to be made only once.
    task_bytes
        What a task may hold in memory.
    progress
        Hears how far Spark is.
    """

    name: str
    spark: SparkSession | None
    repository: Repository
    branch: str
    session: Session
    identity: JobId | None
    task_bytes: int
    progress: Progress | None
    started: float = field(default_factory=time.monotonic)
    chunks: int = 0
    bytes_written: int = 0

    def __post_init__(self) -> None:
        if self.task_bytes < 1:
            raise InvalidInputError(
                f"task_bytes is what a task may hold in memory, not {self.task_bytes}",
                kind=ErrorKind.STORAGE_CONFIG,
            )

    @classmethod
    def start(
        cls,
        name: str,
        spark: SparkSession | None,
        repository: Repository,
        *,
        branch: str,
        transaction_id: str | None,
        task_bytes: int,
        progress: Progress | None,
    ) -> JobRun:
        """Open a session at the tip of a branch; nothing is written."""
        if transaction_id == "":
            raise InvalidInputError(
                "the transaction_id is empty, and would stand for every job without one: name this "
                "job, or leave it out",
                kind=ErrorKind.STORAGE_CONFIG,
            )
        if repository.config.packing is None:
            repository = repository.reopen(RepositoryConfig(packing=PackingConfig()))
        session = repository.writable_session(branch)
        identity = None if transaction_id is None else JobId(transaction_id)
        return cls(name, spark, repository, branch, session, identity, int(task_bytes), progress)

    @property
    def base_id(self) -> SnapshotId:
        """The snapshot that everything is read from."""
        return contents.base_id(self.session)

    def reader(self) -> Session:
        """Return a session at the snapshot that the job started from; it goes to executors."""
        return Session(self.session.connection, self.base_id)

    def scratch(self) -> ForkSession:
        """Return a session for what is needed between two passes, and never committed."""
        return scratch_fork(self.session)

    # -- planning

    def earlier(self, *, dry_run: bool) -> Plan | Report | None:
        """Tell that there is nothing to do, because this very job was committed before."""
        if self.identity is None:
            return None
        found = find_committed(self.repository, self.branch, self.identity)
        if found is None:
            return None
        if dry_run:
            where = found.snapshot_id or "a snapshot that has expired"
            return self.plan(
                [f"nothing: {self.identity.application!r} was committed as {where}"], 0
            )
        return self._report(found)

    def plan(
        self, steps: Iterable[str], tasks: int, *, is_estimate: bool = False, **sizes: int
    ) -> Plan:
        """Describe what would be done."""
        target = f"{self.repository.storage.url}, branch {self.branch}"
        return Plan(self.name, target, tuple(steps), tasks, is_estimate=is_estimate, **sizes)

    @property
    def slots(self) -> int:
        """How many tasks run at the same time."""
        return parallelism(self.spark)

    def min_boxes(self, total_bytes: int) -> int:
        """Say into how many pieces work should be cut, so that all cores have some."""
        return max(1, min(self.slots * _WAVES, total_bytes // _MIN_TASK_BYTES))

    def grouped(self, pieces: Sequence[Piece]) -> list[tuple[Piece, ...]]:
        """Put pieces that follow each other together into tasks."""
        goal = self._task_goal(sum(piece.size_bytes for piece in pieces))
        tasks: list[tuple[Piece, ...]] = []
        open_task: list[Piece] = []
        size = 0
        for piece in pieces:
            if open_task and size + piece.size_bytes > goal:
                tasks.append(tuple(open_task))
                open_task, size = [], 0
            open_task.append(piece)
            size += piece.size_bytes
        if open_task:
            tasks.append(tuple(open_task))
        return tasks

    def count_tasks(self, total_bytes: int) -> int:
        """Say into about how many tasks so much work is cut."""
        return -(-total_bytes // self._task_goal(total_bytes))

    def _task_goal(self, total_bytes: int) -> int:
        each = max(total_bytes // self.min_boxes(total_bytes), _MIN_TASK_BYTES)
        return min(self.task_bytes, each)

    # -- working

    def write(
        self, into: Session, pieces: Sequence[Piece], work: Callable[[Bench, Any], None]
    ) -> list[Failure]:
        """Let executors write pieces, and take over what they wrote; returns what they left out.

        Parameters
        ----------
        into
            The session that the executors' forks are of, and are merged into.
        pieces
            No two of them write to one chunk.
        work
            Writes one piece through the bench of its task; pickles, with what it reads from.

        Raises
        ------
        JobFailedError
            With all pieces that failed.
        """
        tasks = self.grouped(pieces)
        if not tasks:
            return []
        point = ForkPoint.of(into)
        answers: list[_Written] = self.run(tasks, _write_through(point, work))
        point.merge(into, (answer.changes for answer in answers))
        left_out: dict[str, str] = {}
        for answer in answers:
            left_out.update(answer.left_out)
        return [Failure(source, left_out[source]) for source in sorted(left_out)]

    def run(
        self, tasks: Sequence[tuple[Piece, ...]], work: Callable[[tuple[Piece, ...]], Any]
    ) -> list[Any]:
        """Let executors do tasks, and return their answers; one `Failed` fails the job."""
        answers: list[Any] = []
        failures: list[Failure] = []
        outcomes = self.outcomes(tasks, work)
        for task, outcome in zip(tasks, outcomes, strict=True):
            if outcome.error is not None:
                failures.append(Failure(_between(task), outcome.error))
            elif isinstance(outcome.result, Failed):
                failures += outcome.result.failures
            else:
                answers.append(outcome.result)
        if failures:
            raise JobFailedError(self.name, failures, remedy=_REMEDY)
        return answers

    def outcomes(self, tasks: Sequence[T], work: Callable[[T], R]) -> list[Outcome[R]]:
        """Let executors do tasks, and return what became of each."""
        try:
            return run_tasks(self.spark, tasks, work, progress=self.progress)
        except Exception as error:
            if not type(error).__module__.startswith(("pyspark", "py4j")):
                raise
            # Not a task that raised, which is an answer, but a worker that died again and again.
            reason = Failure("Spark", str(error).strip())
            raise JobFailedError(self.name, [reason], remedy=_REMEDY_FOR_SPARK) from error

    def count(self, session: Session) -> None:
        """Count what a session is about to commit."""
        for columns in contents.changed_chunks(session):
            self.chunks += len(columns)
            self.bytes_written += int(columns.payloads.length.sum())

    # -- the end

    def commit(
        self,
        message: str,
        *,
        about: Mapping[str, Any],
        metadata: Mapping[str, Any] | None,
        solver: ConflictSolver | None = None,
        policy: CommitPolicy = NO_POLICY,
    ) -> Report:
        """Commit the session, once."""
        self.count(self.session)
        record = {"job": self.name, "base": str(self.base_id), **about}
        try:
            made = commit_once(
                self.repository,
                self.session,
                message,
                self.identity,
                about=record,
                metadata=metadata,
                solver=solver,
                policy=policy,
            )
        except SessionStateError as error:
            if error.kind is not ErrorKind.NO_CHANGES_TO_COMMIT:
                raise
            return self.nothing()  # others did all of it meanwhile, and the solver took theirs
        except RebaseFailedError as error:
            shown = "; ".join(str(conflict) for conflict in error.conflicts[:_MAX_SHOWN])
            raise RebaseFailedError(
                f"{self.name}: nothing was committed, because others changed the same meanwhile, "
                f"up to commit {error.snapshot}: {shown}; look at it, and start the job again",
                snapshot=error.snapshot,
                conflicts=error.conflicts,
            ) from error
        return self._report(made)

    def nothing(self) -> Report:
        """Report that there was nothing to do."""
        return Report(self.name, None, is_new=False, seconds=self._seconds)

    def _report(self, made: Committed) -> Report:
        return Report(
            self.name,
            made.snapshot_id,
            is_new=made.is_new,
            chunks=self.chunks if made.is_new else 0,
            bytes_written=self.bytes_written if made.is_new else 0,
            seconds=self._seconds,
        )

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self.started


def doing(task: tuple[Piece, ...], work: Callable[[Any], None]) -> Failed | None:
    """Do the pieces of a task one after the other; tells of all that fail, not of the first."""
    import zarr  # noqa: PLC0415 - in the worker
    from zarr.errors import ZarrUserWarning  # noqa: PLC0415 - in the worker

    # What was never written stays so, also where the caller has Zarr set to write everything.
    sparse = zarr.config.set({"array.write_empty_chunks": False})
    with warnings.catch_warnings(), sparse:
        # About codecs and types outside of Zarr's specification: files have what they have.
        warnings.simplefilter("ignore", ZarrUserWarning)
        failures: list[Failure] = []
        for number, piece in enumerate(task):
            if len(failures) == _MAX_FAILURES:
                reason = f"not tried, because {_MAX_FAILURES} before it failed"
                failures.append(Failure(_between(task[number:]), reason))
                break
            try:
                work(piece.value)
            except Exception as problem:  # noqa: BLE001 - whatever it is, it is told
                failures.append(Failure(piece.what, format_error(problem)))
    return Failed(tuple(failures)) if failures else None


def _write_through(
    point: ForkPoint, work: Callable[[Bench, Any], None]
) -> Callable[[tuple[Piece, ...]], _Written | Failed]:
    def write(task: tuple[Piece, ...]) -> _Written | Failed:
        # A worker runs several tasks with one copy of this function: each needs its own changes.
        bench = Bench(point.fork())
        failed = doing(task, lambda value: work(bench, value))
        if failed is not None:
            return failed
        return _Written(task_changes(bench.fork), bench.left_out)

    return write


def _between(task: tuple[Piece, ...]) -> str:
    first, last = task[0].what, task[-1].what
    return first if first == last else f"{first} to {last}"
