"""Manifests that executors build: references go from staged objects into manifest files.

The driver says which files go into which manifests, and where their chunks are; it gets back names,
sizes and extents (`transaction.adopted`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.pipeline.files.staged_refs import load_staged
from icefloe.session.parallel_write import write_manifest, write_transaction_log
from icefloe.virtual.arrays import VirtualArray
from icefloe.virtual.contiguous import split_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.model.ids import NodeId
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.pipeline.files.staged_refs import StagedRefs
    from icefloe.session.connection import Connection
    from icefloe.session.parallel_write import Adopted, AdoptedManifest

_FEW: Final = 4096
"""Arrays with fewer references than this share a manifest file."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """One file's part in a manifest.

    Parameters
    ----------
    staged, position
        The object that has its references, and its place in there.
    documents
        The metadata of its arrays as they were parsed, where they are to be cut.
    starts
        The first chunk of each array that it has a part of.
    """

    staged: StagedRefs
    position: int
    documents: dict[str, dict[str, object]]
    starts: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class TargetArray:
    """An array of the repository that references go to."""

    node_id: NodeId
    chunk_shape: tuple[int, ...]


class Built(NamedTuple):
    """A manifest of one array, how many chunks it has, and how many bytes those."""

    manifest: AdoptedManifest
    chunks: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BuildManifests:
    """What a worker does with some files: bring their references into manifests.

    Parameters
    ----------
    connection
        To the repository.
    targets
        The arrays, by their paths in the dataset.
    max_refs
        How many references of an array go into one manifest at most.
    """

    connection: Connection
    targets: dict[str, TargetArray]
    max_refs: int

    def __call__(self, files: tuple[FilePlace, ...]) -> dict[str, list[Built]]:
        """Write manifests with all references of some files; returns those of each array."""
        fetch = lru_cache(2)(lambda staged: load_staged(self.connection, staged))
        parts: dict[str, list[ArrayManifest]] = {}
        for file in files:
            refs = fetch(file.staged)[file.position]
            for path, start in file.starts.items():
                moved = self._moved(path, refs[path], file, start)
                if len(moved):
                    parts.setdefault(path, []).append(moved)
        arrays = {path: [*_cut(_joined(found), self.max_refs)] for path, found in parts.items()}
        built: dict[str, list[Built]] = {}
        for group in _groups(arrays):
            for path, one in self._write(group).items():
                built.setdefault(path, []).append(one)
        return built

    def _moved(
        self, path: str, refs: ArrayManifest, file: FilePlace, start: tuple[int, ...]
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

    def _write(self, arrays: dict[str, ArrayManifest]) -> dict[str, Built]:
        by_id = {self.targets[path].node_id: path for path in arrays}
        written = write_manifest(
            self.connection, {node_id: arrays[path] for node_id, path in by_id.items()}
        )
        return {
            path: Built(written[node_id], len(refs), int(refs.payloads.length.sum()))
            for node_id, path in by_id.items()
            for refs in [arrays[path]]
        }


@dataclass(frozen=True, slots=True)
class WriteLog:
    """What a worker does at the end: write the transaction log, which names every chunk."""

    connection: Connection

    def __call__(self, task: tuple[TransactionLog, Adopted]) -> None:
        """Write the log of a commit, with the chunks of all manifests that were built."""
        log, adopted = task
        write_transaction_log(self.connection, log, adopted)


def _joined(parts: list[ArrayManifest]) -> ArrayManifest:
    if len(parts) == 1:
        return parts[0]
    coords = np.concatenate([part.coords for part in parts])
    return ArrayManifest.of(coords, ChunkPayloads.concatenate([part.payloads for part in parts]))


def _cut(refs: ArrayManifest, max_refs: int, axis: int = 0) -> Iterator[ArrayManifest]:
    """Cut the references of an array into pieces whose boxes do not overlap.

    They are sorted: all that are at one place along the first axes follow each other.
    """
    if len(refs) <= max_refs or axis == refs.coords.shape[1]:
        yield refs
        return
    _, starts = np.unique(refs.coords[:, axis], return_index=True)
    stops = [*starts[1:].tolist(), len(refs)]
    first = 0
    for start, stop in zip(starts.tolist(), stops, strict=True):
        if start > first and stop - first > max_refs:
            yield from _cut(_rows(refs, first, start), max_refs, axis + 1)
            first = start
    yield from _cut(_rows(refs, first, len(refs)), max_refs, axis + 1)


def _rows(refs: ArrayManifest, start: int, stop: int) -> ArrayManifest:
    return ArrayManifest(refs.coords[start:stop], refs.payloads.rows(np.arange(start, stop)))


def _groups(arrays: dict[str, list[ArrayManifest]]) -> Iterator[dict[str, ArrayManifest]]:
    """Say which arrays share a manifest file: those with few references, and one piece of each."""
    for number in range(max(map(len, arrays.values()), default=0)):
        pieces = {path: found[number] for path, found in arrays.items() if number < len(found)}
        few = {path: refs for path, refs in pieces.items() if len(refs) < _FEW}
        if few:
            yield few
        yield from ({path: refs} for path, refs in pieces.items() if path not in few)
