"""Builds the manifests of virtual datasets on executors, from staged references.

The driver assigns files to manifests and computes the position of their chunks from markers (see
`staged_refs`). Executors write the manifests and return names, sizes and extents. The driver never
holds the references. Icechunk spec, "Manifests".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.pipeline.argument_errors import argument_error
from icefloe.pipeline.arrays.nodes import parse_path
from icefloe.pipeline.files.staged_refs import ParsedFile, StagedRefs, load_staged
from icefloe.pipeline.report import Failure, JobFailedError
from icefloe.pipeline.run import REMEDY, JobRun, group_by_size, writing_repository
from icefloe.session import Session, contents
from icefloe.session.commit_policy import NO_POLICY, CommitPolicy
from icefloe.session.parallel_write import adopt_manifests, write_manifest, write_transaction_log
from icefloe.virtual.arrays import VirtualArray
from icefloe.virtual.contiguous import split_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from icefloe.model.ids import NodeId
    from icefloe.model.path import Path
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.pipeline.files.file_job import CombinedFiles
    from icefloe.session.connection import Connection
    from icefloe.session.parallel_write import AdoptedManifest, AdoptedManifests

REFS_PER_MANIFEST: Final = 250_000
"""Default per array: a manifest of a few megabytes, which a reader of one chunk fetches."""

_MANY_REFS: Final = 500_000
"""Above this number, an executor writes the transaction log instead of the driver."""

_MIN_OWN_REFS: Final = 4096
"""Arrays with fewer references share a manifest."""

Positions: TypeAlias = dict[str, dict[int, tuple[int, ...]]]
"""The first chunk of each file, by array and file number."""


def require_refs_per_manifest(count: int) -> None:
    """Raise `InvalidInputError` if the number of references per manifest is not positive."""
    if count < 1:
        raise argument_error(f"refs_per_manifest must be positive, not {count}")


def build_manifests(
    run: JobRun,
    session: Session,
    combined: CombinedFiles,
    group: str,
    dim: str,
    *,
    refs: int = REFS_PER_MANIFEST,
) -> CommitPolicy:
    """Build manifests on executors for a dataset whose markers are in a session."""
    arrays = combined.dataset.arrays
    paths = [
        path
        for path, array in arrays.items()
        if isinstance(array, VirtualArray) and path not in combined.mismatched
    ]
    targets, positions = take_markers(session, combined, group, paths)
    dims = {path: arrays[path].dimension_names for path in targets}
    axes = {path: names.index(dim) if dim in names else None for path, names in dims.items()}
    tasks = _plan_tasks(
        _group_slabs(positions, axes), combined.files, positions, refs * max(1, len(targets))
    )
    work = BuildManifests(
        session.connection, {path: target for path, (_, target) in targets.items()}, refs
    )
    run.enter_phase("writing references")
    built: dict[str, list[AdoptedManifest]] = {path: [] for path in targets}
    failures = []
    for task, outcome in zip(tasks, run.run_stage(tasks, work), strict=True):
        if outcome.error is not None:
            failures.append(Failure(f"a manifest of {len(task):,} files", outcome.error))
        for path, manifests in (outcome.result or {}).items():
            built[path] += [manifest.adopted for manifest in manifests]
            run.chunks += sum(manifest.chunks for manifest in manifests)
            run.bytes_written += sum(manifest.size_bytes for manifest in manifests)
    if failures:
        raise JobFailedError(run.name, failures, remedy=REMEDY)
    for path, (node_path, _) in targets.items():
        adopt_manifests(session, node_path, built[path])
    if sum(file.num_refs for file in combined.files) <= _MANY_REFS:
        return NO_POLICY

    def write_log(log: TransactionLog, adopted: AdoptedManifests) -> None:
        write = partial(_write_log, session.connection)
        (outcome,) = run.run_stage([(log, adopted)], write)
        if outcome.error is not None:
            failure = Failure("the transaction log", outcome.error)
            raise JobFailedError(run.name, [failure], remedy=REMEDY)

    return CommitPolicy(write_log=write_log)


def take_markers(
    session: Session, combined: CombinedFiles, group: str, paths: Iterable[str]
) -> tuple[dict[str, tuple[Path, TargetArray]], Positions]:
    """Remove the markers of arrays from a session; return the arrays and file positions."""
    targets: dict[str, tuple[Path, TargetArray]] = {}
    positions: Positions = {}
    contents.number_new_nodes(session)
    for path in paths:
        node_path = parse_path(f"{group.strip('/')}/{path}")
        node = contents.require_array(session, node_path)
        columns = contents.take_changed_chunks(session, node)
        if columns is None:
            continue  # the array does not grow
        if combined.dataset.arrays[path].chunk_shape is None:
            raise InvalidInputError(
                f"{path}: chunks of different shapes cannot be combined: parse with "
                f"drop_variables={[path]}",
                kind=ErrorKind.FILES_DISAGREE,
            )
        # The grid of the stored array: chunks of appended files may have been split to fit it.
        grid = json.loads(node.user_data)["chunk_grid"]["configuration"]
        targets[path] = node_path, TargetArray(node.id, tuple(grid["chunk_shape"]))
        # The location of a marker is the number of its file.
        numbers = np.array([int(name) for name in columns.payloads.locations])[
            columns.payloads.location_codes
        ]
        starts: dict[int, tuple[int, ...]] = {}
        # Rows are sorted: the first row of a file is its first chunk.
        for number, row in zip(numbers.tolist(), columns.coords.tolist(), strict=True):
            starts.setdefault(number, tuple(row))
        positions[path] = starts
    return targets, positions


@dataclass(frozen=True, slots=True)
class FilePlacement:
    """The position of a file's chunks: its first chunk in each array.

    ``staged`` is the object with its references, ``position`` the position of the file in it.
    ``documents`` is the parsed metadata of arrays whose chunks may have to be split.
    """

    staged: StagedRefs
    position: int
    documents: dict[str, dict[str, object]]
    starts: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class TargetArray:
    """An array of the repository that receives the references."""

    node_id: NodeId
    chunk_shape: tuple[int, ...]


class BuiltManifest(NamedTuple):
    """A manifest of one array, the number of its chunks and their bytes."""

    adopted: AdoptedManifest
    chunks: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BuildManifests:
    """Worker task: write the references of files to manifests.

    ``targets`` are arrays by their paths in the dataset; ``max_refs`` limits the references of an
    array per manifest.
    """

    connection: Connection
    targets: dict[str, TargetArray]
    max_refs: int

    def __call__(self, files: tuple[FilePlacement, ...]) -> dict[str, list[BuiltManifest]]:
        """Write manifests with all references of the files; return the manifests of each array."""
        arrays = {
            path: [*_split(refs, self.max_refs)] for path, refs in self.load_refs(files).items()
        }
        built: dict[str, list[BuiltManifest]] = {}
        for group in _group_small(arrays):
            for path, manifest in self._write(group).items():
                built.setdefault(path, []).append(manifest)
        return built

    def load_refs(self, files: Iterable[FilePlacement]) -> dict[str, ArrayManifest]:
        """Load the references of files, moved to the positions of the files."""
        fetch = lru_cache(2)(lambda staged: load_staged(self.connection, staged))
        parts: dict[str, list[ArrayManifest]] = {}
        for file in files:
            refs = fetch(file.staged)[file.position]
            for path, start in file.starts.items():
                shifted = self._shift_refs(path, refs[path], file, start)
                if len(shifted):
                    parts.setdefault(path, []).append(shifted)
        return {path: _join(pieces) for path, pieces in parts.items()}

    def _shift_refs(
        self, path: str, refs: ArrayManifest, file: FilePlacement, start: tuple[int, ...]
    ) -> ArrayManifest:
        document = file.documents.get(path)
        if document is not None:
            array = VirtualArray(dict(document), refs)
            for axis, length in enumerate(self.targets[path].chunk_shape):
                array = split_chunks(array, axis, length)
            refs = array.refs
        if not any(start):
            return refs
        return ArrayManifest(refs.coords + np.array(start, np.uint32), refs.payloads)

    def _write(self, arrays: dict[str, ArrayManifest]) -> dict[str, BuiltManifest]:
        by_id = {self.targets[path].node_id: path for path in arrays}
        with writing_repository():
            written = write_manifest(
                self.connection, {node_id: arrays[path] for node_id, path in by_id.items()}
            )
        return {
            path: BuiltManifest(written[node_id], len(refs), int(refs.payloads.length.sum()))
            for node_id, path in by_id.items()
            for refs in [arrays[path]]
        }


def _write_log(connection: Connection, task: tuple[TransactionLog, AdoptedManifests]) -> None:
    """Worker task: write the transaction log, with the chunks of all built manifests."""
    with writing_repository():
        write_transaction_log(connection, *task)


def _group_slabs(positions: Positions, axes: Mapping[str, int | None]) -> list[list[int]]:
    """Group files that start at the same position along the first dimension, in order.

    Manifests consist of whole slabs, so their extents never overlap.
    """
    first: dict[int, int] = {}
    for path, starts in positions.items():
        axis = axes[path]
        for number, start in starts.items():
            if axis is not None:
                first.setdefault(number, start[axis])
    for starts in positions.values():
        for number in starts:
            first.setdefault(number, min(first.values(), default=0))
    slabs: dict[int, list[int]] = {}
    for number, position in sorted(first.items(), key=lambda item: (item[1], item[0])):
        slabs.setdefault(position, []).append(number)
    return list(slabs.values())


def _plan_tasks(
    slabs: Sequence[Sequence[int]], files: Sequence[ParsedFile], positions: Positions, max_refs: int
) -> list[tuple[FilePlacement, ...]]:
    sizes = [sum(files[number].num_refs for number in slab) for slab in slabs]
    return [
        tuple(place_file(files[number], number, positions) for slab in group for number in slab)
        for group in group_by_size(slabs, sizes, max_refs)
    ]


def place_file(file: ParsedFile, number: int, positions: Positions) -> FilePlacement:
    """Place a file at its first chunk in each array."""
    staged, position = file.staged
    starts = {path: chunks[number] for path, chunks in positions.items() if number in chunks}
    documents = {
        path: dict(file.dataset.arrays[path].metadata)
        for path in starts
        if [codec["name"] for codec in file.dataset.arrays[path].metadata["codecs"]] == ["bytes"]
    }
    return FilePlacement(staged, position, documents, starts)


def _join(parts: list[ArrayManifest]) -> ArrayManifest:
    if len(parts) == 1:
        return parts[0]
    coords = np.concatenate([part.coords for part in parts])
    return ArrayManifest.of(coords, ChunkPayloads.concatenate([part.payloads for part in parts]))


def _split(refs: ArrayManifest, max_refs: int, axis: int = 0) -> Iterator[ArrayManifest]:
    """Split the references of an array into parts whose extents do not overlap.

    References are sorted, so those with equal leading coordinates are consecutive.
    """
    if len(refs) <= max_refs or axis == refs.coords.shape[1]:
        yield refs
        return
    _, starts = np.unique(refs.coords[:, axis], return_index=True)
    stops = [*starts[1:].tolist(), len(refs)]
    first = 0
    for start, stop in zip(starts.tolist(), stops, strict=True):
        if start > first and stop - first > max_refs:
            yield from _split(_slice_rows(refs, first, start), max_refs, axis + 1)
            first = start
    yield from _split(_slice_rows(refs, first, len(refs)), max_refs, axis + 1)


def _slice_rows(refs: ArrayManifest, start: int, stop: int) -> ArrayManifest:
    return ArrayManifest(refs.coords[start:stop], refs.payloads.select_rows(np.arange(start, stop)))


def _group_small(arrays: dict[str, list[ArrayManifest]]) -> Iterator[dict[str, ArrayManifest]]:
    """Group arrays that share a manifest: arrays with few references, one part of each."""
    for number in range(max(map(len, arrays.values()), default=0)):
        parts = {path: splits[number] for path, splits in arrays.items() if number < len(splits)}
        small = {path: refs for path, refs in parts.items() if len(refs) < _MIN_OWN_REFS}
        if small:
            yield small
        yield from ({path: refs} for path, refs in parts.items() if path not in small)
