"""Files that become one dataset: what virtualizing, ingesting and appending have in common.

Which files are meant and new, which of them can be parsed and fit together, and the one commit that
records them. Who appends while somebody else appends looks again at what the group has then, and
goes on with the files that are left: nothing is lost, and nothing is there twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    FilesDisagreeError,
    InvalidInputError,
    RebaseFailedError,
)
from icefloe.pipeline.job_run import JobRun
from icefloe.pipeline.nodes import path_of
from icefloe.pipeline.report import Failure, JobFailedError
from icefloe.pipeline.sources import find_sources, known_sources, record_of
from icefloe.pipeline.staged_refs import AlikeFiles, ParsedFile, ParseFiles, delete_staged
from icefloe.storage.backoff import pause_s
from icefloe.virtual.files.agreement import Disagreement
from icefloe.virtual.files.combining import (
    combine,
    comparable_values,
    disagreements,
    require_dims,
)
from icefloe.virtual.files.dataset import LoadedArray, coordinate_path
from icefloe.virtual_writer import find_append_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.pipeline.report import Plan, Report
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.progress import Progress
    from icefloe.virtual.files.dataset import VirtualDataset

OnError: TypeAlias = Literal["raise", "skip"]
Order: TypeAlias = Literal["given", "coordinates"]

_FILES_PER_TASK: Final = 64
_MAX_KINDS: Final = 16
"""Files that agree with none of so many others are odd, whatever they have in common."""
_TRIES: Final = 100
"""Appending fails only after so many others committed in between, each of whom got on."""


@dataclass(slots=True)
class Combined:
    """Files that fit together, with markers instead of references, and those that do not."""

    files: list[ParsedFile]
    dataset: VirtualDataset
    left_out: list[Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileJob:
    """What to do with which files.

    Parameters
    ----------
    name
        The kind of job, unless it appends.
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

    def do(
        self,
        write: Callable[[JobRun, Combined], None],
        *,
        last_step: str,
        dry_run: bool,
    ) -> Plan | Report:
        """Do all of it, and commit once.

        Parameters
        ----------
        write
            Brings combined files into the session of a run; called again, for another run, after
            somebody else appended in between.
        last_step
            What that is, for the plan.
        dry_run
            Whether to return the plan, and touch nothing.
        """
        parsed: dict[str, ParsedFile | Failure] = {}
        for attempt in range(_TRIES):
            run = self._start()
            report = run.earlier(dry_run=dry_run)
            if report is not None:
                delete_staged(run.session.connection, parsed.values())
                return report
            self._require_place(run.session)
            urls = self._new_sources(run)
            if dry_run:
                return self._plan(run, urls, last_step)
            if not urls:
                delete_staged(run.session.connection, parsed.values())
                return run.nothing()
            self._parse(run, [url for url in urls if url not in parsed], parsed)
            found = self._combine(run, [parsed[url] for url in urls])
            write(run, found)
            try:
                report = self._commit(run, found)
            except RebaseFailedError:
                if not self.append or attempt + 1 == _TRIES:
                    raise
                time.sleep(pause_s(attempt, 0.05, 5.0))
            else:
                delete_staged(run.session.connection, parsed.values())
                return report
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
            node = session.transaction.require_node(place)
        else:
            found = session.transaction.get_node(place)
            below = sorted(one.path.value for one in session.transaction.nodes_below(place))
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

    def _new_sources(self, run: JobRun) -> list[str]:
        urls = find_sources(self.sources, run.session)
        if not self.append:
            return urls
        known = known_sources(run.repository, run.session, path_of(self.group).value)
        return [url for url in urls if url not in known]

    def _plan(self, run: JobRun, urls: Sequence[str], last_step: str) -> Plan:
        if not urls:
            return run.plan(["nothing: all files are in the repository"], 0)
        steps = [
            f"parse {len(urls):,} files",
            f"check that they fit together along {', '.join(self.dims)}",
            last_step,
        ]
        return run.plan(steps, len(self._grouped(run, urls)), task_bytes=self.task_bytes)

    def _grouped(self, run: JobRun, urls: Sequence[str]) -> list[tuple[str, ...]]:
        """Put files together into tasks: enough for all cores, and not too many for one."""
        tasks = max(run.slots * 3, -(-len(urls) // _FILES_PER_TASK))
        size = max(1, -(-len(urls) // tasks))
        return [tuple(urls[start : start + size]) for start in range(0, len(urls), size)]

    def _parse(
        self, run: JobRun, urls: Sequence[str], parsed: dict[str, ParsedFile | Failure]
    ) -> None:
        """Let executors parse files."""
        tasks = self._grouped(run, urls)
        work = ParseFiles(run.session.connection, dict(self.parse_options or {}))
        alike = AlikeFiles()
        for task, outcome in zip(tasks, run.outcomes(tasks, work), strict=True):
            found: Iterable[ParsedFile | Failure] = outcome.result or ()
            if outcome.error is not None:
                found = [Failure(url, outcome.error) for url in task]
            shared = (one if isinstance(one, Failure) else alike.add(one) for one in found)
            parsed.update(zip(task, shared, strict=True))

    def _combine(self, run: JobRun, parsed: Iterable[ParsedFile | Failure]) -> Combined:
        """Find the files that fit together, and leave the others out or fail with all of them."""
        files: list[ParsedFile] = []
        left_out: list[Failure] = []
        for one in parsed:
            if isinstance(one, Failure):
                left_out.append(one)
            else:
                files.append(one)
        for dim in self.dims if files else ():
            if not any(_has(file.dataset, dim) for file in files):
                require_dims([files[0].dataset], (dim,))
        if files:
            files, left_out = _without(files, _odd_ones(files, frozenset(self.dims)), left_out)
        if files and self.append:
            datasets = [file.dataset for file in files]
            problems = find_append_problems(
                datasets, run.session, dim=self.dims[0], group=self.group
            )
            files, left_out = _without(files, problems, left_out)
        if files and len(self.dims) == 1 and self.order != "given":
            files, left_out = _without(files, _overlapping(files, self.dims[0]), left_out)
        while files:
            if left_out and self.on_error == "raise":
                raise JobFailedError(run.name, left_out)
            try:
                return Combined(files, self._joined(files), left_out)
            except FilesDisagreeError as error:
                kept, left_out = _without(files, error.disagreements, left_out)
                if len(kept) == len(files):
                    raise
                files = kept
        raise JobFailedError(run.name, left_out)

    def _joined(self, files: Sequence[ParsedFile]) -> VirtualDataset:
        marked = [file.marked(number) for number, file in enumerate(files)]
        require_dims(marked, self.dims)
        if len(marked) == 1:
            return marked[0]
        return combine(marked, self.dims, order=self.order or _best_order(marked[0], self.dims))

    def _commit(self, run: JobRun, found: Combined) -> Report:
        verb = {"virtualize": "virtualized", "ingest": "ingested"}[self.name]
        about: dict[str, Any] = {
            "group": path_of(self.group).value,
            "sources": record_of([one.url for one in found.files]),
        }
        if found.left_out:
            about["left_out"] = [[one.source, one.reason] for one in found.left_out]
        report = run.commit(
            self.message or f"{'appended' if self.append else verb} {len(found.files):,} files",
            about=about,
            metadata=self.metadata,
        )
        if not report.is_new:
            return report
        return replace(report, files=len(found.files), left_out=tuple(found.left_out))


def _best_order(first: VirtualDataset, dims: Sequence[str]) -> Order:
    coordinates = [first.arrays.get(coordinate_path(first, "", dim) or "") for dim in dims]
    return "coordinates" if all(isinstance(one, LoadedArray) for one in coordinates) else "given"


def _has(dataset: VirtualDataset, dim: str) -> bool:
    return any(dim in array.dimension_names for array in dataset.arrays.values())


def _odd_ones(files: Sequence[ParsedFile], dims: frozenset[str]) -> list[Disagreement]:
    """Find the files that do not agree with the most others, and in what.

    Comparing all with the first would call all others odd where the first one is.
    """
    kinds: list[list[ParsedFile]] = []
    for file in files:
        for kind in kinds:
            if not disagreements(kind[0].dataset, file.dataset, dims):
                kind.append(file)
                break
        else:
            if len(kinds) < _MAX_KINDS:
                kinds.append([file])
    if len(kinds) == 1:
        return []
    usual = max(kinds, key=len)[0].dataset  # of two as large the one that was named first
    return [one for file in files for one in disagreements(usual, file.dataset, dims)]


def _overlapping(files: Sequence[ParsedFile], dim: str) -> Iterator[Disagreement]:
    """Find as few files as possible without which no two overlap along a dimension.

    Who takes, of files that can still be taken, the one that ends first, takes the most.
    """
    datasets = [file.dataset for file in files]
    path = coordinate_path(datasets[0], "", dim)
    values = None if path is None else comparable_values(datasets, path)
    if path is None or values is None:
        return
    if not all(one.dtype.kind in "iuf" and len(one) for one in values):
        return
    spans = [(one.max().item(), one.min().item(), number) for number, one in enumerate(values)]
    last: tuple[Any, Any, int] | None = None
    for span in sorted(spans):
        high, low, number = span
        if last is not None and low <= last[0]:
            text = f"goes from {low} to {high}, and overlaps {last[1]} to {last[0]} of "
            yield Disagreement(files[number].url, path, "overlap", f"{text}{files[last[2]].url}")
        else:
            last = span


def _without(
    files: list[ParsedFile], problems: Iterable[Disagreement], left_out: list[Failure]
) -> tuple[list[ParsedFile], list[Failure]]:
    """Leave out files that there are problems with; all that is wrong with one is told."""
    told: dict[str, list[str]] = {}
    for one in problems:
        text = f"{one.variable}: {one.text}" if one.variable else one.text
        told.setdefault(one.file, []).append(text)
    failures = [Failure(file, "; ".join(texts)) for file, texts in told.items()]
    return [one for one in files if one.url not in told], [*left_out, *failures]


def _require_one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        listed = ", ".join(repr(one) for one in allowed if one is not None)
        raise InvalidInputError(
            f"{name} is one of {listed}, not {value!r}", kind=ErrorKind.NOT_ALLOWED
        )
