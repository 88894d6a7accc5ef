"""Converts a repository to another generation, into another root or in place.

The source is only read. The target appears as a repository with the last write, so no reader sees
a part of it. Everything that the target cannot express is found before the first write.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from icefloe.assets import Assets
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
    PreconditionFailedError,
    ReadOnlyError,
    StorageError,
)
from icefloe.format.generation import V1, V2
from icefloe.format.location_compression import LocationCompression
from icefloe.maintenance.conversion.chunks import ChunkCopier
from icefloe.maintenance.conversion.history import (
    PinnedRefs,
    Selection,
    fetch_history,
    fetch_pinned_refs,
    hash_history,
)
from icefloe.maintenance.conversion.in_place import downgrade_storage
from icefloe.maintenance.conversion.manifests import convert_manifests
from icefloe.maintenance.conversion.object_ids import map_id
from icefloe.maintenance.conversion.plan import Source, find_losses, plan_conversion
from icefloe.maintenance.conversion.record import ConversionRecord, fetch_record, write_record
from icefloe.maintenance.conversion.report import ConversionReport
from icefloe.maintenance.conversion.snapshots import convert_snapshots, map_info
from icefloe.maintenance.limits import ReadLimits
from icefloe.maintenance.progress import Phase, Step, ignore_progress
from icefloe.maintenance.repository_reader import NO_CACHE
from icefloe.maintenance.upgrade import upgrade_storage
from icefloe.model.config import RepositoryConfig
from icefloe.refs.opening import REF_STORES, is_repository, open_refs
from icefloe.refs.state import RefsState
from icefloe.storage.same_root import is_nested, is_same_root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icefloe.format.generation import Generation
    from icefloe.maintenance.conversion.chunks import ChunkFiles, CopyBatch, CopyResult
    from icefloe.maintenance.conversion.plan import ConversionPlan
    from icefloe.maintenance.progress import Progress
    from icefloe.model.ids import ManifestId
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import Storage


class ReportBatches(Protocol):
    """Called with the number of copied batches."""

    def __call__(self, done: int, total: int) -> None:
        """Report progress."""


RunBatches: TypeAlias = (
    "Callable[[Sequence[ChunkFiles], CopyBatch, ReportBatches], list[CopyResult]]"
)
"""Calls a function on each batch, reports how many batches are done, and returns the results."""

_MAX_SHOWN = 20
DEFAULT_BATCH_BYTES = 256_000_000


def convert_storage(
    source: Storage,
    target: Storage,
    *,
    to: Generation,
    selection: Selection,
    dry_run: bool = False,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    run_batches: RunBatches | None = None,
    limits: ReadLimits | None = None,
    progress: Progress = ignore_progress,
) -> ConversionReport:
    """Convert the repository in one storage, and write it to another.

    ``run_batches`` calls a function on each batch of chunk files, by default in this process. An
    interrupted conversion continues if it is called again.
    """
    started = time.monotonic()
    refs = open_refs(source).refs
    generation = refs.generation
    if generation is to:
        raise InvalidInputError(
            f"{source.url} is of generation {to.name} already",
            kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
        )
    generation.require_codec()
    to.require_codec()
    if target.read_only and not dry_run:
        raise ReadOnlyError(f"{target.url} is read-only: open it with write access")
    if is_same_root(source, target):
        report = _convert_in_place(refs, source, to, selection, dry_run=dry_run, progress=progress)
        return replace(report, seconds=time.monotonic() - started)
    if is_nested(source, target):
        raise InvalidInputError(
            f"{source.url} and {target.url} contain one another, and maintenance of one could "
            "change files of the other: choose another target",
            kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
        )
    record = fetch_record(target)
    if record is None:
        _require_empty(target)
        pinned = fetch_pinned_refs(refs)
    else:
        task = (source.url, generation.name, to.name, selection)
        _require_same_task(record, task, target)
        if is_repository(target):
            return _report_earlier_run(record, target, dry_run=dry_run)
        pinned = record.get_pinned_refs(refs.fetch_config())
    state = _fetch_recorded_history(refs, pinned, selection, record, target)
    conversion = _Conversion(
        Source(source, generation, state, limits or ReadLimits(), progress),
        target,
        to,
        selection,
        started,
        tuple(find_losses(refs, state, to)),
    )
    plan = plan_conversion(conversion.source, to)
    if dry_run:
        return conversion.make_report(plan, is_dry_run=True)
    if record is None:
        write_record(target, conversion.make_record(pinned))
    return conversion.run(plan, batch_bytes, run_batches or _run_in_sequence)


@dataclass(frozen=True, slots=True)
class _Conversion:
    """A conversion into another root."""

    source: Source
    target: Storage
    generation: Generation
    selection: Selection
    started: float
    losses: tuple[str, ...]

    def run(
        self, plan: ConversionPlan, batch_bytes: int, run_batches: RunBatches
    ) -> ConversionReport:
        """Write all files, and publish the repository last."""
        num_copied, num_transferred = self._copy_chunks(plan.chunks, batch_bytes, run_batches)
        assets = Assets(self.target, self.generation, NO_CACHE)
        compression = make_location_compression(self.source.state.config)
        manifests = convert_manifests(self.source, plan, assets, compression, self._map_manifest_id)
        convert_snapshots(self.source, plan.node_ids, manifests, assets, self._map_manifest_id)
        try:
            REF_STORES[self.generation.name].restore(self.target, self._map_state())
        except PreconditionFailedError as error:
            raise AlreadyExistsError(
                f"another process created a repository at {self.target.url}: choose another target",
                kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
            ) from error
        report = self.make_report(plan)
        return replace(report, num_copied_chunks=num_copied, num_transferred_bytes=num_transferred)

    def make_record(self, pinned: PinnedRefs) -> ConversionRecord:
        """Make the record of this conversion, before it begins."""
        return ConversionRecord(
            self.source.storage.url,
            self.source.generation.name,
            self.generation.name,
            datetime.now(UTC).isoformat(),
            self.selection,
            {name: str(tip) for name, tip in pinned.branches.items()},
            {name: str(target) for name, target in pinned.tags.items()},
            tuple(sorted(pinned.deleted_tags)),
            hash_history(self.source.state.snapshots),
            self._map_snapshots(),
        )

    def make_report(self, plan: ConversionPlan, *, is_dry_run: bool = False) -> ConversionReport:
        """Report what was converted, or would be."""
        state = self.source.state
        return ConversionReport(
            self.source.storage.url,
            self.target.url,
            self.source.generation.name,
            self.generation.name,
            str(self.selection),
            is_dry_run=is_dry_run,
            is_new=not is_dry_run,
            in_place=False,
            branches=tuple(sorted(state.branches)),
            tags=tuple(sorted(state.tags)),
            snapshots=self._map_snapshots(),
            num_manifests=len(plan.manifests),
            num_chunks=len(plan.chunks),
            num_chunk_bytes=plan.chunks.num_bytes,
            not_converted=self.losses,
            seconds=time.monotonic() - self.started,
        )

    def _copy_chunks(
        self, chunks: ChunkFiles, batch_bytes: int, run_batches: RunBatches
    ) -> tuple[int, int]:
        """Copy missing chunk files; return their number and the bytes that were transferred."""
        source = self.source
        copier = ChunkCopier(
            source.storage, self.target, source.generation, self.generation, batch_bytes
        )
        batches = copier.find_missing(chunks).split(batch_bytes)
        report = partial(_report_batches, source.progress)
        results = run_batches(batches, copier.copy, report)
        failures = [failure for result in results for failure in result.failures]
        if failures:
            raise _copy_error(failures)
        return sum(result.num_files for result in results), sum(
            result.num_bytes for result in results
        )

    def _map_state(self) -> RefsState:
        state, id_size = self.source.state, self.generation.id_size
        return RefsState(
            {name: map_id(tip, id_size) for name, tip in state.branches.items()},
            {name: map_id(target, id_size) for name, target in state.tags.items()},
            state.deleted_tags if self.generation.can_delete_tags else frozenset(),
            tuple(map_info(info, id_size) for info in state.snapshots),
            state.config,
        )

    def _map_snapshots(self) -> dict[str, str]:
        id_size = self.generation.id_size
        return {str(info.id): str(map_id(info.id, id_size)) for info in self.source.state.snapshots}

    def _map_manifest_id(self, manifest_id: ManifestId) -> ManifestId:
        return map_id(manifest_id, self.generation.id_size)


def make_location_compression(config: RepositoryConfig | None) -> LocationCompression:
    """Return how manifests compress locations by a configuration."""
    manifest = (RepositoryConfig() if config is None else config).effective_manifest
    rules = manifest.effective_virtual_chunk_location_compression
    return LocationCompression(
        min_locations=rules.effective_min_num_chunks,
        max_training_samples=rules.effective_dictionary_max_training_samples,
        max_dictionary_bytes=rules.effective_dictionary_max_size_bytes,
        level=rules.effective_compression_level,
    )


def _convert_in_place(
    refs: Refs,
    storage: Storage,
    to: Generation,
    selection: Selection,
    *,
    dry_run: bool,
    progress: Progress,
) -> ConversionReport:
    """Convert v1 to v2 or back in the same root, with shared chunks."""
    if selection != Selection():
        raise InvalidInputError(
            "a conversion in place keeps all branches and snapshots: choose another target to "
            "convert one branch or the newest snapshot"
        )
    losses: list[str] = []
    num_manifests = 0
    if (refs.generation, to) == (V1, V2):
        info = upgrade_storage(storage, dry_run=dry_run, progress=progress)
        branches, tags, snapshots = info.branches, info.tags, info.snapshots
    elif (refs.generation, to) == (V2, V1):

        def make_source() -> Source:
            state = fetch_history(refs, fetch_pinned_refs(refs), selection)
            return Source(storage, V2, state, progress=progress)

        losses = find_losses(refs, make_source().state, to, in_place=True)
        state, plan = downgrade_storage(make_source, dry_run=dry_run)
        branches, tags, snapshots = state.branches, state.tags, state.snapshots
        num_manifests = len(plan.manifests)
    else:
        raise InvalidInputError(
            f"generations {refs.generation.name} and {to.name} have different files and cannot "
            "share a root: choose another target",
            kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
        )
    return ConversionReport(
        storage.url,
        storage.url,
        refs.generation.name,
        to.name,
        str(selection),
        is_dry_run=dry_run,
        is_new=not dry_run,
        in_place=True,
        branches=tuple(sorted(branches)),
        tags=tuple(sorted(tags)),
        snapshots={str(info.id): str(info.id) for info in snapshots},
        num_manifests=num_manifests,
        not_converted=tuple(losses),
    )


def _run_in_sequence(
    batches: Sequence[ChunkFiles],
    copy: CopyBatch,
    report: ReportBatches,
) -> list[CopyResult]:
    results = []
    for number, batch in enumerate(batches, 1):
        results.append(copy(batch))
        report(number, len(batches))
    return results


def _report_batches(progress: Progress, done: int, total: int) -> None:
    progress(Step(Phase.COPY_CHUNKS, done, total))


def _fetch_recorded_history(
    refs: Refs,
    pinned: PinnedRefs,
    selection: Selection,
    record: ConversionRecord | None,
    target: Storage,
) -> RefsState:
    try:
        state = fetch_history(refs, pinned, selection)
    except NotFoundError as error:
        if record is None:
            raise
        raise _changed_source_error(target) from error
    if record is not None and hash_history(state.snapshots) != record.history:
        raise _changed_source_error(target)
    return state


def _require_empty(target: Storage) -> None:
    """Raise if a new target has any file, or is a repository."""
    if is_repository(target):
        raise AlreadyExistsError(
            f"a repository already exists at {target.url}: choose another target",
            kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )
    other = next((info.key for info in target.list()), None)
    if other is not None:
        raise AlreadyExistsError(
            f"{target.url} is not empty (it contains {other!r}), and its files are not of an "
            "interrupted conversion: choose another target",
            kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )


def _require_same_task(
    record: ConversionRecord, task: tuple[str, str, str, Selection], target: Storage
) -> None:
    found = (record.source, record.from_generation, record.to_generation, record.selection)
    if found != task:
        raise AlreadyExistsError(
            f"{target.url} has another conversion: of {record.selection} of {record.source} from "
            f"{record.from_generation} to {record.to_generation}; choose another target, or delete "
            "its files",
            kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )


def _report_earlier_run(
    record: ConversionRecord, target: Storage, *, dry_run: bool
) -> ConversionReport:
    return ConversionReport(
        record.source,
        target.url,
        record.from_generation,
        record.to_generation,
        str(record.selection),
        is_dry_run=dry_run,
        is_new=False,
        in_place=False,
        branches=tuple(sorted(record.branches)),
        tags=tuple(sorted(record.tags)),
        snapshots=record.snapshots,
    )


def _changed_source_error(target: Storage) -> ConflictError:
    return ConflictError(
        "the history of the source was expired or deleted since an earlier run of this conversion: "
        f"delete the files at {target.url}, and convert again",
        kind=ErrorKind.REPO_INFO_UPDATED,
    )


def _copy_error(failures: Sequence[str]) -> StorageError:
    shown = [f"  {failure}" for failure in failures[:_MAX_SHOWN]]
    if len(failures) > _MAX_SHOWN:
        shown.append(f"  and {len(failures) - _MAX_SHOWN} more")
    count = "1 chunk file" if len(failures) == 1 else f"{len(failures)} chunk files"
    return StorageError(
        f"{count} could not be copied; fix the cause and convert again, which continues:\n"
        + "\n".join(shown)
    )
