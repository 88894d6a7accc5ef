"""One run of a job: its base session, its Spark stages and its single commit.

The driver opens a session at the tip of the branch, creates nodes in it and forks it. Executors
write chunks through copies of the fork and return change sets: chunk references, never bytes or
connections. The driver merges these and commits once. Objects of repeated or failed tasks are never
referenced; garbage collection deletes them.
"""

from __future__ import annotations

import logging
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from icefloe.conflicts import BasicConflictSolver, ConflictSolver, VersionSelection
from icefloe.errors import (
    ErrorKind,
    ReadOnlyError,
    RebaseFailedError,
    SessionStateError,
    StorageError,
)
from icefloe.pipeline.opening import require_repository
from icefloe.pipeline.report import Failure, JobFailedError, Plan, Report
from icefloe.session import ForkSession, Session, contents
from icefloe.session.commit_policy import NO_POLICY, CommitPolicy
from icefloe.session.exactly_once import CommitResult, JobId, commit_once, find_commit
from icefloe.session.parallel_write import ChangeSet, ForkPoint, finish_task, make_scratch_fork
from icefloe.spark.engine.deferred_session import DeferredSession
from icefloe.spark.engine.packing import enable_packing
from icefloe.spark.engine.tasks import Outcome, format_error, get_parallelism, run_tasks
from icefloe.spark.engine.worker_errors import find_setup_problem
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import zarr
    from pyspark.sql import SparkSession

    from icefloe.model.ids import SnapshotId
    from icefloe.pipeline.opening import RepositoryOrPlace
    from icefloe.pipeline.options import JobOptions
    from icefloe.repository import Repository

T = TypeVar("T")
R = TypeVar("R")

_LOGGER = logging.getLogger(__name__)

_MIN_TASK_BYTES: Final = 8_000_000
"""Minimum size of a Spark task."""

_WAVES: Final = 3
"""Desired tasks per core."""

_MAX_FAILURES: Final = 100
"""A task stops after this many failed units."""

_MAX_SHOWN: Final = 5
"""Maximum number of conflicts in a message."""

KEEP_CONCURRENT_CHUNKS: Final = BasicConflictSolver(
    on_chunk_conflict=VersionSelection.UseTheirs,
    fail_on_delete_of_updated_array=True,
    fail_on_delete_of_updated_group=True,
)
"""For jobs that rewrite chunks without changing values: chunks of concurrent commits win."""

REMEDY: Final = "fix the cause and run the job again"
_REMEDY_FOR_SPARK: Final = (
    f"{REMEDY}; if workers were killed, they may have run out of memory: lower task_bytes"
)


_REMEDY_FOR_STORAGE: Final = (
    "check the permissions and the free space of the repository, and run the job again"
)


class RepositoryWriteError(Exception):
    """A task failed to write to the repository: the whole job fails, whatever it read."""


@contextmanager
def writing_repository() -> Iterator[None]:
    """Raise storage errors as `RepositoryWriteError`, because sources do not cause them."""
    try:
        yield
    except (StorageError, ReadOnlyError, OSError) as error:
        raise RepositoryWriteError(format_error(error)) from error


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """The smallest part of a job that can fail by itself; a task runs several in sequence.

    ``label`` names it in failures, ``size_bytes`` is the memory that it needs. ``value``, the
    argument of the work function, pickles and holds no secrets.
    """

    label: str
    size_bytes: int
    value: Any


class TaskWriter:
    """The fork that a task writes through, with a cache of open arrays.

    ``left_out`` maps sources that could not be read to the reason; the job decides whether to
    continue without them.
    """

    def __init__(self, fork: ForkSession) -> None:
        self.fork = fork
        self.left_out: dict[str, str] = {}
        self._arrays: dict[tuple[int, str], zarr.Array[Any]] = {}

    def open_target(self, path: str) -> zarr.Array[Any]:
        """Open an array of the fork for writing."""
        return self.open_source(self.fork, path)

    def open_source(self, session: Session, path: str) -> zarr.Array[Any]:
        """Open an array of a session that outlives the task."""
        key = (id(session), path)
        if key not in self._arrays:
            self._arrays[key] = open_array(
                session.store, path, mode="r" if session.read_only else "r+"
            )
        return self._arrays[key]


class FailedUnits(NamedTuple):
    """The result of a task with failed units."""

    failures: tuple[Failure, ...]


class _TaskResult(NamedTuple):
    changes: ChangeSet
    left_out: dict[str, str]


class _FailedWrite(NamedTuple):
    """The result of a task that raised `RepositoryWriteError`."""

    reason: str


@dataclass(frozen=True, slots=True)
class _CatchFailedWrite(Generic[T, R]):
    """Calls ``work``, and returns a failed write instead of raising it."""

    work: Callable[[T], R]

    def __call__(self, task: T) -> R | _FailedWrite:
        try:
            return self.work(task)
        except RepositoryWriteError as error:
            return _FailedWrite(str(error))


@dataclass(slots=True)
class JobRun:
    """A running job, which commits ``session``; ``identity`` makes the commit idempotent.

    If ``spark`` is None, tasks run in-process. ``repository`` packs small chunks.
    """

    name: str
    spark: SparkSession | DeferredSession | None
    repository: Repository
    session: Session
    options: JobOptions
    identity: JobId | None = None
    started: float = field(default_factory=time.monotonic)
    chunks: int = 0
    bytes_written: int = 0

    @classmethod
    def start(
        cls,
        name: str,
        spark: SparkSession | DeferredSession | None,
        repository: RepositoryOrPlace,
        options: JobOptions,
    ) -> JobRun:
        """Open a session at the tip of the branch, without writing."""
        repository = enable_packing(require_repository(spark, repository))
        commit = options.commit
        session = repository.writable_session(commit.branch)
        identity = None if commit.transaction_id is None else JobId(commit.transaction_id)
        run = cls(name, spark, repository, session, options, identity)
        where = "in this process" if spark is None else "on Spark"
        _LOGGER.info("%s: started %s, branch %s at %s", name, where, commit.branch, run.base_id)
        return run

    @property
    def base_id(self) -> SnapshotId:
        """The id of the snapshot that the job reads."""
        return contents.get_base_id(self.session)

    @property
    def dry_run(self) -> bool:
        """Whether to return the plan and write nothing."""
        return self.options.run.dry_run

    @property
    def task_bytes(self) -> int:
        """The memory limit of a task."""
        return self.options.run.task_bytes

    def open_reader(self) -> Session:
        """Open a read-only session at the base snapshot, to send to executors."""
        return Session(self.session.connection, self.base_id)

    def fork_scratch(self) -> ForkSession:
        """Create a session for intermediate data, which is never committed."""
        return make_scratch_fork(self.session)

    def enter_phase(self, name: str) -> None:
        """Report that a phase of tasks starts, after starting a deferred session."""
        if isinstance(self.spark, DeferredSession):
            self.spark.get()
        self._report_phase(name)

    def _report_phase(self, name: str) -> None:
        _LOGGER.debug("%s: %s", self.name, name)
        if self.options.run.on_phase is not None:
            self.options.run.on_phase(name)

    # -- planning

    def find_earlier_result(self) -> Plan | Report | None:
        """Return the result of an earlier run with the same transaction id, or None."""
        if self.identity is None:
            return None
        committed = find_commit(self.repository, self.options.commit.branch, self.identity)
        if committed is None:
            return None
        if self.dry_run:
            snapshot = committed.snapshot_id or "a snapshot that has expired"
            step = f"nothing to do: {self.identity.application!r} was committed as {snapshot}"
            return self.plan([step], 0)
        return self._make_report(committed)

    def plan(
        self, steps: Iterable[str], tasks: int, *, is_estimate: bool = False, **sizes: int
    ) -> Plan:
        """Return a plan of this job."""
        target = f"{self.repository.storage.url}, branch {self.options.commit.branch}"
        return Plan(self.name, target, tuple(steps), tasks, is_estimate=is_estimate, **sizes)

    @property
    def slots(self) -> int:
        """The number of tasks that run concurrently."""
        return get_parallelism(self.spark)

    def choose_min_boxes(self, total_bytes: int) -> int:
        """Choose the minimum number of boxes, so that all cores are busy."""
        return max(1, min(self.slots * _WAVES, total_bytes // _MIN_TASK_BYTES))

    def group_units(self, units: Sequence[WorkUnit]) -> list[tuple[WorkUnit, ...]]:
        """Group consecutive units into tasks."""
        goal = self._choose_task_bytes(sum(unit.size_bytes for unit in units))
        return group_by_size(units, [unit.size_bytes for unit in units], goal)

    def count_tasks(self, total_bytes: int) -> int:
        """Estimate the number of tasks."""
        return -(-total_bytes // self._choose_task_bytes(total_bytes))

    def _choose_task_bytes(self, total_bytes: int) -> int:
        task_bytes = max(total_bytes // self.choose_min_boxes(total_bytes), _MIN_TASK_BYTES)
        return min(self.task_bytes, task_bytes)

    # -- work

    def write_units(
        self,
        session: Session,
        units: Sequence[WorkUnit],
        work: Callable[[TaskWriter, Any], None],
        *,
        phase: str = "copying",
    ) -> list[Failure]:
        """Write units on executors and merge the changes; return the sources that were left out.

        ``session`` is forked for the executors, and their changes are merged into it. No two units
        write the same chunk. ``work`` writes one unit; it must pickle. Raises `JobFailedError` with
        all units that failed.
        """
        tasks = self.group_units(units)
        if not tasks:
            return []
        self.enter_phase(phase)
        point = ForkPoint.of(session)
        results: list[_TaskResult] = self.run_tasks(tasks, _make_write_task(point, work))
        point.merge(session, (result.changes for result in results))
        left_out = dict(item for result in results for item in result.left_out.items())
        return [Failure(source, left_out[source]) for source in sorted(left_out)]

    def run_tasks(
        self, tasks: Sequence[tuple[WorkUnit, ...]], work: Callable[[tuple[WorkUnit, ...]], Any]
    ) -> list[Any]:
        """Run tasks on executors and return their results; raise `JobFailedError` if any failed."""
        results: list[Any] = []
        failures: list[Failure] = []
        for task, outcome in zip(tasks, self.run_stage(tasks, work), strict=True):
            if outcome.error is not None:
                failures.append(Failure(_format_range(task), outcome.error))
            elif isinstance(outcome.result, FailedUnits):
                failures += outcome.result.failures
            else:
                results.append(outcome.result)
        if failures:
            raise JobFailedError(self.name, failures, remedy=REMEDY)
        return results

    def run_stage(self, tasks: Sequence[T], work: Callable[[T], R]) -> list[Outcome[R]]:
        """Run tasks on executors and return their outcomes.

        Raises `JobFailedError` if a task could not write to the repository.
        """
        started = time.monotonic()
        caught = _CatchFailedWrite(work)
        try:
            results = run_tasks(self.spark, tasks, caught, progress=self.options.run.progress)
        except Exception as error:
            if not type(error).__module__.startswith(("pyspark", "py4j")):
                raise
            # Errors of tasks are outcomes; Spark raises if a worker cannot start, or dies again.
            problem = find_setup_problem(error)
            failure = Failure("Spark", problem or str(error).strip())
            remedy = REMEDY if problem else _REMEDY_FOR_SPARK
            raise JobFailedError(self.name, [failure], remedy=remedy) from error
        seconds = time.monotonic() - started
        _LOGGER.info("%s: stage of %d tasks took %.1f s", self.name, len(tasks), seconds)
        outcomes: list[Outcome[R]] = []
        for outcome in results:
            if isinstance(outcome.result, _FailedWrite):
                failure = Failure(
                    f"writing to {self.repository.storage.url}", outcome.result.reason
                )
                cause = RepositoryWriteError(outcome.result.reason)
                raise JobFailedError(self.name, [failure], remedy=_REMEDY_FOR_STORAGE) from cause
            outcomes.append(Outcome(outcome.index, outcome.result, outcome.error))
        return outcomes

    # -- commit

    def commit(
        self,
        summary: str,
        *,
        about: Mapping[str, Any],
        solver: ConflictSolver | None = None,
        policy: CommitPolicy = NO_POLICY,
    ) -> Report:
        """Commit the session once; ``summary`` is the default message."""
        for columns in contents.iter_changed_chunks(self.session):
            self.chunks += len(columns)
            self.bytes_written += int(columns.payloads.length.sum())
        self._report_phase("committing")
        try:
            committed = commit_once(
                self.repository,
                self.session,
                self.options.commit.message or summary,
                self.identity,
                about={"job": self.name, "base": str(self.base_id), **about},
                metadata=self.options.commit.metadata,
                solver=solver,
                policy=policy,
            )
        except SessionStateError as error:
            if error.kind is not ErrorKind.NO_CHANGES_TO_COMMIT:
                raise
            return self.report_nothing()  # concurrent commits superseded all changes
        except RebaseFailedError as error:
            conflicts = "; ".join(str(conflict) for conflict in error.conflicts[:_MAX_SHOWN])
            raise RebaseFailedError(
                f"{self.name}: nothing was committed, because of conflicts with concurrent "
                f"commits up to {error.snapshot}: {conflicts}; check them, and run the job again",
                snapshot=error.snapshot,
                conflicts=error.conflicts,
            ) from error
        return self._make_report(committed)

    def report_nothing(self) -> Report:
        """Report that there was nothing to do."""
        _LOGGER.info("%s: nothing to do", self.name)
        return Report(self.name, None, is_new=False, seconds=self.seconds)

    def _make_report(self, committed: CommitResult) -> Report:
        verb = "committed" if committed.is_new else "found the earlier commit"
        _LOGGER.info("%s: %s %s after %.1f s", self.name, verb, committed.snapshot_id, self.seconds)
        return Report(
            self.name,
            committed.snapshot_id,
            is_new=committed.is_new,
            chunks=self.chunks if committed.is_new else 0,
            bytes_written=self.bytes_written if committed.is_new else 0,
            seconds=self.seconds,
        )

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.monotonic() - self.started


def group_by_size(items: Iterable[T], sizes: Iterable[int], max_size: int) -> list[tuple[T, ...]]:
    """Group consecutive items up to a total size; a larger item is a group by itself."""
    groups: list[list[T]] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if not groups or total + size > max_size:
            groups.append([])
            total = 0
        groups[-1].append(item)
        total += size
    return [tuple(group) for group in groups]


def run_units(task: tuple[WorkUnit, ...], work: Callable[[Any], None]) -> FailedUnits | None:
    """Run the units of a task in sequence; return all failures, not only the first."""
    import zarr  # noqa: PLC0415 - in the worker
    from zarr.errors import ZarrUserWarning  # noqa: PLC0415 - in the worker

    # Missing chunks stay missing, even if the caller configured Zarr to write empty chunks.
    zarr_config = zarr.config.set({"array.write_empty_chunks": False})
    with warnings.catch_warnings(), zarr_config:
        # Codecs and types outside the Zarr specification cannot be avoided in source files.
        warnings.simplefilter("ignore", ZarrUserWarning)
        failures: list[Failure] = []
        for number, unit in enumerate(task):
            if len(failures) == _MAX_FAILURES:
                reason = f"skipped after {_MAX_FAILURES} failures"
                failures.append(Failure(_format_range(task[number:]), reason))
                break
            try:
                work(unit.value)
            except RepositoryWriteError:
                raise
            except Exception as error:  # noqa: BLE001 - reported with all others
                failures.append(Failure(unit.label, format_error(error)))
    return FailedUnits(tuple(failures)) if failures else None


def _make_write_task(
    point: ForkPoint, work: Callable[[TaskWriter, Any], None]
) -> Callable[[tuple[WorkUnit, ...]], _TaskResult | FailedUnits]:
    def write(task: tuple[WorkUnit, ...]) -> _TaskResult | FailedUnits:
        # A worker runs several tasks with one copy of this function; each needs its own fork.
        writer = TaskWriter(point.fork())
        failed = run_units(task, lambda value: work(writer, value))
        if failed is not None:
            return failed
        with writing_repository():
            return _TaskResult(finish_task(writer.fork), writer.left_out)

    return write


def _format_range(task: tuple[WorkUnit, ...]) -> str:
    first, last = task[0].label, task[-1].label
    return first if first == last else f"{first} to {last}"
