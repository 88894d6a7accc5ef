"""Files that become one dataset: what virtualizing, ingesting and appending have in common.

Which files are meant and new, which of them can be parsed and fit together, and the one commit that
records them. Who appends while somebody else appends looks again at what the group has then, and
goes on with the files that are left: nothing is lost, and nothing is there twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    FilesDisagreeError,
    InvalidInputError,
    RebaseFailedError,
)
from icefloe.pipeline.arrays.nodes import path_of
from icefloe.pipeline.files.file_checks import (
    exclude_files,
    find_append_mismatches,
    find_last_file,
    find_outliers,
    find_overlaps,
    find_unsorted,
    sort_descending,
)
from icefloe.pipeline.files.mismatched_chunks import unify_chunks
from icefloe.pipeline.files.source_files import fetch_sizes, find_sized_sources
from icefloe.pipeline.files.source_record import describe_sources, read_known_sources, store_sources
from icefloe.pipeline.files.staged_refs import FileInterner, ParsedFile, ParseFiles, delete_staged
from icefloe.pipeline.files.static_arrays import (
    find_static_mismatches,
    find_stored_mismatches,
    store_digests,
)
from icefloe.pipeline.report import Failure, JobFailedError, format_bytes, format_count
from icefloe.pipeline.run import JobRun
from icefloe.session import contents
from icefloe.storage.backoff import backoff_delay_s
from icefloe.virtual.agreement import raise_disagreements
from icefloe.virtual.append_plan import find_append_problems, is_descending
from icefloe.virtual.arrays import LoadedArray, find_coordinate
from icefloe.virtual.combining import combine, require_dims
from icefloe.virtual.parsing import parse_at
from icefloe.virtual.sources import MAX_CACHED_BYTES, SINGLE_REQUEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.pipeline.report import Plan, Report
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.session.commit_policy import CommitPolicy
    from icefloe.spark.engine.progress import Progress
    from icefloe.virtual.agreement import Disagreement
    from icefloe.virtual.dataset import VirtualDataset

OnError: TypeAlias = Literal["raise", "skip"]
Order: TypeAlias = Literal["given", "coordinates"]
Misfits: TypeAlias = "Callable[[Session, VirtualDataset], Iterable[Disagreement]]"
Check: TypeAlias = "Callable[[Sequence[ParsedFile]], Iterable[Disagreement]]"

_PARSE_OPTIONS: Final = tuple(
    name for name, one in signature(parse_at).parameters.items() if one.kind is one.KEYWORD_ONLY
)
_FILES_PER_TASK: Final = 64
_TRIES: Final = 100
"""Appending fails only after so many others committed in between, each of whom got on."""


@dataclass(slots=True)
class CombinedFiles:
    """Files that fit together, with markers instead of references, and those that do not."""

    files: list[ParsedFile]
    dataset: VirtualDataset
    left_out: list[Failure]

    @property
    def mismatched(self) -> frozenset[str]:
        """The arrays whose chunks have no common grid; see `mismatched_chunks`."""
        return frozenset(self.files[0].mismatched)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileJob:
    """What to do with which files.

    Parameters
    ----------
    name
        The kind of job, unless it appends.
    copies
        Whether values are copied: then files need not have chunks and codecs in common.
    spark, repository, branch, transaction_id, task_bytes, progress
        As for every job; see `JobRun`.
    sources
        Paths, URLs or patterns of them, or a table; see `find_sources`.
    dims
        The dimensions along which files are combined; it is appended along the first.
    group
        The group that gets the arrays.
    append
        Whether the group has them, and files go behind what is there.
    order
        By ``coordinates`` along ``dims``, or as ``given``; None takes coordinates where files have
        them.
    on_error
        ``raise`` fails the job with all that is wrong; ``skip`` leaves such files out.
    parse_options
        Passed on to `icefloe.virtual.parse`.
    message, metadata
        What the commit records besides.
    """

    name: str
    copies: bool
    spark: SparkSession | None
    repository: Repository
    sources: Any
    dims: tuple[str, ...]
    group: str
    branch: str
    append: bool
    order: Order | None
    on_error: OnError
    parse_options: Mapping[str, Any] | None
    task_bytes: int
    transaction_id: str | None
    message: str | None
    metadata: Mapping[str, Any] | None
    progress: Progress | None
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        _require_one_of("order", self.order, (None, "given", "coordinates"))
        _require_one_of("on_error", self.on_error, ("raise", "skip"))
        if not self.dims or len(set(self.dims)) < len(self.dims):
            raise InvalidInputError(
                f"dims={self.dims!r}: name the dimensions along which to combine, each once",
                kind=ErrorKind.NOT_ALLOWED,
            )
        for name in self.parse_options or ():
            _require_one_of("an option of parse_options", name, _PARSE_OPTIONS)

    def do(
        self,
        write: Callable[[JobRun, CombinedFiles], CommitPolicy],
        *,
        misfits: Misfits,
        last_step: str,
        dry_run: bool,
    ) -> Plan | Report:
        """Do all of it, and commit once.

        Parameters
        ----------
        write
            Brings combined files into the session of a run; called again, for another run, after
            somebody else appended in between, or without files that it said were damaged.
        misfits
            Tells what keeps a file from being appended to the group.
        last_step
            What writing is, for the plan.
        dry_run
            Whether to return the plan, and touch nothing.
        """
        run = self._start()
        staged: list[ParsedFile] = []
        try:
            return self._do(run, staged, write, misfits, last_step, dry_run=dry_run)
        finally:
            # Committed or refused: nobody else knew of them.
            delete_staged(run.session.connection, staged)

    def _do(
        self,
        run: JobRun,
        staged: list[ParsedFile],
        write: Callable[[JobRun, CombinedFiles], CommitPolicy],
        misfits: Misfits,
        last_step: str,
        *,
        dry_run: bool,
    ) -> Plan | Report:
        parsed: dict[str, ParsedFile | Failure] = {}
        for attempt in range(_TRIES):
            run = self._start() if attempt else run
            report = run.earlier(dry_run=dry_run)
            if report is not None:
                return report
            self._require_place(run.session)
            urls = self._new_sources(run)
            if dry_run:
                return self._plan(run, urls, last_step)
            if not urls:
                return run.nothing()
            new = self._parse(run, [url for url in urls if url not in parsed])
            staged += (one for one in new.values() if isinstance(one, ParsedFile))
            parsed |= new
            found = self._combine(run, [parsed[url] for url in urls], misfits)
            try:
                policy = write(run, found)
            except JobFailedError as error:
                damaged = {one.source: one for one in error.failures if one.source in parsed}
                if self.on_error == "raise" or not damaged:
                    raise
                parsed.update(damaged)
                continue
            try:
                return self._commit(run, found, policy)
            except RebaseFailedError:
                if not self.append or attempt + 1 == _TRIES:
                    raise
                time.sleep(backoff_delay_s(attempt, 0.05, 5.0))
        raise AssertionError("the last try raises or returns")

    def _start(self) -> JobRun:
        run = JobRun.start(
            "append" if self.append else self.name,
            self.spark,
            self.repository,
            branch=self.branch,
            transaction_id=self.transaction_id,
            task_bytes=self.task_bytes,
            progress=self.progress,
        )
        run.started = self.started
        return run

    def _require_place(self, session: Session) -> None:
        """See that the group is there, or has nothing in it, before files are looked at."""
        place = path_of(self.group)
        if self.append:
            node = contents.require_node(session, place)
        else:
            found = contents.get_node(session, place)
            below = sorted(one.path.value for one in contents.iter_nodes_below(session, place))
            if below:
                raise AlreadyExistsError(
                    f"{place} has {', '.join(below[:5])}{', …' if len(below) > 5 else ''}: append "
                    "to it, take another group, or delete it first",
                    kind=ErrorKind.NODE_ALREADY_EXISTS,
                )
            if found is None:
                return
            node = found
        if node.is_array:
            raise AlreadyExistsError(
                f"{place} is an array; files go into a group", kind=ErrorKind.NODE_ALREADY_EXISTS
            )

    def _new_sources(self, run: JobRun) -> dict[str, int | None]:
        """Find files, and their sizes as far as finding them told."""
        found = find_sized_sources(self.sources, run.session)
        if not self.append:
            return found
        known = self._known(run)
        return {url: size for url, size in found.items() if url not in known}

    def _known(self, run: JobRun) -> set[str]:
        return read_known_sources(run.repository, run.session, path_of(self.group).value)

    def _plan(self, run: JobRun, found: Mapping[str, int | None], last_step: str) -> Plan:
        """Estimate what would be done from how large the files are; nobody looks into them."""
        if not found:
            return run.plan(["nothing: all files are in the repository"], 0)
        sizes = fetch_sizes(found, run.session)
        total = sum(sizes.values())
        steps = [
            f"parse {format_count(len(found), 'file')} of {format_bytes(total)} in all",
            f"check that they fit together along {', '.join(self.dims)}",
            last_step,
        ]
        parsing = len(self.grouped(run, list(found)))
        if not self.copies:
            # Small files are fetched whole, and of large ones little more than that.
            read = sum(min(size, SINGLE_REQUEST_BYTES) for size in sizes.values())
            largest = max(sizes.values())
            held = largest if largest <= SINGLE_REQUEST_BYTES else min(largest, MAX_CACHED_BYTES)
            return run.plan(steps, parsing, bytes_read=read, task_bytes=held, is_estimate=True)
        return run.plan(
            steps,
            parsing + run.count_tasks(total),
            bytes_read=total,
            bytes_written=total,
            task_bytes=self.task_bytes,
            is_estimate=True,
        )

    def grouped(self, run: JobRun, urls: Sequence[str]) -> list[tuple[str, ...]]:
        """Put files together into tasks: enough for all cores, and not too many for one."""
        tasks = max(run.slots * 3, -(-len(urls) // _FILES_PER_TASK))
        size = max(1, -(-len(urls) // tasks))
        return [tuple(urls[start : start + size]) for start in range(0, len(urls), size)]

    def _parse(self, run: JobRun, urls: Sequence[str]) -> dict[str, ParsedFile | Failure]:
        """Let executors parse files."""
        parsed: dict[str, ParsedFile | Failure] = {}
        tasks = self.grouped(run, urls)
        options = dict(self.parse_options or {})
        work = ParseFiles(run.session.connection, options, frozenset(self.dims))
        alike = FileInterner()
        for task, outcome in zip(tasks, run.outcomes(tasks, work), strict=True):
            found: Iterable[ParsedFile | Failure] = outcome.result or ()
            if outcome.error is not None:
                found = [Failure(url, outcome.error) for url in task]
            shared = (one if isinstance(one, Failure) else alike.add(one) for one in found)
            parsed.update(zip(task, shared, strict=True))
        return parsed

    def _combine(
        self, run: JobRun, parsed: Iterable[ParsedFile | Failure], misfits: Misfits
    ) -> CombinedFiles:
        """Find the files that fit together, and leave the others out or fail with all of them."""
        files: list[ParsedFile] = []
        left_out: list[Failure] = []
        for one in parsed:
            if isinstance(one, Failure):
                left_out.append(one)
            else:
                files.append(one)
        if self.copies and files:
            files = unify_chunks(files, self.dims, self._last(files))
        for dim in self.dims if files else ():
            if not any(_has(file.dataset, dim) for file in files):
                require_dims([files[0].dataset], (dim,))
        for check in self._checks(run.session, misfits):
            files, left_out = exclude_files(files, check(files) if files else (), left_out)
        while files:
            if left_out and self.on_error == "raise":
                raise JobFailedError(run.name, left_out)
            try:
                files, order = self._ordered(run.session, files)
                dataset = self._joined(files, order)
                if self.append and len(self.dims) > 1:
                    raise_disagreements(
                        self._append_problems(run.session, dataset, misfits),
                        f"appending to {path_of(self.group)}",
                    )
                return CombinedFiles(files, dataset, left_out)
            except FilesDisagreeError as error:
                kept, left_out = exclude_files(files, error.disagreements, left_out)
                if len(kept) == len(files):
                    raise
                files = kept
        raise JobFailedError(run.name, left_out)

    def _checks(self, session: Session, misfits: Misfits) -> Iterator[Check]:
        """Say what to look at, one after the other, of the files that are still left."""
        dims, first = frozenset(self.dims), self.dims[0]
        # A file of a grid is a part of what the group has; only all of them together fit it.
        is_whole = len(self.dims) == 1
        if self.append and is_whole:
            yield lambda files: find_append_mismatches(
                files, dims, lambda one: misfits(session, one)
            )
        if self.append:
            yield lambda files: find_stored_mismatches(files, session, self.group, dims)
        yield lambda files: find_outliers(files, dims)
        yield lambda files: find_static_mismatches(files, dims)
        yield lambda files: find_unsorted(files, self.dims)
        if self.append and is_whole:
            yield lambda files: find_append_problems(
                [file.dataset for file in files], session, dim=first, group=self.group
            )
        if is_whole and self.order != "given":
            yield lambda files: find_overlaps(files, first)

    def _append_problems(
        self, session: Session, dataset: VirtualDataset, misfits: Misfits
    ) -> list[Disagreement]:
        return [*misfits(session, dataset)] or [
            *find_append_problems([dataset], session, dim=self.dims[0], group=self.group)
        ]

    def _last(self, files: Sequence[ParsedFile]) -> int | None:
        if len(self.dims) > 1:
            return None
        return len(files) - 1 if self.order == "given" else find_last_file(files, self.dims[0])

    def _ordered(self, session: Session, files: list[ParsedFile]) -> tuple[list[ParsedFile], Order]:
        """Say in which order files are joined."""
        order = self.order or _best_order(files[0].dataset, self.dims)
        dim = self.dims[0]
        if self.append and len(self.dims) == 1 and order == "coordinates":
            # Files of one step each do not tell whether they rise; what they go on from does.
            descending = sort_descending(files, dim) if len(files) > 1 else None
            if descending is not None and is_descending(session, dim=dim, group=self.group):
                return descending, "given"
        return files, order

    def _joined(self, files: Sequence[ParsedFile], order: Order) -> VirtualDataset:
        marked = [file.with_markers(number) for number, file in enumerate(files)]
        require_dims(marked, self.dims)
        return marked[0] if len(marked) == 1 else combine(marked, self.dims, order=order)

    def _commit(self, run: JobRun, found: CombinedFiles, policy: CommitPolicy) -> Report:
        verb = {"virtualize": "virtualized", "ingest": "ingested"}[self.name]
        urls = [one.url for one in found.files]
        if not self.append:
            store_digests(run.session, self.group, found.files[0], frozenset(self.dims))
        store_sources(run.session, self.group, [*(self._known(run) if self.append else ()), *urls])
        about: dict[str, Any] = {
            "group": path_of(self.group).value,
            "sources": describe_sources(urls),
        }
        if found.left_out:
            about["left_out"] = [[one.source, one.reason] for one in found.left_out]
        report = run.commit(
            self.message
            or f"{'appended' if self.append else verb} {format_count(len(urls), 'file')}",
            about=about,
            metadata=self.metadata,
            policy=policy,
        )
        if not report.is_new:
            return report
        return replace(report, files=len(found.files), left_out=tuple(found.left_out))


def _best_order(first: VirtualDataset, dims: Sequence[str]) -> Order:
    coordinates = [first.arrays.get(find_coordinate(first.arrays, "", dim) or "") for dim in dims]
    return "coordinates" if all(isinstance(one, LoadedArray) for one in coordinates) else "given"


def _has(dataset: VirtualDataset, dim: str) -> bool:
    return any(dim in array.dimension_names for array in dataset.arrays.values())


def _require_one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        listed = ", ".join(repr(one) for one in allowed if one is not None)
        raise InvalidInputError(
            f"{name} is one of {listed}, not {value!r}", kind=ErrorKind.NOT_ALLOWED
        )
