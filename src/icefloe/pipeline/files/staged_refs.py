"""References of parsed files, staged in repository objects between two stages of a job.

The driver must combine files before the position of any chunk is known, but never needs the
references themselves. Workers that parse files write their references to an object, and return
the rest: metadata, loaded coordinates and one *marker* per array, a virtual reference whose
location is the number of the file. Combining moves markers like references, and so yields the
position of each file's chunks.

The objects are named like chunks and never referenced, so garbage collection deletes those that a
killed job leaves behind.
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
from icefloe.model.chunk_payload import ChunkRef, VirtualChunkRef
from icefloe.model.ids import ChunkId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.pipeline.files.source_versions import SourceVersion, fetch_version
from icefloe.pipeline.files.static_arrays import StaticDigests
from icefloe.pipeline.report import Failure
from icefloe.pipeline.run import writing_repository
from icefloe.spark.engine.tasks import format_error
from icefloe.virtual.arrays import AnyArray, VirtualArray
from icefloe.virtual.parsing import parse_at
from icefloe.virtual.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icefloe.session.connection import Connection
    from icefloe.virtual.dataset import VirtualDataset

_MARKED_BYTES: Final = 2**48
"""Length of a marker; divisible by any number of chunks that an array is split into."""


class StagedRefs(NamedTuple):
    """An object with the references of some files, and the digest of its bytes.

    Unpickling runs code, and other writers of the storage could replace the object. The digest
    is passed from worker to worker by the driver, not by the storage.
    """

    ref: ChunkRef
    digest: bytes


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """A parsed file: its dataset without references, which are staged.

    ``staged`` is the object with the references, and the position of the file in it. ``mismatched``
    is the original metadata of arrays that ``dataset`` presents with other chunks; ``digests`` are
    the digests of static arrays, ``dropped`` the dropped variables that the file has. ``version``
    is the version that was parsed.
    """

    dataset: VirtualDataset
    staged: tuple[StagedRefs, int]
    num_refs: int
    mismatched: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    digests: Mapping[str, bytes] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    version: SourceVersion | None = None

    @property
    def url(self) -> str:
        """The URL of the file."""
        return self.dataset.label

    def with_markers(self, number: int) -> VirtualDataset:
        """Return the dataset with a marker in each array, whose location is ``number``."""
        return _with_refs(self.dataset, lambda array: _make_marker(array.shape, number))

    def make_marker(self, path: str, number: int) -> ArrayManifest:
        """Make the marker of one array."""
        return _make_marker(self.dataset.arrays[path].shape, number)


class FileInterner:
    """Shares equal metadata and values between files, to save memory.

    Ten thousand files with equal coordinates and metadata take little more memory than one, in the
    results of workers and in the driver.
    """

    def __init__(self) -> None:
        self._values: dict[bytes, Any] = {}

    def add(self, file: ParsedFile) -> ParsedFile:
        """Return the file, sharing parts with earlier files."""
        dataset = file.dataset
        arrays = {path: self._intern_array(array) for path, array in dataset.arrays.items()}
        groups = {path: self._intern(group, group) for path, group in dataset.groups.items()}
        return replace(file, dataset=replace(dataset, arrays=arrays, groups=groups))

    def _intern_array(self, array: AnyArray) -> AnyArray:
        # References are staged: the metadata identifies the array.
        key = array.metadata if isinstance(array, VirtualArray) else (array.metadata, array.values)
        shared: AnyArray = self._intern(key, array)
        return shared

    def _intern(self, key: Any, value: Any) -> Any:
        return self._values.setdefault(pickle.dumps(key, protocol=5), value)


class _Parsed(NamedTuple):
    dataset: VirtualDataset
    digests: dict[str, bytes]
    dropped: frozenset[str]
    version: SourceVersion | None


@dataclass(frozen=True, slots=True)
class ParseFiles:
    """Worker task: parse files, to be combined along ``dims``, and stage their references."""

    connection: Connection
    options: Mapping[str, Any]
    dims: frozenset[str]

    def __call__(self, urls: tuple[str, ...]) -> list[ParsedFile | Failure]:
        """Parse files; a file that fails becomes a `Failure`, without affecting the others."""
        sources = Sources.of(self.connection.virtual)
        static = StaticDigests(sources, self.dims)
        results: list[_Parsed | Failure] = []
        for url in urls:
            dropped: set[str] = set()
            try:
                parsed = self._parse(url, sources, dropped)
                version = _get_version(parsed, sources)
                digests = static.compute(parsed, url)
                results.append(_Parsed(parsed, digests, frozenset(dropped), version))
            except Exception as error:  # noqa: BLE001 - reported with all others
                results.append(Failure(url, format_error(error).removeprefix(f"{url}: ")))
        datasets = [result.dataset for result in results if not isinstance(result, Failure)]
        if not datasets:
            return [result for result in results if isinstance(result, Failure)]
        staged = self._stage([_get_refs(dataset) for dataset in datasets])
        numbers = iter(range(len(datasets)))
        interner = FileInterner()
        return [
            result
            if isinstance(result, Failure)
            else interner.add(
                ParsedFile(
                    _with_refs(result.dataset, lambda array: _make_empty_refs(len(array.shape))),
                    (staged, next(numbers)),
                    result.dataset.num_refs,
                    digests=result.digests,
                    dropped=result.dropped,
                    version=result.version,
                )
            )
            for result in results
        ]

    def _parse(self, url: str, sources: Sources, dropped: set[str]) -> VirtualDataset:
        dataset = parse_at(url, sources, dropped, **self.options)
        for refs in _get_refs(dataset).values():
            is_covered = self.connection.virtual.validate_many(refs.payloads.locations)
            if not is_covered.all():
                first = int(np.flatnonzero(~is_covered)[0])
                self.connection.virtual.validate(refs.payloads.locations[first])
        return dataset

    def _stage(self, files: list[dict[str, ArrayManifest]]) -> StagedRefs:
        data = zstandard.compress(pickle.dumps(files, protocol=5), 1)
        chunk_id = self.connection.generation.make_id(ChunkId)
        with writing_repository():
            self.connection.assets.write_chunk(chunk_id, data)
        return StagedRefs(ChunkRef(chunk_id, 0, len(data)), _compute_digest(data))


def load_staged(connection: Connection, staged: StagedRefs) -> list[dict[str, ArrayManifest]]:
    """Return the references of the files of one worker, by array.

    Raises `FormatError` if the object was replaced.
    """
    data = bytes(connection.assets.chunks.fetch(staged.ref))
    if not hmac.compare_digest(_compute_digest(data), staged.digest):
        raise FormatError(
            "the object was replaced after this job wrote it: check which other programs write to "
            "the storage, and run the job again",
            file=connection.generation.layout.chunks.format_key(staged.ref.id),
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    # Safe: the digest proves that a worker of this job pickled these bytes.
    files: list[dict[str, ArrayManifest]] = pickle.loads(  # noqa: S301
        zstandard.decompress(data)
    )
    return files


def _get_version(dataset: VirtualDataset, sources: Sources) -> SourceVersion | None:
    """Return the version of a parsed file; parsing fetched it, except for a directory."""
    (file,) = dataset.sources
    if file.size_bytes is not None:
        return SourceVersion.of_file(file)
    return fetch_version(sources.open(file.url))


def _compute_digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def delete_staged(connection: Connection, files: Iterable[ParsedFile]) -> None:
    """Delete staged objects; if this fails, garbage collection deletes them."""
    ids = dict.fromkeys(file.staged[0].ref.id for file in files)
    with suppress(StorageError):
        chunks = connection.generation.layout.chunks
        connection.storage.delete_many([chunks.format_key(chunk_id) for chunk_id in ids])


def _make_marker(shape: tuple[int, ...], number: int) -> ArrayManifest:
    ndim = len(shape)
    if 0 in shape:
        return _make_empty_refs(ndim)  # no chunk to mark
    ref = VirtualChunkRef(str(number), 0, _MARKED_BYTES)
    return ArrayManifest(np.zeros((1, ndim), np.uint32), ChunkPayloads.of([ref]))


def _make_empty_refs(ndim: int) -> ArrayManifest:
    return ArrayManifest(np.zeros((0, ndim), np.uint32), ChunkPayloads.of([]))


def _get_refs(dataset: VirtualDataset) -> dict[str, ArrayManifest]:
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
