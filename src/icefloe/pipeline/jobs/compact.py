"""The compact job: packs small objects, rewrites sparse packs and merges small manifests.

Chunks are copied byte for byte; only references change. Objects of older snapshots remain until
garbage collection deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np

from icefloe.model.chunk_payload import ChunkKind, ChunkPayload
from icefloe.model.ids import ChunkId
from icefloe.model.node import ArrayNodeData
from icefloe.model.path import Path
from icefloe.pipeline.argument_errors import setting_error
from icefloe.pipeline.arrays.chunk_bytes import MAX_CHUNKS, fetch_chunks, require_chunk_limit
from icefloe.pipeline.arrays.nodes import parse_path
from icefloe.pipeline.files.manifest_building import REFS_PER_MANIFEST, require_refs_per_manifest
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options
from icefloe.pipeline.report import Plan, Report, format_bytes
from icefloe.pipeline.run import (
    KEEP_CONCURRENT_CHUNKS,
    JobRun,
    TaskWriter,
    WorkUnit,
    writing_repository,
)
from icefloe.session import Session, contents
from icefloe.session.commit_policy import CommitPolicy
from icefloe.session.manifest_merging import MergeManifests, MergePlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.model.snapshot import Snapshot
    from icefloe.pipeline.opening import RepositoryOrPlace

_UNIT_BYTES: Final = 32_000_000
_SMALL_FRACTION: Final = 4
"""An object is small below this fraction of the target object size."""


@dataclass(frozen=True, slots=True)
class _Refs:
    """The native references of a snapshot, ordered by array and chunk.

    ``others`` counts the inline and virtual references of each array: they do not change, but are
    copied if their manifest is rewritten.
    """

    paths: list[str]
    array: NDArray[np.int64]
    coords: list[NDArray[np.uint32]]
    starts: NDArray[np.int64]
    object: NDArray[np.int64]
    offset: NDArray[np.uint64]
    length: NDArray[np.int64]
    object_ids: NDArray[np.uint8]
    others: dict[str, int]

    def iter_coords(self, rows: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.uint32]]]:
        """Yield the coordinates of rows by array."""
        for number in np.unique(self.array[rows]).tolist():
            array_rows = rows[self.array[rows] == number]
            yield self.paths[number], self.coords[number][array_rows - self.starts[number]]


@dataclass(frozen=True, slots=True)
class _WorkPlan:
    units: list[WorkUnit]
    small: int
    sparse: int
    dead_bytes: int
    live_bytes: int
    saved_manifests: int = 0


def compact(
    spark: SparkSession | None,
    repository: RepositoryOrPlace,
    *,
    min_live: float = 0.5,
    max_chunks: int = MAX_CHUNKS,
    refs_per_manifest: int = REFS_PER_MANIFEST,
    run_options: RunOptions | None = None,
    commit_options: CommitOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> Plan | Report:
    """Pack small objects, rewrite sparse packs and merge small manifests; commit once.

    Idempotent. Chunks that concurrent commits write are kept. Replaced objects remain for older
    snapshots.

    Parameters
    ----------
    spark, repository
        Spark session (None runs in-process) and repository, whose ``packing`` configures small
        chunks and object sizes.
    min_live
        Packs with a smaller fraction of referenced bytes are rewritten.
    max_chunks
        The maximum number of chunks: the driver holds a reference of about 300 bytes to each until
        the commit. Counts native chunks, and virtual ones in manifests that are rewritten.
    refs_per_manifest
        Manifests of an array are merged up to this number of references, as for `virtualize`.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Raises
    ------
    InvalidInputError
        If there are too many chunks. Nothing was written.
    JobFailedError
        If chunks could not be read. Nothing was committed.
    RebaseFailedError
        If a concurrent commit deleted an array or changed its metadata. Nothing was committed.
    """
    if not 0 <= min_live <= 1:
        raise setting_error(f"min_live must be between 0 and 1, not {min_live}")
    require_refs_per_manifest(refs_per_manifest)
    options = merge_options(run_options, commit_options, keywords)
    run = JobRun.start("compact", spark, repository, options)
    if (earlier := run.find_earlier_result()) is not None:
        return earlier
    rules = run.session.connection.config.effective_manifest.effective_splitting
    merge = MergeManifests(rules, refs_per_manifest)
    work = _plan_work(run, min_live, max_chunks, merge)
    if run.dry_run:
        dead = format_bytes(work.dead_bytes)
        return run.plan(
            [
                f"{work.small:,} small objects are packed",
                f"{work.sparse:,} packs with {dead} of dead space are rewritten",
                f"merging saves {work.saved_manifests:,} manifests",
            ],
            len(run.group_units(work.units)) + bool(work.saved_manifests),
            bytes_read=work.live_bytes,
            bytes_written=work.live_bytes,
            task_bytes=max((unit.size_bytes for unit in work.units), default=0),
        )
    if not work.units and not work.saved_manifests:
        return run.report_nothing()
    run.write_units(run.session, work.units, partial(_repack, run.open_reader()))
    return run.commit(
        f"compacted {work.small + work.sparse:,} objects",
        about={"small": work.small, "sparse": work.sparse, "manifests": work.saved_manifests},
        solver=KEEP_CONCURRENT_CHUNKS,
        policy=CommitPolicy(
            merge_manifests=merge,
            has_work=lambda base: bool(_plan_merge(run.session, base.snapshot, merge).files),
        ),
    )


def _repack(
    reader: Session, writer: TaskWriter, coords_by_array: Sequence[tuple[str, NDArray[np.uint32]]]
) -> None:
    """Rewrite chunks; references that share a payload will share the new one."""
    fork = writer.fork
    new_payloads: dict[ChunkPayload, ChunkPayload] = {}
    for path, coords in coords_by_array:
        node_path = parse_path(path)
        payloads = [contents.get_payload(reader, node_path, tuple(row)) for row in coords.tolist()]
        is_new = np.array([old not in new_payloads for old in payloads])
        for indices, data in fetch_chunks(reader, path, coords[is_new]):
            old = contents.get_payload(reader, node_path, indices)
            if old is not None and old not in new_payloads:
                with writing_repository():
                    contents.set_chunk(fork, node_path, indices, data)
                new = contents.get_payload(fork, node_path, indices)
                if new is not None:
                    new_payloads[old] = new
        for row, old in zip(coords.tolist(), payloads, strict=True):
            if old is not None:
                contents.set_payload(fork, node_path, tuple(row), new_payloads[old])


def _plan_work(run: JobRun, min_live: float, max_chunks: int, merge: MergeManifests) -> _WorkPlan:
    refs = _read_native_refs(run.session, max_chunks)
    plan = _plan_merge(run.session, contents.get_base_snapshot(run.session), merge)
    work = _plan_objects(run, refs, min_live)
    # Manifests are rewritten for arrays with moving chunks, and for merges in other arrays.
    moving = {path for unit in work.units for path, _ in unit.value}
    copied = sum(refs.others[path] for path in moving)
    for part in (part for parts in plan.files for part in parts):
        if part.node.path.value not in moving:
            copied += min(part.count, refs.others[part.node.path.value])
    require_chunk_limit(len(refs.object) + copied, max_chunks, "")
    return replace(work, saved_manifests=plan.num_saved)


def _plan_objects(run: JobRun, refs: _Refs, min_live: float) -> _WorkPlan:
    if not len(refs.object):
        return _WorkPlan([], 0, 0, 0, 0)
    packing = run.repository.config.packing
    target_bytes = 0 if packing is None else packing.effective_target_object_bytes
    chunk_bytes = 0 if packing is None else packing.effective_max_chunk_bytes
    count = len(refs.object_ids)
    distinct = _find_distinct(refs)
    owner, length = refs.object[distinct], refs.length[distinct]
    live = np.bincount(owner, length, count).astype(np.int64)
    largest = np.zeros(count, np.int64)
    np.maximum.at(largest, owner, length)
    sizes = np.maximum(_fetch_object_sizes(run, refs.object_ids), live)
    is_sparse = live < sizes * min_live
    is_small = ~is_sparse & (largest <= chunk_bytes) & (sizes < target_bytes // _SMALL_FRACTION)
    # Each task may write one small pack: skip if the number of objects would not decrease.
    packs = max(1, -(-int(live[is_small].sum()) // max(1, run.task_bytes)))
    if is_small.sum() <= packs:
        is_small[:] = False
    moving = is_sparse | is_small
    return _WorkPlan(
        _plan_units(refs, moving, live),
        int(is_small.sum()),
        int(is_sparse.sum()),
        int((sizes - live)[is_sparse].sum()),
        int(live[moving].sum()),
    )


def _find_distinct(refs: _Refs) -> NDArray[np.int64]:
    """Return one row per distinct payload: shared payloads count once."""
    order = np.lexsort((refs.length, refs.offset, refs.object))
    is_first = np.ones(len(order), bool)
    is_first[1:] = False
    for column in (refs.object, refs.offset, refs.length):
        is_first[1:] |= column[order[1:]] != column[order[:-1]]
    return order[is_first]


def _plan_units(refs: _Refs, moving: NDArray[np.bool_], live: NDArray[np.int64]) -> list[WorkUnit]:
    """Split the work so that all references to an object are in one unit."""
    rows = np.flatnonzero(moving[refs.object])
    if not len(rows):
        return []
    objects, firsts = np.unique(refs.object[rows], return_index=True)
    objects = objects[np.argsort(firsts)]  # in the order of arrays and chunks
    number_of = np.zeros(len(refs.object_ids), np.int64)
    number_of[objects] = np.cumsum(live[objects]) // _UNIT_BYTES
    numbers = number_of[refs.object[rows]]
    order = np.argsort(numbers, kind="stable")
    boundaries = np.flatnonzero(np.diff(numbers[order])) + 1
    units = []
    for part in np.split(rows[order], boundaries):
        coords_by_array = list(refs.iter_coords(np.sort(part)))
        paths = ", ".join(path for path, _ in coords_by_array[:3])
        size = int(live[np.unique(refs.object[part])].sum())
        units.append(WorkUnit(f"chunks of {paths}", size, coords_by_array))
    return units


def _read_native_refs(session: Session, max_chunks: int) -> _Refs:
    count = 0
    others: dict[str, int] = {}
    paths: list[str] = []
    coords: list[NDArray[np.uint32]] = []
    columns: list[tuple[NDArray[Any], ...]] = []
    nodes = [node for node in contents.iter_nodes_below(session, Path("/")) if node.is_array]
    for node in sorted(nodes, key=lambda node: node.path):
        array_coords = []
        others[node.path.value] = 0
        for part in contents.fetch_chunk_refs(session, node.path):
            rows = np.flatnonzero(part.payloads.kind == ChunkKind.NATIVE)
            payloads = part.payloads
            count += len(rows)
            others[node.path.value] += len(part) - len(rows)
            require_chunk_limit(count, max_chunks, "")
            if len(rows):
                array_coords.append(part.coords[rows])
                columns.append(
                    (payloads.chunk_id[rows], payloads.offset[rows], payloads.length[rows])
                )
        if array_coords:
            paths.append(node.path.value)
            coords.append(np.concatenate(array_coords))
    counts = [len(part_coords) for part_coords in coords]
    if not columns:
        zeros = np.zeros(0, np.int64)
        return _Refs(
            [], zeros, [], zeros, zeros, zeros.astype("u8"), zeros, np.zeros((0, 12), "u1"), others
        )
    ids, offset, length = (np.concatenate(column) for column in zip(*columns, strict=True))
    keys = np.ascontiguousarray(ids).view(f"V{ids.shape[1]}").reshape(-1)
    _, firsts, numbers = np.unique(keys, return_index=True, return_inverse=True)
    return _Refs(
        paths,
        np.repeat(np.arange(len(paths)), counts),
        coords,
        np.cumsum([0, *counts])[:-1],
        numbers.reshape(-1).astype(np.int64),
        offset,
        length.astype(np.int64),
        ids[firsts],
        others,
    )


def _fetch_object_sizes(run: JobRun, ids: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Fetch object sizes with one listing, a thousand per request."""
    chunks = run.session.connection.generation.layout.chunks
    listed = run.repository.storage.list(chunks.prefix)
    sizes = {chunks.parse_name(info.key): info.size_bytes for info in listed}
    names = [str(ChunkId(row.tobytes())) for row in ids]
    return np.array([sizes.get(name, 0) for name in names], np.int64)


def _plan_merge(session: Session, snapshot: Snapshot, merge: MergeManifests) -> MergePlan:
    """Plan which manifests of a snapshot to merge."""
    assets = session.connection.assets
    manifests = {
        node.id: node.node_data.manifests
        for node in snapshot.nodes
        if isinstance(node.node_data, ArrayNodeData)
    }
    return merge.plan(
        snapshot.nodes,
        manifests,
        {info.id: info.num_chunk_refs for info in snapshot.manifest_files},
        lambda ids: assets.run_concurrently(assets.fetch_manifest, ids),
    )
