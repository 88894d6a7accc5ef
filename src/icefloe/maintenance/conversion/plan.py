"""The plan of a conversion: everything that is read of the source before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.errors import ErrorKind, FormatError, IcefloeError
from icefloe.format.generation import V2
from icefloe.maintenance.conversion.chunks import ChunkFiles
from icefloe.maintenance.conversion.history import count_children
from icefloe.maintenance.conversion.node_ids import make_node_ids
from icefloe.maintenance.conversion.nodes import NodeConverter
from icefloe.maintenance.conversion.object_ids import require_distinct, to_rows
from icefloe.maintenance.limits import ReadLimits, map_bounded
from icefloe.maintenance.progress import Phase, Step, ignore_progress
from icefloe.maintenance.repository_reader import NO_CACHE, RepositoryReader
from icefloe.model.repo_info import RepoAvailability
from icefloe.model.snapshot import ManifestFileInfo
from icefloe.refs.opening import REF_STORES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icefloe.format.generation import Generation
    from icefloe.maintenance.conversion.node_ids import NodeIds
    from icefloe.maintenance.progress import Progress
    from icefloe.model.ids import ManifestId
    from icefloe.model.snapshot import Snapshot, SnapshotInfo
    from icefloe.refs.interface import Refs
    from icefloe.refs.state import RefsState
    from icefloe.storage.interface import Storage

_MAX_MESSAGE_PROBLEMS = 1000


@dataclass(frozen=True, slots=True)
class Source:
    """The repository to convert, and how to read it."""

    storage: Storage
    generation: Generation
    state: RefsState
    limits: ReadLimits = field(default_factory=ReadLimits)
    progress: Progress = ignore_progress

    @property
    def num_workers(self) -> int:
        """The number of files that are read concurrently."""
        return 1 if self.storage.is_low_latency else self.limits.max_snapshots_in_memory

    def read_snapshots(self, phase: Phase) -> Iterator[tuple[SnapshotInfo, Snapshot]]:
        """Read all snapshots, parents first."""
        assets = Assets(self.storage, self.generation, NO_CACHE)
        infos = self.state.snapshots
        snapshots = map_bounded(
            lambda info: assets.fetch_snapshot(info.id), infos, workers=self.num_workers
        )
        for number, (info, snapshot) in enumerate(zip(infos, snapshots, strict=True), 1):
            yield info, snapshot
            self.progress(Step(phase, number, len(infos)))


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """The node ids, manifests and chunk files of a conversion."""

    node_ids: NodeIds
    manifests: Mapping[ManifestId, ManifestFileInfo]
    chunks: ChunkFiles


def plan_conversion(
    source: Source, target: Generation, *, with_chunks: bool = True
) -> ConversionPlan:
    """Read all snapshots and manifests of the source.

    ``with_chunks`` also reads the manifests, to find the chunk files to copy. Raises `FormatError`
    of kind ``UNSUPPORTED_OPERATION_FOR_VERSION`` that lists everything that the target cannot
    express.
    """
    problems = dict.fromkeys(_find_name_problems(source.state, target))
    node_ids = make_node_ids(source.generation, target, count_children(source.state.snapshots))
    converter = NodeConverter(target, lambda manifest_id: manifest_id)
    manifests: dict[ManifestId, ManifestFileInfo] = {}
    for info, snapshot in source.read_snapshots(Phase.READ_SNAPSHOTS):
        node_ids.add_snapshot(snapshot, info.parent_id)
        try:
            target.codec.encode_metadata(dict(info.metadata))
        except IcefloeError as error:
            problems[f"the metadata of snapshot {info.id}: {error.message}"] = None
        for node in snapshot.nodes:
            problem = converter.find_problem(node)
            if problem is not None:
                problems[f"{node.path}: {problem}"] = None
        manifests.update({file.id: file for file in snapshot.manifest_files})
        # Readers use the references of arrays, even to manifests that the list lacks.
        for node in snapshot.nodes:
            for ref in node.manifests:
                manifests.setdefault(ref.id, ManifestFileInfo(ref.id, 0, 0))
    if problems:
        raise _unsupported_error(source, target, list(problems))
    no_chunks = ChunkFiles.merge([], source.generation.id_size)
    chunks = _find_chunks(source, manifests) if with_chunks else no_chunks
    source_size = source.generation.id_size
    for kind, rows in (
        ("snapshots", to_rows([info.id for info in source.state.snapshots], source_size)),
        ("manifests", to_rows(manifests, source_size)),
        ("chunks", chunks.ids),
    ):
        require_distinct(rows, target.id_size, kind)
    return ConversionPlan(node_ids, manifests, chunks)


def find_losses(
    refs: Refs, state: RefsState, target: Generation, *, in_place: bool = False
) -> list[str]:
    """Return what of the bookkeeping of the source the target has no place for."""
    losses = []
    if refs.generation.has_repo_info:
        losses.append("the ops log")
        if refs.fetch_metadata() and not target.has_repo_info:
            losses.append("the metadata of the repository")
        status = refs.fetch_status()
        # A conversion in place sets a status itself.
        if status.availability is not RepoAvailability.online and not in_place:
            losses.append(f"the status {status.availability.name}")
        names = [flag.name for flag in refs.fetch_feature_flags() if flag.setting is not None]
        if names:
            losses.append(f"feature flags: {', '.join(names)}")
    if any(info.pruned_ancestor_tx_logs for info in state.snapshots):
        losses.append("the separate transaction logs of expired snapshots")
    if state.deleted_tags and not target.can_delete_tags:
        names = sorted(state.deleted_tags)
        losses.append(f"names of deleted tags, which can be used again: {', '.join(names)}")
    return losses


def _find_chunks(source: Source, manifests: Mapping[ManifestId, ManifestFileInfo]) -> ChunkFiles:
    reader = RepositoryReader(source.storage, source.generation, source.limits, source.progress)
    parts = []
    num_pending, num_merged = 0, 0
    for part in reader.read_manifests(manifests.values(), ChunkFiles.of_manifest):
        parts.append(part)
        num_pending += len(part)
        # Successive manifests of an array share most of their chunks.
        if num_pending > 2 * num_merged + 1_000_000:
            parts = [ChunkFiles.merge(parts)]
            num_pending = num_merged = len(parts[0])
    return ChunkFiles.merge(parts, source.generation.id_size)


def _find_name_problems(state: RefsState, target: Generation) -> Iterator[str]:
    refs = REF_STORES[target.name]
    for kind, names in (
        ("branch", state.branches),
        ("tag", state.tags),
        ("deleted tag", state.deleted_tags if target.can_delete_tags else ()),
    ):
        for name in sorted(names):
            try:
                refs.require_new_name(name)
            except IcefloeError as error:
                yield f"{kind} {name!r}: {error.message}"


def _unsupported_error(source: Source, target: Generation, problems: list[str]) -> FormatError:
    shown = [f"  {problem}" for problem in problems[:_MAX_MESSAGE_PROBLEMS]]
    if len(problems) > _MAX_MESSAGE_PROBLEMS:
        shown.append(f"  and {len(problems) - _MAX_MESSAGE_PROBLEMS} more")
    other = "" if V2 in (source.generation, target) else f"to generation {V2.name}, or "
    return FormatError(
        f"{source.storage.url} cannot be converted to generation {target.name}, which cannot "
        f"express the following; nothing was written. Convert {other}only a branch or the newest "
        "snapshot if it has none of these:\n" + "\n".join(shown),
        kind=ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
    )
