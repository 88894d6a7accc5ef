"""Copies the chunk files that manifests refer to, each once.

A file is copied on the server or linked if both storages support it; otherwise its bytes pass this
process. Every copy appears at once and complete, so a file that exists in the target need not be
copied again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from icefloe.errors import FormatError, IcefloeError, PreconditionFailedError
from icefloe.maintenance.conversion.object_ids import map_id_rows
from icefloe.maintenance.limits import Budget, map_bounded
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.id_columns import format_names, parse_names, to_sort_keys
from icefloe.storage.interface import Create

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.format.generation import Generation
    from icefloe.model.manifest import Manifest
    from icefloe.storage.interface import Storage

_WORKERS = 32
_MAX_BATCH_FILES = 2000


@dataclass(frozen=True, slots=True, eq=False)
class ChunkFiles:
    """Distinct chunk files as columns, sorted by id.

    ``sizes`` are the ends of the last byte ranges that references have: a file has at least that
    size.
    """

    ids: NDArray[np.uint8]
    sizes: NDArray[np.uint64]

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> ChunkFiles:
        """Return the chunk files to which a manifest refers."""
        payloads = manifest.payloads
        rows = np.flatnonzero(payloads.kind == ChunkKind.NATIVE)
        ends = payloads.offset[rows] + payloads.length[rows]
        return cls.merge([cls(payloads.chunk_id[rows], ends)])

    @classmethod
    def merge(cls, parts: Sequence[ChunkFiles], id_size: int | None = None) -> ChunkFiles:
        """Merge files with the same id; ``id_size`` is the size of ids if there are no parts."""
        filled = [part for part in parts if len(part)]
        if not filled:
            return cls(np.zeros((0, id_size or 12), np.uint8), np.zeros(0, np.uint64))
        ids = np.concatenate([part.ids for part in filled])
        sizes = np.concatenate([part.sizes for part in filled])
        keys = to_sort_keys(ids)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        is_first = np.ones(len(keys), bool)
        is_first[1:] = keys[1:] != keys[:-1]
        starts = np.flatnonzero(is_first)
        return cls(ids[order][starts], np.maximum.reduceat(sizes[order], starts))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_bytes(self) -> int:
        """The total of ``sizes``."""
        return int(self.sizes.sum())

    def select_rows(self, rows: NDArray[np.int64] | slice) -> ChunkFiles:
        """Return some files."""
        return ChunkFiles(self.ids[rows], self.sizes[rows])

    def split(self, max_bytes: int) -> list[ChunkFiles]:
        """Split into batches of at most a size; a larger file is a batch by itself."""
        batches = []
        start, total = 0, 0
        for row, size in enumerate(self.sizes.tolist()):
            if row > start and (total + size > max_bytes or row - start >= _MAX_BATCH_FILES):
                batches.append(self.select_rows(slice(start, row)))
                start, total = row, 0
            total += size
        return [*batches, self.select_rows(slice(start, len(self)))] if len(self) else []


class CopyResult(NamedTuple):
    """The number of files that a batch copied, the bytes that passed this process, and errors."""

    num_files: int
    num_bytes: int
    failures: tuple[str, ...]


CopyBatch: TypeAlias = Callable[[ChunkFiles], CopyResult]


@dataclass(frozen=True, slots=True)
class ChunkCopier:
    """Copies batches of chunk files; pickles for Spark tasks."""

    source: Storage
    target: Storage
    source_generation: Generation
    target_generation: Generation
    max_bytes: int

    def find_missing(self, files: ChunkFiles) -> ChunkFiles:
        """Return the files that the target does not have; lists its chunks once.

        Files of the target that are too short, which no copy leaves behind, are deleted.
        """
        present = self._list_present()
        if not len(present) or not len(files):
            return files
        keys = to_sort_keys(present.ids)
        wanted = to_sort_keys(map_id_rows(files.ids, self.target_generation.id_size))
        positions = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        is_found = keys[positions] == wanted
        is_short = is_found & (present.sizes[positions] < files.sizes)
        if is_short.any():
            names = format_names(present.ids[positions[is_short]])
            kind = self.target_generation.layout.chunks
            self.target.delete_many([kind.format_key(name) for name in names])
        return files.select_rows(np.flatnonzero(~is_found | is_short))

    def _list_present(self) -> ChunkFiles:
        kind = self.target_generation.layout.chunks
        names, sizes = [], []
        for info in self.target.list(kind.prefix):
            names.append(kind.parse_name(info.key))
            sizes.append(info.size_bytes)
        indices, ids = parse_names(names, self.target_generation.id_size)
        return ChunkFiles.merge([ChunkFiles(ids, np.array(sizes, np.uint64)[indices])])

    def copy(self, batch: ChunkFiles) -> CopyResult:
        """Copy the files of a batch; errors are returned, so that all can be reported."""
        names = format_names(batch.ids)
        targets = format_names(map_id_rows(batch.ids, self.target_generation.id_size))
        sizes = batch.sizes.tolist()
        is_local = self.source.is_low_latency and self.target.is_low_latency
        num_bytes, failures = 0, []
        for result in map_bounded(
            self._copy_file,
            list(zip(names, targets, sizes, strict=True)),
            workers=1 if is_local else _WORKERS,
            costs=lambda item: (item[2],),
            budgets=(Budget(self.max_bytes),),
        ):
            if isinstance(result, str):
                failures.append(result)
            else:
                num_bytes += result
        return CopyResult(len(batch) - len(failures), num_bytes, tuple(failures))

    def _copy_file(self, item: tuple[str, str, int]) -> int | str:
        name, target_name, min_size = item
        source_key = self.source_generation.layout.chunks.format_key(name)
        key = self.target_generation.layout.chunks.format_key(target_name)
        try:
            if self.target.copy_from(self.source, source_key, key):
                return 0
            data = self.source.get(source_key).data
            if len(data) < min_size:
                raise FormatError(
                    f"has {len(data)} bytes, but references need {min_size}", file=source_key
                )
            try:
                self.target.put(key, data, Create())
            except PreconditionFailedError:
                if self.target.head(key).size_bytes != len(data):
                    self.target.put(key, data)
        except IcefloeError as error:
            return error.message
        return len(data)
