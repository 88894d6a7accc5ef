"""Jobs that combine files into one dataset: the common part of virtualize, ingest and append.

Finds new source files, parses and checks them, and commits them with a record of their names. If
another writer appends first, the job checks the files against the new state of the group and
appends those that are still missing, so no file is lost or appended twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    FilesDisagreeError,
    InvalidInputError,
    RebaseFailedError,
)
from icefloe.model.chunk_payload import ETag
from icefloe.pipeline.argument_errors import argument_error
from icefloe.pipeline.arrays.nodes import parse_path
from icefloe.pipeline.files import file_checks, static_arrays
from icefloe.pipeline.files.insertion import make_room
from icefloe.pipeline.files.mismatched_chunks import unify_chunks
from icefloe.pipeline.files.source_files import find_versioned_sources
from icefloe.pipeline.files.source_record import (
    KnownSource,
    describe_sources,
    read_known_sources,
    store_sources,
)
from icefloe.pipeline.files.source_versions import SourceVersion, fetch_versions
from icefloe.pipeline.files.staged_refs import FileInterner, ParsedFile, ParseFiles, delete_staged
from icefloe.pipeline.files.time_gaps import describe_gaps
from icefloe.pipeline.report import (
    Failure,
    JobFailedError,
    SourcesChangedError,
    format_bytes,
    format_count,
)
from icefloe.pipeline.run import REMEDY, JobRun
from icefloe.session import Session, contents
from icefloe.session.commit_policy import NO_POLICY
from icefloe.spark.option_parsing import suggest_name
from icefloe.storage.backoff import compute_backoff_s
from icefloe.storage.urls import redact_url
from icefloe.virtual.agreement import Disagreement, raise_disagreements
from icefloe.virtual.append_plan import find_append_problems, is_descending
from icefloe.virtual.arrays import LoadedArray, find_coordinate
from icefloe.virtual.combining import combine, require_dims
from icefloe.virtual.parsing import parse_at
from icefloe.virtual.sources import MAX_CACHED_BYTES, SINGLE_REQUEST_BYTES, Sources
from icefloe.virtual.stored_steps import StoredSteps, fetch_coordinate

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
Changed: TypeAlias = Literal["stop", "replace", "keep"]
WriteFiles: TypeAlias = "Callable[[JobRun, CombinedFiles], CommitPolicy]"
ReplaceSteps: TypeAlias = "Callable[[JobRun, CombinedFiles], None]"
FindMismatches: TypeAlias = "Callable[[Session, VirtualDataset], Iterable[Disagreement]]"
Check: TypeAlias = "Callable[[Sequence[ParsedFile]], Iterable[Disagreement]]"

_PARSE_OPTIONS: Final = tuple(
    name
    for name, parameter in signature(parse_at).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)
_FILES_PER_TASK: Final = 64
_MAX_NAMES: Final = 20
"""Maximum number of files in a step of a plan, or in a note."""

_VERBS: Final = {
    "virtualize": "virtualized",
    "ingest": "ingested",
    "append": "appended",
    "refresh": "refreshed",
}
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
    """How files are parsed and combined; see `virtualize`.

    With ``append``, ``changed`` is what happens to files in the group that changed, ``insert`` is
    whether files may belong between stored steps, and ``is_refresh`` whether new files are ignored.
    """

    dims: tuple[str, ...]
    group: str
    order: Order | None
    on_error: OnError
    parse_options: Mapping[str, Any]
    append: bool
    changed: Changed = "stop"
    insert: bool = False
    is_refresh: bool = False

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
        changed: Changed = "stop",
        insert: bool = False,
    ) -> FileOptions:
        """Check arguments; raise `InvalidInputError` if one is invalid."""
        names = (dims,) if isinstance(dims, str) else tuple(dims)
        require_one_of("order", order, (None, "given", "coordinates"))
        require_one_of("on_error", on_error, ("raise", "skip"))
        require_one_of("changed", changed, ("stop", "replace", "keep"))
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
            changed=changed,
            insert=insert,
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

    def execute(self, write: WriteFiles, replace_steps: ReplaceSteps) -> Plan | Report:
        """Run the job, and commit once.

        ``write`` writes combined files to the session of a run, and ``replace_steps`` writes new
        versions of files in the group. They are called again with a new run if another writer
        committed to the group first, or without the files that they reported as damaged.
        """
        run = self._start()
        staged: list[ParsedFile] = []
        try:
            return self._execute(run, staged, write, replace_steps)
        finally:
            # No commit refers to the staged objects.
            delete_staged(run.session.connection, staged)

    def _execute(
        self,
        run: JobRun,
        staged: list[ParsedFile],
        write: WriteFiles,
        replace_steps: ReplaceSteps,
    ) -> Plan | Report:
        parsed: dict[str, ParsedFile | Failure] = {}
        for attempt in range(_MAX_ATTEMPTS):
            run = self._start() if attempt else run
            if (earlier := run.find_earlier_result()) is not None:
                return earlier
            self._require_group(run.session)
            found = self._find_sources(run)
            urls = [*found.new, *found.changed]
            if run.dry_run:
                return self._plan(run, found)
            if not urls:
                return replace(run.report_nothing(), notes=found.notes)
            new = self._parse(run, [url for url in urls if url not in parsed])
            staged += (file for file in new.values() if isinstance(file, ParsedFile))
            parsed |= new
            self._require_dropped([parsed[url] for url in urls])
            late = self._find_late(run.session, [parsed[url] for url in found.new])
            bad: list[Failure] = []
            combine_part = partial(self._combine_part, run, bad)
            added = combine_part([parsed[url] for url in found.new if url not in late])
            inserted = combine_part([parsed[url] for url in late], is_late=True)
            replaced = combine_part([parsed[url] for url in found.changed], replaced=found.known)
            parts = [part for part in (added, inserted, replaced) if part is not None]
            if bad and (self.files.on_error == "raise" or not parts):
                raise JobFailedError(run.name, bad)
            policy = NO_POLICY
            try:
                if added is not None:
                    policy = write(run, added)
                # After new files: their manifests must not contain moved or replaced chunks.
                if inserted is not None:
                    make_room(
                        run.session, inserted.dataset, dim=self.files.dim, group=self.files.group
                    )
                    replace_steps(run, inserted)
                if replaced is not None:
                    replace_steps(run, replaced)
                if added is not None:
                    notes = self._find_gaps(run.session, added.dataset)
                    found = replace(found, notes=(*found.notes, *notes))
                self._require_unchanged(run, [file for part in parts for file in part.files])
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
                return self._commit(run, parts, policy, replace(found, left_out=tuple(bad)))
            except RebaseFailedError:
                if not self.files.append or attempt + 1 == _MAX_ATTEMPTS:
                    raise
                time.sleep(compute_backoff_s(attempt, 0.05, 5.0))
        raise AssertionError("the last attempt returns or raises")

    def _start(self) -> JobRun:
        name = "refresh" if self.files.is_refresh else "append" if self.files.append else self.name
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

    def _find_sources(self, run: JobRun) -> _FoundSources:
        """Find the files that are not in the group, and those in it that changed."""
        if not self.files.append:
            return _FoundSources(find_versioned_sources(self.sources, run.session))
        group = parse_path(self.files.group).value
        known = read_known_sources(run.repository, run.session, group)
        is_all = self.files.is_refresh and self.sources is None
        versions = (
            dict.fromkeys(known) if is_all else find_versioned_sources(self.sources, run.session)
        )
        new = {url: version for url, version in versions.items() if url not in known}
        if self.files.is_refresh:
            _require_known(group, known, new)
        if is_all:
            _require_authorized(group, known, run.session)
        if self.files.changed == "keep":
            return _FoundSources(new, known=known)
        added = {url: known[url].version for url in versions if url in known}
        # A refresh that names files without a version takes them as changed.
        unknown = [url for url, version in added.items() if version is None]
        is_named = self.files.is_refresh and not is_all
        current = fetch_versions(
            {url: versions[url] for url in added if is_named or added[url] is not None},
            run.session,
        )
        changed = {
            url: version
            for url, version in current.items()
            if version is not None and version != added[url]
        }
        missing = [url for url, version in current.items() if version is None]
        if self.files.changed == "stop" and (changed or missing):
            raise SourcesChangedError(run.name, [*_find_changed(added, current)])
        notes = [_format_missing(missing)] if missing else []
        if unknown and not is_named:
            notes.append(_format_unknown(len(unknown)))
        return _FoundSources(new, changed, known, tuple(notes))

    def _plan(self, run: JobRun, found: _FoundSources) -> Plan:
        """Estimate the work from the sizes of files, without reading them."""
        urls = {**found.new, **found.changed}
        if not urls:
            reason = (
                "no file changed" if self.files.is_refresh else "all files are in the repository"
            )
            return run.plan([f"nothing to do: {reason}", *found.notes], 0)
        versions = fetch_versions(urls, run.session)
        sizes = [version.size_bytes for version in versions.values() if version is not None]
        total = sum(sizes)
        steps = [
            f"parse {format_count(len(urls), 'file')}, {format_bytes(total)} in total",
            f"check that they fit together along {', '.join(self.files.dims)}",
            *([self.last_step] if found.new else []),
            *(_describe_replacement(found.changed) if found.changed else []),
            *found.notes,
        ]
        parsing = len(self.group_files(run, list(urls)))
        if not self.copies:
            # Parsing fetches small files whole, and about one request from each large file.
            fetched = sum(min(size, SINGLE_REQUEST_BYTES) for size in sizes)
            largest = max(sizes, default=0)
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

    def _find_late(
        self, session: Session, parsed: Iterable[ParsedFile | Failure]
    ) -> dict[str, ParsedFile]:
        """Return the files to insert between stored steps."""
        if not self.files.insert:
            return {}
        steps = StoredSteps(session, dim=self.files.dim, group=self.files.group)
        files = [file for file in parsed if isinstance(file, ParsedFile)]
        return {file.url: file for file in files if steps.is_late(file.dataset)}

    def _combine_part(
        self,
        run: JobRun,
        bad: list[Failure],
        parsed: Sequence[ParsedFile | Failure],
        **options: Any,
    ) -> CombinedFiles | None:
        """Combine files; if there are none, or none that fit, extend ``bad`` and return None."""
        if not parsed:
            return None
        try:
            return self._combine(run, parsed, **options)
        except JobFailedError as error:
            bad += error.failures
            return None

    def _combine(
        self,
        run: JobRun,
        parsed: Sequence[ParsedFile | Failure],
        *,
        replaced: Mapping[str, KnownSource] | None = None,
        is_late: bool = False,
    ) -> CombinedFiles:
        """Combine files that fit together; leave the others out, or raise with all of them.

        ``replaced`` are the old versions of the files, None for new files. ``is_late`` is whether
        the files are to be inserted.
        """
        files = [file for file in parsed if isinstance(file, ParsedFile)]
        left_out = [failure for failure in parsed if isinstance(failure, Failure)]
        dims = self.files.dims
        if self.copies and files:
            files = unify_chunks(files, dims, self._find_last_file(files))
        for dim in dims if files else ():
            if not any(_has_dimension(file.dataset, dim) for file in files):
                require_dims([files[0].dataset], (dim,))
        for check in self._iter_checks(run.session, replaced, is_late=is_late):
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

    def _iter_checks(
        self, session: Session, replaced: Mapping[str, KnownSource] | None, *, is_late: bool
    ) -> Iterator[Check]:
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
        if replaced is not None:
            yield partial(_find_replacement_problems, session, self.files, replaced)
        elif append and has_one_dim and not is_late:
            yield lambda files: self._find_append_problems_of_files(session, files)
        if has_one_dim and self.files.order != "given":
            yield lambda files: file_checks.find_overlaps(files, first)

    def _find_append_problems_of_files(
        self, session: Session, files: Sequence[ParsedFile]
    ) -> Iterator[Disagreement]:
        """Find why files cannot be appended; name the option that inserts them."""
        dim, group = self.files.dim, self.files.group
        datasets = {file.url: file.dataset for file in files}
        steps = StoredSteps(session, dim=dim, group=group)
        for problem in find_append_problems([*datasets.values()], session, dim=dim, group=group):
            dataset = datasets.get(problem.file)
            if dataset is not None and steps.is_late(dataset):
                text = f"{problem.text}; insert=True inserts them"
                yield replace(problem, text=text)
            else:
                yield problem

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

    def _commit(
        self,
        run: JobRun,
        parts: Sequence[CombinedFiles],
        policy: CommitPolicy,
        found: _FoundSources,
    ) -> Report:
        group = self.files.group
        files = [file for part in parts for file in part.files]
        left_out = [*found.left_out, *(failure for part in parts for failure in part.left_out)]
        urls = [file.url for file in files]
        if not self.files.append:
            static_arrays.store_digests(run.session, group, files[0], frozenset(self.files.dims))
        added = {file.url: _describe_source(file, self.files.dim) for file in files}
        store_sources(run.session, group, {**found.known, **added})
        about: dict[str, Any] = {
            "group": parse_path(group).value,
            "sources": describe_sources(urls),
        }
        if left_out:
            about["left_out"] = [[failure.source, failure.reason] for failure in left_out]
        num_replaced = sum(url in found.changed for url in urls)
        counts = [
            f"{verb} {format_count(count, 'file')}"
            for verb, count in (
                (_VERBS[run.name], len(urls) - num_replaced),
                ("replaced", num_replaced),
            )
            if count
        ]
        summary = ", ".join(counts)
        report = run.commit(summary, about=about, policy=policy)
        if not report.is_new:
            return report
        return replace(
            report,
            files=len(files),
            left_out=tuple(left_out),
            notes=found.notes,
        )

    def _find_gaps(self, session: Session, added: VirtualDataset) -> Iterator[str]:
        """Describe the times that are missing between the steps that a session added."""
        dim = self.files.dim
        coordinate = fetch_coordinate(session, dim, self.files.group)
        if coordinate is not None and dim in added.lengths():
            gaps = describe_gaps(coordinate, dim, added.lengths()[dim])
            if gaps is not None:
                yield gaps

    def _require_unchanged(self, run: JobRun, files: Iterable[ParsedFile]) -> None:
        """Raise if a file changed while the job read it."""
        # The chunks of other files are read on condition that the ETag is the same.
        parsed = {file.url: file.version for file in files if not self._has_etag(file)}
        current = fetch_versions(dict.fromkeys(parsed), run.session)
        reason = "changed while it was read: run the job again when nothing writes to it"
        changed = [Failure(item.source, reason) for item in _find_changed(parsed, current)]
        if changed:
            raise JobFailedError(run.name, changed)

    def _has_etag(self, file: ParsedFile) -> bool:
        (source,) = file.dataset.sources
        return isinstance(source.checksum(self.files.parse_options.get("checksum", "auto")), ETag)


@dataclass(frozen=True, slots=True)
class _FoundSources:
    """The sources of a job: new ones, those that changed, all in the group, and those left out.

    ``notes`` are for the report.
    """

    new: dict[str, SourceVersion | None]
    changed: dict[str, SourceVersion] = field(default_factory=dict)
    known: dict[str, KnownSource] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: tuple[Failure, ...] = ()


def _find_changed(
    old: Mapping[str, SourceVersion | None], current: Mapping[str, SourceVersion | None]
) -> Iterator[Failure]:
    """Find files whose current version is not the old one; skip those without an old version."""
    for url, version in current.items():
        before = old[url]
        if before is None or version == before:
            continue
        reason = "does not exist anymore" if version is None else before.describe_change(version)
        yield Failure(url, reason)


def _require_known(group: str, known: Mapping[str, KnownSource], new: Iterable[str]) -> None:
    """Raise unless all files to refresh are in the group."""
    if not known:
        raise argument_error(
            f"{group} has no record of source files: it was not written by virtualize or ingest"
        )
    names = list(new)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise argument_error(
            f"{names[0]}{more}: not in {group}, so there is nothing to refresh: append new files"
        )


def _require_authorized(group: str, urls: Iterable[str], session: Session) -> None:
    """Raise unless all files are in containers that the user authorized.

    The record is untrusted: a writer of the repository can list any file that the user can read.
    """
    opener = Sources.of(session.connection.virtual)
    folders = {url.rpartition("/")[0] for url in urls if not opener.is_in_container(url)}
    if folders:
        raise InvalidInputError(
            f"{group} lists files that are in no authorized container, in "
            f"{', '.join(sorted(map(redact_url, folders))[:_MAX_NAMES])}: pass the files as "
            "sources if you trust them, or authorize a container",
            kind=ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
        )


def _find_replacement_problems(
    session: Session,
    options: FileOptions,
    replaced: Mapping[str, KnownSource],
    files: Sequence[ParsedFile],
) -> Iterator[Disagreement]:
    """Find files whose steps are not those of their old versions."""
    steps = StoredSteps(session, dim=options.dim, group=options.group)
    for file in files:
        problem = steps.find_problem(file.dataset, replaced[file.url].num_steps)
        if problem is not None:
            yield problem


def _describe_replacement(changed: Iterable[str]) -> list[str]:
    names = list(changed)
    more = ", …" if len(names) > _MAX_NAMES else ""
    count = format_count(len(names), "changed file")
    return [f"replace the steps of {count}: {', '.join(names[:_MAX_NAMES])}{more}"]


def _format_missing(urls: Sequence[str]) -> str:
    more = ", …" if len(urls) > _MAX_NAMES else ""
    what = f"{format_count(len(urls), 'file')} in the group {'does' if len(urls) == 1 else 'do'}"
    return f"{what} not exist anymore: {', '.join(urls[:_MAX_NAMES])}{more}"


def _describe_source(file: ParsedFile, dim: str) -> KnownSource:
    lengths = (
        array.shape[array.dimension_names.index(dim)]
        for array in file.dataset.arrays.values()
        if dim in array.dimension_names
    )
    return KnownSource(file.version, next(lengths, None))


def _format_unknown(count: int) -> str:
    return (
        f"{format_count(count, 'file')} {'was' if count == 1 else 'were'} added without a record "
        "of size and modification time, so changes cannot be detected"
    )


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
