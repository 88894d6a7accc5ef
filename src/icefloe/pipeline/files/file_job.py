"""Jobs that combine files into one dataset: the common part of virtualize, ingest and append.

Finds new source files, parses and checks them, and commits them with a record of their names. If
another writer appends first, the job checks the files against the new state of the group and
appends those that are still missing, so no file is lost or appended twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from icefloe.errors import AlreadyExistsError, ErrorKind, FilesDisagreeError, RebaseFailedError
from icefloe.pipeline.argument_errors import argument_error
from icefloe.pipeline.arrays.nodes import parse_path
from icefloe.pipeline.files import file_checks, static_arrays
from icefloe.pipeline.files.mismatched_chunks import unify_chunks
from icefloe.pipeline.files.source_files import fetch_sizes, find_sized_sources
from icefloe.pipeline.files.source_record import describe_sources, read_known_sources, store_sources
from icefloe.pipeline.files.staged_refs import FileInterner, ParsedFile, ParseFiles, delete_staged
from icefloe.pipeline.report import Failure, JobFailedError, format_bytes, format_count
from icefloe.pipeline.run import REMEDY, JobRun
from icefloe.session import Session, contents
from icefloe.spark.option_parsing import suggest_name
from icefloe.storage.backoff import compute_backoff_s
from icefloe.virtual.agreement import Disagreement, raise_disagreements
from icefloe.virtual.append_plan import find_append_problems, is_descending
from icefloe.virtual.arrays import LoadedArray, find_coordinate
from icefloe.virtual.combining import combine, require_dims
from icefloe.virtual.parsing import parse_at
from icefloe.virtual.sources import MAX_CACHED_BYTES, SINGLE_REQUEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.pipeline.options import JobOptions
    from icefloe.pipeline.report import Plan, Report
    from icefloe.repository import Repository
    from icefloe.session.commit_policy import CommitPolicy
    from icefloe.virtual.dataset import VirtualDataset

OnError: TypeAlias = Literal["raise", "skip"]
Order: TypeAlias = Literal["given", "coordinates"]
WriteFiles: TypeAlias = "Callable[[JobRun, CombinedFiles], CommitPolicy]"
FindMismatches: TypeAlias = "Callable[[Session, VirtualDataset], Iterable[Disagreement]]"
Check: TypeAlias = "Callable[[Sequence[ParsedFile]], Iterable[Disagreement]]"

_PARSE_OPTIONS: Final = tuple(
    name
    for name, parameter in signature(parse_at).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)
_FILES_PER_TASK: Final = 64
_MAX_ATTEMPTS: Final = 100
"""Attempts of an append; an attempt fails only if another writer committed first."""


@dataclass(slots=True)
class CombinedFiles:
    """Files that fit together, with markers instead of references, and files left out."""

    files: list[ParsedFile]
    dataset: VirtualDataset
    left_out: list[Failure]

    @property
    def mismatched(self) -> frozenset[str]:
        """The arrays whose chunks do not share a grid; see `mismatched_chunks`."""
        return frozenset(self.files[0].mismatched)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How files are parsed and combined; see `virtualize`."""

    dims: tuple[str, ...]
    group: str
    order: Order | None
    on_error: OnError
    parse_options: Mapping[str, Any]
    append: bool

    @classmethod
    def of(
        cls,
        dims: str | Sequence[str],
        group: str,
        order: Order | None,
        on_error: OnError,
        parse_options: Mapping[str, Any] | None,
        *,
        append: bool,
    ) -> FileOptions:
        """Check arguments; raise `InvalidInputError` if one is invalid."""
        names = (dims,) if isinstance(dims, str) else tuple(dims)
        require_one_of("order", order, (None, "given", "coordinates"))
        require_one_of("on_error", on_error, ("raise", "skip"))
        if not names or len(set(names)) < len(names):
            raise argument_error(
                f"dims={names!r}: expected one or more different dimensions to combine along"
            )
        for name in parse_options or ():
            require_one_of("a key of parse_options", name, _PARSE_OPTIONS)
        return cls(
            dims=names,
            group=group,
            order=order,
            on_error=on_error,
            parse_options=dict(parse_options or {}),
            append=append,
        )

    @property
    def dim(self) -> str:
        """The dimension to append along."""
        return self.dims[0]


@dataclass(frozen=True, slots=True)
class FileJob:
    """A job on files; with ``copies`` it copies their values, so they need not share chunks.

    ``find_mismatches`` finds why a file cannot be appended to the group. ``last_step`` is the last
    step of the plan.
    """

    name: str
    spark: SparkSession | None
    repository: Repository
    sources: Any
    files: FileOptions
    options: JobOptions
    find_mismatches: FindMismatches
    last_step: str
    copies: bool = False
    started: float = field(default_factory=time.monotonic)

    def execute(self, write: WriteFiles) -> Plan | Report:
        """Run the job, and commit once.

        ``write`` writes combined files to the session of a run. It is called again with a new run
        if another writer appended first, or without the files that it reported as damaged.
        """
        run = self._start()
        staged: list[ParsedFile] = []
        try:
            return self._execute(run, staged, write)
        finally:
            # No commit refers to the staged objects.
            delete_staged(run.session.connection, staged)

    def _execute(self, run: JobRun, staged: list[ParsedFile], write: WriteFiles) -> Plan | Report:
        parsed: dict[str, ParsedFile | Failure] = {}
        for attempt in range(_MAX_ATTEMPTS):
            run = self._start() if attempt else run
            if (earlier := run.find_earlier_result()) is not None:
                return earlier
            self._require_group(run.session)
            urls = self._find_new_sources(run)
            if run.dry_run:
                return self._plan(run, urls)
            if not urls:
                return run.report_nothing()
            new = self._parse(run, [url for url in urls if url not in parsed])
            staged += (file for file in new.values() if isinstance(file, ParsedFile))
            parsed |= new
            self._require_dropped([parsed[url] for url in urls])
            combined = self._combine(run, [parsed[url] for url in urls])
            try:
                policy = write(run, combined)
            except JobFailedError as error:
                damaged = {
                    failure.source: failure
                    for failure in error.failures
                    if failure.source in parsed
                }
                # With a remedy, something else than sources failed.
                if self.files.on_error == "raise" or error.remedy is not None or not damaged:
                    raise
                parsed.update(damaged)
                continue
            try:
                return self._commit(run, combined, policy)
            except RebaseFailedError:
                if not self.files.append or attempt + 1 == _MAX_ATTEMPTS:
                    raise
                time.sleep(compute_backoff_s(attempt, 0.05, 5.0))
        raise AssertionError("the last attempt returns or raises")

    def _start(self) -> JobRun:
        name = "append" if self.files.append else self.name
        run = JobRun.start(name, self.spark, self.repository, self.options)
        run.started = self.started
        return run

    def _require_group(self, session: Session) -> None:
        """Raise unless the group exists for an append, or is empty otherwise."""
        path = parse_path(self.files.group)
        if self.files.append:
            contents.require_node(session, path)
        else:
            below = sorted(child.path.value for child in contents.iter_nodes_below(session, path))
            if below:
                raise AlreadyExistsError(
                    f"{path} has {', '.join(below[:5])}{', …' if len(below) > 5 else ''}: append "
                    "to it, choose another group, or delete it first",
                    kind=ErrorKind.NODE_ALREADY_EXISTS,
                )
        node = contents.get_node(session, path)
        if node is not None and node.is_array:
            raise AlreadyExistsError(
                f"{path} is an array; expected a group", kind=ErrorKind.NODE_ALREADY_EXISTS
            )

    def _find_new_sources(self, run: JobRun) -> dict[str, int | None]:
        """Return the files that are not yet in the group, with sizes if known."""
        sizes = find_sized_sources(self.sources, run.session)
        known = self._read_known_sources(run)
        return {url: size for url, size in sizes.items() if url not in known}

    def _read_known_sources(self, run: JobRun) -> set[str]:
        if not self.files.append:
            return set()
        return read_known_sources(run.repository, run.session, parse_path(self.files.group).value)

    def _plan(self, run: JobRun, urls: Mapping[str, int | None]) -> Plan:
        """Estimate the work from the sizes of files, without reading them."""
        if not urls:
            return run.plan(["nothing to do: all files are in the repository"], 0)
        sizes = fetch_sizes(urls, run.session)
        total = sum(sizes.values())
        steps = [
            f"parse {format_count(len(urls), 'file')}, {format_bytes(total)} in total",
            f"check that they fit together along {', '.join(self.files.dims)}",
            self.last_step,
        ]
        parsing = len(self.group_files(run, list(urls)))
        if not self.copies:
            # Parsing fetches small files whole, and about one request from each large file.
            fetched = sum(min(size, SINGLE_REQUEST_BYTES) for size in sizes.values())
            largest = max(sizes.values())
            peak = largest if largest <= SINGLE_REQUEST_BYTES else min(largest, MAX_CACHED_BYTES)
            return run.plan(steps, parsing, bytes_read=fetched, task_bytes=peak, is_estimate=True)
        return run.plan(
            steps,
            parsing + run.count_tasks(total),
            bytes_read=total,
            bytes_written=total,
            task_bytes=run.task_bytes,
            is_estimate=True,
        )

    def group_files(self, run: JobRun, urls: Sequence[str]) -> list[tuple[str, ...]]:
        """Group files into tasks: enough for all cores, with a limit per task."""
        tasks = max(run.slots * 3, -(-len(urls) // _FILES_PER_TASK))
        size = max(1, -(-len(urls) // tasks))
        return [tuple(urls[start : start + size]) for start in range(0, len(urls), size)]

    def _parse(self, run: JobRun, urls: Sequence[str]) -> dict[str, ParsedFile | Failure]:
        """Parse files on executors."""
        parsed: dict[str, ParsedFile | Failure] = {}
        tasks = self.group_files(run, urls)
        options = self.files.parse_options
        work = ParseFiles(run.session.connection, options, frozenset(self.files.dims))
        interner = FileInterner()
        if urls:
            run.enter_phase("reading headers")
        failed_tasks: list[Failure] = []
        for task, outcome in zip(tasks, run.run_stage(tasks, work), strict=True):
            if outcome.result is None:
                # Not due to a file: files that cannot be parsed are results.
                label = f"parsing {format_count(len(task), 'file')} from {task[0]}"
                failed_tasks.append(Failure(label, outcome.error or ""))
                continue
            items = (
                item if isinstance(item, Failure) else interner.add(item) for item in outcome.result
            )
            parsed.update(zip(task, items, strict=True))
        if failed_tasks:
            raise JobFailedError(run.name, failed_tasks, remedy=REMEDY)
        return parsed

    def _require_dropped(self, parsed: Sequence[ParsedFile | Failure]) -> None:
        """Raise unless each name in ``drop_variables`` is a variable or a group of some file."""
        names = {name.strip("/") for name in self.files.parse_options.get("drop_variables", ())}
        files = [file for file in parsed if isinstance(file, ParsedFile)]
        if not names or len(files) < len(parsed):
            return  # a file that cannot be parsed may have it
        dropped = frozenset[str]().union(*(file.dropped for file in files))
        for name in sorted(names - dropped):
            if not any(name.startswith(f"{parent}/") for parent in dropped):
                available = {path for file in files for path in file.dataset.arrays}
                raise argument_error(
                    f"drop_variables={[name]}: no file has such a variable; "
                    f"{suggest_name(name, available)}"
                )

    def _combine(self, run: JobRun, parsed: Sequence[ParsedFile | Failure]) -> CombinedFiles:
        """Combine files that fit together; leave the others out, or raise with all of them."""
        files = [file for file in parsed if isinstance(file, ParsedFile)]
        left_out = [failure for failure in parsed if isinstance(failure, Failure)]
        dims = self.files.dims
        if self.copies and files:
            files = unify_chunks(files, dims, self._find_last_file(files))
        for dim in dims if files else ():
            if not any(_has_dimension(file.dataset, dim) for file in files):
                require_dims([files[0].dataset], (dim,))
        for check in self._iter_checks(run.session):
            files, left_out = file_checks.exclude_files(
                files, check(files) if files else (), left_out
            )
        while files:
            if left_out and self.files.on_error == "raise":
                raise JobFailedError(run.name, left_out)
            try:
                files, order = self._choose_order(run.session, files)
                dataset = self._join(files, order)
                if self.files.append and len(dims) > 1:
                    raise_disagreements(
                        self._find_append_problems(run.session, dataset),
                        f"appending to {parse_path(self.files.group)}",
                    )
                return CombinedFiles(files, dataset, left_out)
            except FilesDisagreeError as error:
                passed, left_out = file_checks.exclude_files(files, error.disagreements, left_out)
                if len(passed) == len(files):
                    raise
                files = passed
        raise JobFailedError(run.name, left_out)

    def _iter_checks(self, session: Session) -> Iterator[Check]:
        """Yield the checks; each applies to files that passed the previous checks."""
        dims, first = frozenset(self.files.dims), self.files.dim
        group, append = self.files.group, self.files.append
        # With several dimensions a file covers only a part; the combined dataset is checked.
        has_one_dim = len(self.files.dims) == 1
        if append and has_one_dim:
            yield lambda files: file_checks.find_append_mismatches(
                files, dims, lambda dataset: self.find_mismatches(session, dataset)
            )
        if append:
            yield lambda files: static_arrays.find_stored_mismatches(files, session, group, dims)
        yield lambda files: file_checks.find_outliers(files, dims)
        yield lambda files: static_arrays.find_static_mismatches(files, dims)
        yield lambda files: file_checks.find_unsorted(files, self.files.dims)
        if append and has_one_dim:
            yield lambda files: find_append_problems(
                [file.dataset for file in files], session, dim=first, group=group
            )
        if has_one_dim and self.files.order != "given":
            yield lambda files: file_checks.find_overlaps(files, first)

    def _find_append_problems(
        self, session: Session, dataset: VirtualDataset
    ) -> list[Disagreement]:
        return [*self.find_mismatches(session, dataset)] or [
            *find_append_problems([dataset], session, dim=self.files.dim, group=self.files.group)
        ]

    def _find_last_file(self, files: Sequence[ParsedFile]) -> int | None:
        if len(self.files.dims) > 1:
            return None
        is_given = self.files.order == "given"
        return len(files) - 1 if is_given else file_checks.find_last_file(files, self.files.dim)

    def _choose_order(
        self, session: Session, files: list[ParsedFile]
    ) -> tuple[list[ParsedFile], Order]:
        order = self.files.order or _choose_default_order(files[0].dataset, self.files.dims)
        dim, group = self.files.dim, self.files.group
        if self.files.append and len(self.files.dims) == 1 and order == "coordinates":
            # Files of one step have no direction: sort them in the direction of the group.
            descending = file_checks.sort_descending(files, dim) if len(files) > 1 else None
            if descending is not None and is_descending(session, dim=dim, group=group):
                return descending, "given"
        return files, order

    def _join(self, files: Sequence[ParsedFile], order: Order) -> VirtualDataset:
        marked = [file.with_markers(number) for number, file in enumerate(files)]
        require_dims(marked, self.files.dims)
        return marked[0] if len(marked) == 1 else combine(marked, self.files.dims, order=order)

    def _commit(self, run: JobRun, combined: CombinedFiles, policy: CommitPolicy) -> Report:
        group = self.files.group
        urls = [file.url for file in combined.files]
        if not self.files.append:
            static_arrays.store_digests(
                run.session, group, combined.files[0], frozenset(self.files.dims)
            )
        store_sources(run.session, group, [*self._read_known_sources(run), *urls])
        about: dict[str, Any] = {
            "group": parse_path(group).value,
            "sources": describe_sources(urls),
        }
        if combined.left_out:
            about["left_out"] = [[failure.source, failure.reason] for failure in combined.left_out]
        verb = {"virtualize": "virtualized", "ingest": "ingested", "append": "appended"}[run.name]
        summary = f"{verb} {format_count(len(urls), 'file')}"
        report = run.commit(summary, about=about, policy=policy)
        if not report.is_new:
            return report
        return replace(report, files=len(combined.files), left_out=tuple(combined.left_out))


def require_one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise `InvalidInputError` unless an argument has one of the allowed values."""
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed if choice is not None)
        raise argument_error(f"{name} must be one of {choices}, not {value!r}")


def _choose_default_order(first: VirtualDataset, dims: Sequence[str]) -> Order:
    coordinates = [first.arrays.get(find_coordinate(first.arrays, "", dim) or "") for dim in dims]
    has_all = all(isinstance(array, LoadedArray) for array in coordinates)
    return "coordinates" if has_all else "given"


def _has_dimension(dataset: VirtualDataset, dim: str) -> bool:
    return any(dim in array.dimension_names for array in dataset.arrays.values())
