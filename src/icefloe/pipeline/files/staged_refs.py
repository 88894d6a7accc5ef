"""Parsed files between two stages of a job: their references wait in an object of the repository.

The driver must know how files fit together before anybody knows the place of a chunk, but never
needs the references themselves. So whoever parses files writes their references away, and passes on
what is left: metadata, loaded coordinates, and one *marker* for each array, a reference to nothing
whose location is the file's number. Combining moves markers as it would have moved references, and
so tells where each file's chunks go.

The objects have names of chunks that nothing refers to: what a job leaves behind when it dies is
garbage that collection finds.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import zstandard

from icefloe.errors import ErrorKind, FormatError, StorageError
from icefloe.format.keys import chunk_key
from icefloe.model.chunk_payload import ChunkRef, VirtualChunkRef
from icefloe.model.ids import ChunkId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.pipeline.files.static_arrays import StaticDigests
from icefloe.pipeline.report import Failure
from icefloe.spark.engine.tasks import format_error
from icefloe.virtual.dataset import VirtualArray, VirtualDataset
from icefloe.virtual.parsing import parse_at
from icefloe.virtual.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icefloe.session.connection import Connection
    from icefloe.virtual.dataset import AnyArray

_MARKED_BYTES: Final = 2**48
"""Divides into as many pieces as an array in one piece may be cut into."""


class StagedRefs(NamedTuple):
    """An object with the references of some files, and what its bytes are known by.

    Whoever can write to the storage could put another one in its place, and what is unpickled can
    run anything: the digest goes from worker to worker by way of the driver, not of the storage.
    """

    ref: ChunkRef
    digest: bytes


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """A file whose references wait elsewhere.

    Parameters
    ----------
    dataset
        Without references.
    staged
        The object that has them, and the file's place in it.
    num_refs
        How many there are.
    unlike
        The metadata of arrays as the file has them, where the dataset shows them in other chunks.
    digests
        What the values of arrays that lie along no combined dimension are known by.
    """

    dataset: VirtualDataset
    staged: tuple[StagedRefs, int]
    num_refs: int
    mismatched: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    digests: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The file."""
        return self.dataset.shown

    def with_markers(self, number: int) -> VirtualDataset:
        """Return the dataset with a marker in each array, that says which file it is."""
        return _with_refs(self.dataset, lambda array: _marker(array.shape, number))

    def marker(self, path: str, number: int) -> ArrayManifest:
        """Return the marker of one array."""
        return _marker(self.dataset.arrays[path].shape, number)


class FileInterner:
    """Keeps once what many files have in common: all but times, in most archives.

    Ten thousand files with the same coordinates and metadata then take little more memory than
    one, in the answers of workers as in the driver.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def add(self, file: ParsedFile) -> ParsedFile:
        """Return a file that shares what is equal with those before it."""
        dataset = file.dataset
        arrays = {path: self._array(array) for path, array in dataset.arrays.items()}
        groups = {path: self._intern(found, found) for path, found in dataset.groups.items()}
        return replace(file, dataset=replace(dataset, arrays=arrays, groups=groups))

    def _array(self, array: AnyArray) -> AnyArray:
        # References are elsewhere: an array without them is its metadata.
        key = array.metadata if isinstance(array, VirtualArray) else (array.metadata, array.values)
        shared: AnyArray = self._intern(key, array)
        return shared

    def _intern(self, key: Any, value: Any) -> Any:
        return self._known.setdefault(pickle.dumps(key, protocol=5), value)


@dataclass(frozen=True, slots=True)
class ParseFiles:
    """What a worker does with some files: parse them, and put their references away.

    Parameters
    ----------
    connection
        To the repository, with what is needed to reach the files.
    options
        Passed on to `parse`.
    dims
        The dimensions along which files are combined.
    """

    connection: Connection
    options: Mapping[str, Any]
    dims: frozenset[str]

    def __call__(self, urls: tuple[str, ...]) -> list[ParsedFile | Failure]:
        """Parse files; one that cannot be parsed is told of, and does not keep the others."""
        sources = Sources.of(self.connection.virtual)
        static = StaticDigests(sources, self.dims)
        found: list[tuple[VirtualDataset, dict[str, bytes]] | Failure] = []
        for url in urls:
            try:
                parsed = self._parse(url, sources)
                found.append((parsed, static.of(parsed, url)))
            except Exception as error:  # noqa: BLE001 - told, with all others
                found.append(Failure(url, format_error(error).removeprefix(f"{url}: ")))
        datasets = [one[0] for one in found if not isinstance(one, Failure)]
        if not datasets:
            return [one for one in found if isinstance(one, Failure)]
        staged = self._stage([_refs(one) for one in datasets])
        numbers = iter(range(len(datasets)))
        alike = FileInterner()
        return [
            one
            if isinstance(one, Failure)
            else alike.add(
                ParsedFile(
                    _with_refs(one[0], lambda array: _empty_refs(len(array.shape))),
                    (staged, next(numbers)),
                    one[0].num_refs,
                    digests=one[1],
                )
            )
            for one in found
        ]

    def _parse(self, url: str, sources: Sources) -> VirtualDataset:
        dataset = parse_at(url, sources, **self.options)
        for refs in _refs(dataset).values():
            held = self.connection.virtual.validate_many(refs.payloads.locations)
            if not held.all():
                bad = int(np.flatnonzero(~held)[0])
                self.connection.virtual.validate(refs.payloads.locations[bad])
        return dataset

    def _stage(self, files: list[dict[str, ArrayManifest]]) -> StagedRefs:
        data = zstandard.compress(pickle.dumps(files, protocol=5), 1)
        chunk_id = ChunkId.random()
        self.connection.assets.write_chunk(chunk_id, data)
        return StagedRefs(ChunkRef(chunk_id, 0, len(data)), _digest(data))


def load_staged(connection: Connection, staged: StagedRefs) -> list[dict[str, ArrayManifest]]:
    """Return the references of the files that one worker parsed, by array.

    Raises
    ------
    FormatError
        If the object is not the one that was written.
    """
    data = bytes(connection.assets.fetch_chunk(staged.ref))
    if not hmac.compare_digest(_digest(data), staged.digest):
        raise FormatError(
            "it is not what this job wrote there: see who else writes to the repository's storage, "
            "and start the job again",
            file=chunk_key(staged.ref.id),
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    # These are the bytes that a worker of this job pickled.
    found: list[dict[str, ArrayManifest]] = pickle.loads(  # noqa: S301
        zstandard.decompress(data)
    )
    return found


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def delete_staged(connection: Connection, files: Iterable[ParsedFile]) -> None:
    """Delete what only this job knew of; what cannot be deleted now, garbage collection finds."""
    ids = dict.fromkeys(file.staged[0].ref.id for file in files)
    with suppress(StorageError):
        connection.storage.delete_many([chunk_key(chunk_id) for chunk_id in ids])


def file_number(marker: str) -> int:
    """Tell which file a marker stands for, by its location."""
    return int(marker)


def _marker(shape: tuple[int, ...], number: int) -> ArrayManifest:
    ndim = len(shape)
    if 0 in shape:
        return _empty_refs(ndim)  # it has no chunk to be a marker
    ref = VirtualChunkRef(str(number), 0, _MARKED_BYTES)
    return ArrayManifest(np.zeros((1, ndim), np.uint32), ChunkPayloads.of([ref]))


def _empty_refs(ndim: int) -> ArrayManifest:
    return ArrayManifest(np.zeros((0, ndim), np.uint32), ChunkPayloads.of([]))


def _refs(dataset: VirtualDataset) -> dict[str, ArrayManifest]:
    return {
        path: array.refs
        for path, array in dataset.arrays.items()
        if isinstance(array, VirtualArray)
    }


def _with_refs(dataset: VirtualDataset, refs: Any) -> VirtualDataset:
    arrays = {
        path: VirtualArray(array.metadata, refs(array))
        if isinstance(array, VirtualArray)
        else array
        for path, array in dataset.arrays.items()
    }
    return replace(dataset, arrays=arrays)
