"""Manifests: columnar chunk references of arrays.

The columns are numpy arrays in the memory layout of Arrow, so that Arrow can wrap them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from icefloe.errors import InternalError
from icefloe.model.chunk_index_columns import ChunkIndexColumns, find_row, find_sort_order
from icefloe.model.chunk_payload import (
    ChunkKind,
    ChunkPayload,
    ChunkRef,
    ETag,
    InlineChunk,
    LastModified,
    VirtualChunkRef,
)
from icefloe.model.columns import freeze_columns, make_constant, reduce_columns, to_offsets
from icefloe.model.ids import ChunkId, ManifestId, NodeId
from icefloe.model.strings import EMPTY, Strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

Payload = TypeVar("Payload", ChunkRef, VirtualChunkRef, InlineChunk)

NO_CODE = -1
"""The code of a missing location or entity tag."""

ROW_COLUMNS = (
    "kind",
    "offset",
    "length",
    "chunk_id",
    "location_codes",
    "etag_codes",
    "last_modified",
)
"""The columns of `ChunkPayloads` with one entry per row."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPayloads:
    """Chunk references as columns, one row per chunk.

    ``kind`` is a `ChunkKind`. ``offset`` and ``length`` are a byte range of the chunk file, of the
    virtual file, or of ``inline``, the concatenated inline chunks. ``chunk_id`` has a row of bytes
    per chunk, zeros in rows that are not native; its width is the size of ids in the generation.
    ``location_codes`` and ``etag_codes`` are indices into ``locations`` and ``etags``, or
    `NO_CODE`; ``last_modified`` is in seconds since 1970, or 0.
    """

    kind: NDArray[np.uint8]
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    chunk_id: NDArray[np.uint8]
    location_codes: NDArray[np.int32]
    locations: Strings
    etag_codes: NDArray[np.int32]
    etags: Strings
    last_modified: NDArray[np.uint32]
    inline: NDArray[np.uint8]

    def __post_init__(self) -> None:
        freeze_columns(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_columns(self)

    @classmethod
    def make_virtual(
        cls,
        location_codes: NDArray[np.int32],
        locations: Strings,
        offset: NDArray[np.uint64],
        length: NDArray[np.uint64],
        *,
        last_modified: NDArray[np.uint32] | None = None,
    ) -> ChunkPayloads:
        """Make virtual references from columns."""
        num_rows = len(location_codes)
        return cls(
            kind=make_constant(ChunkKind.VIRTUAL, num_rows, np.uint8),
            offset=offset,
            length=length,
            chunk_id=np.broadcast_to(np.zeros(ChunkId.SIZE, np.uint8), (num_rows, ChunkId.SIZE)),
            location_codes=location_codes,
            locations=locations,
            etag_codes=make_constant(NO_CODE, num_rows, np.int32),
            etags=EMPTY,
            last_modified=make_constant(0, num_rows, np.uint32)
            if last_modified is None
            else last_modified,
            inline=np.zeros(0, np.uint8),
        )

    @classmethod
    def of(cls, payloads: Sequence[ChunkPayload]) -> ChunkPayloads:
        """Build columns from single references."""
        # By kind, so that most of the work is done in C.
        kinds = set(map(type, payloads))
        native_rows, native = _select_kind(payloads, ChunkRef, kinds)
        virtual_rows, virtual = _select_kind(payloads, VirtualChunkRef, kinds)
        inline_rows, inline_chunks = _select_kind(payloads, InlineChunk, kinds)
        id_size = len(native[0].id.raw) if native else ChunkId.SIZE
        columns = allocate_columns(len(payloads), id_size)
        kind, offset, length, chunk_id, location_codes, etag_codes, last_modified = columns.values()
        locations: dict[str, int] = {}
        etags: dict[str, int] = {}
        if native:
            kind[native_rows] = ChunkKind.NATIVE
            raw = b"".join(map(attrgetter("id.raw"), native))
            chunk_id[native_rows] = np.frombuffer(raw, np.uint8).reshape(-1, id_size)
            offset[native_rows] = _to_u64(map(_get_offset, native), len(native))
            length[native_rows] = _to_u64(map(_get_length, native), len(native))
        if virtual:
            kind[virtual_rows] = ChunkKind.VIRTUAL
            offset[virtual_rows] = _to_u64(map(_get_offset, virtual), len(virtual))
            length[virtual_rows] = _to_u64(map(_get_length, virtual), len(virtual))
            location_codes[virtual_rows] = [
                locations.setdefault(payload.location, len(locations)) for payload in virtual
            ]
            rows = np.arange(len(payloads))[virtual_rows].tolist()
            for row, payload in zip(rows, virtual, strict=True):
                match payload.checksum:
                    case ETag(value):
                        etag_codes[row] = etags.setdefault(value, len(etags))
                    case LastModified(seconds):
                        last_modified[row] = seconds
        inline = list(map(attrgetter("data"), inline_chunks))
        if inline:
            kind[inline_rows] = ChunkKind.INLINE
            sizes = _to_u64(map(len, inline), len(inline))
            length[inline_rows] = sizes
            offset[inline_rows] = to_offsets(sizes)[:-1]
        return cls(
            **columns,
            locations=Strings.of(list(locations)),
            etags=Strings.of(list(etags)),
            inline=np.frombuffer(b"".join(inline), np.uint8),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[ChunkPayloads]) -> ChunkPayloads:
        """Concatenate references, merging their string tables."""
        if len(parts) < 2:
            return parts[0] if parts else cls.of([])
        parts = match_id_sizes(parts)
        location_codes, locations = merge_codes(
            [(part.location_codes, part.locations) for part in parts]
        )
        etag_codes, etags = merge_codes([(part.etag_codes, part.etags) for part in parts])
        inline_starts = np.cumsum([0, *(len(part.inline) for part in parts)])
        offsets = [
            np.where(part.kind == ChunkKind.INLINE, part.offset + np.uint64(start), part.offset)
            for part, start in zip(parts, inline_starts[:-1], strict=True)
        ]
        return cls(
            offset=np.concatenate(offsets),
            location_codes=location_codes,
            locations=locations,
            etag_codes=etag_codes,
            etags=etags,
            **{
                name: np.concatenate([getattr(part, name) for part in parts])
                for name in ("kind", "length", "chunk_id", "last_modified", "inline")
            },
        )

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, row: int) -> ChunkPayload:
        # Called for every chunk read: `item` is twice as fast as indexing.
        offset, length = self.offset.item(row), self.length.item(row)
        kind = self.kind.item(row)
        if kind == ChunkKind.NATIVE:
            return ChunkRef(ChunkId(self.chunk_id[row].tobytes()), offset, length)
        if kind == ChunkKind.INLINE:
            return InlineChunk(self.inline[offset : offset + length].tobytes())
        location = self.locations[self.location_codes.item(row)]
        return VirtualChunkRef(location, offset, length, self._get_checksum(row))

    def __iter__(self) -> Iterator[ChunkPayload]:
        return (self[row] for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChunkPayloads):
            return NotImplemented
        return (
            all(
                np.array_equal(getattr(self, name), getattr(other, name))
                for name in ("kind", "length", "last_modified")
            )
            and self._has_same_ids(other)
            and _has_same_strings(
                (self.location_codes, self.locations), (other.location_codes, other.locations)
            )
            and _has_same_strings((self.etag_codes, self.etags), (other.etag_codes, other.etags))
            and self._has_same_offsets(other)
        )

    def __hash__(self) -> int:
        return hash((self.kind.tobytes(), self.length.tobytes()))

    def __repr__(self) -> str:
        counts = [f"{int((self.kind == kind).sum())} {kind.name.lower()}" for kind in ChunkKind]
        return f"<{len(self)} chunk payloads: {', '.join(counts)}>"

    def select_rows(self, selection: slice | NDArray[np.int64]) -> ChunkPayloads:
        """Return some rows; the result shares the string tables and inline bytes of this value."""
        return replace(self, **{name: getattr(self, name)[selection] for name in ROW_COLUMNS})

    def _get_checksum(self, row: int) -> ETag | LastModified | None:
        if self.etag_codes[row] != NO_CODE:
            return ETag(self.etags[self.etag_codes[row]])
        if self.last_modified[row]:
            return LastModified(int(self.last_modified[row]))
        return None

    def _has_same_ids(self, other: ChunkPayloads) -> bool:
        is_native = self.kind == ChunkKind.NATIVE
        return np.array_equal(self.chunk_id[is_native], other.chunk_id[is_native]) or (
            not is_native.any()
        )

    def _has_same_offsets(self, other: ChunkPayloads) -> bool:
        is_inline = self.kind == ChunkKind.INLINE
        if not np.array_equal(self.offset[~is_inline], other.offset[~is_inline]):
            return False
        return all(self[row] == other[row] for row in np.flatnonzero(is_inline).tolist())


def match_id_sizes(parts: Sequence[ChunkPayloads]) -> Sequence[ChunkPayloads]:
    """Give all parts a ``chunk_id`` of the same width, so that their rows can be mixed.

    Columns without native chunks do not know the size of the ids of their repository.
    """
    size = max(part.chunk_id.shape[1] for part in parts)
    if all(part.chunk_id.shape[1] == size for part in parts):
        return parts
    return [_widen_ids(part, size) for part in parts]


def _widen_ids(payloads: ChunkPayloads, size: int) -> ChunkPayloads:
    if payloads.chunk_id.shape[1] == size:
        return payloads
    if (payloads.kind == ChunkKind.NATIVE).any():
        raise InternalError("chunk references of repositories with ids of different sizes")
    zeros = np.broadcast_to(np.zeros(size, np.uint8), (len(payloads), size))
    return replace(payloads, chunk_id=zeros)


def allocate_columns(num_rows: int, id_size: int = ChunkId.SIZE) -> dict[str, Any]:
    """Allocate the `ROW_COLUMNS` to be filled; the initial kind 0 is not a `ChunkKind`."""
    return {
        "kind": np.zeros(num_rows, np.uint8),
        "offset": np.zeros(num_rows, np.uint64),
        "length": np.zeros(num_rows, np.uint64),
        "chunk_id": np.zeros((num_rows, id_size), np.uint8),
        "location_codes": np.full(num_rows, NO_CODE, np.int32),
        "etag_codes": np.full(num_rows, NO_CODE, np.int32),
        "last_modified": np.zeros(num_rows, np.uint32),
    }


@dataclass(frozen=True, slots=True, eq=False)
class ArrayManifest:
    """The chunk references of one array: ``payloads[i]`` is the chunk at ``coords[i]``."""

    coords: NDArray[np.uint32]
    payloads: ChunkPayloads

    def __post_init__(self) -> None:
        freeze_columns(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_columns(self)

    @classmethod
    def of(cls, coords: NDArray[np.uint32], payloads: ChunkPayloads) -> ArrayManifest:
        """Make an array manifest from rows in any order, sorting them by coordinates."""
        order = find_sort_order(coords)
        if order is None:
            return cls(coords, payloads)
        return cls(coords[order], payloads.select_rows(order))

    def __len__(self) -> int:
        return len(self.coords)

    def get(self, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Return the reference of a chunk, or None; rows must be sorted."""
        row = find_row(self.coords, indices)
        return None if row is None else self.payloads[row]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The chunk references of one or more arrays in one file."""

    id: ManifestId
    indices: ChunkIndexColumns
    payloads: ChunkPayloads

    @classmethod
    def of(cls, manifest_id: ManifestId, arrays: Mapping[NodeId, ArrayManifest]) -> Manifest:
        """Build a manifest from the references of each array, in any order."""
        ordered = [
            (node_id, ArrayManifest.of(array.coords, array.payloads))
            for node_id, array in sorted(arrays.items(), key=lambda item: item[0])
        ]
        return cls(
            manifest_id,
            ChunkIndexColumns.of({node_id: array.coords for node_id, array in ordered}),
            ChunkPayloads.concatenate([array.payloads for _, array in ordered]),
        )

    @classmethod
    def of_array(cls, manifest_id: ManifestId, node_id: NodeId, array: ArrayManifest) -> Manifest:
        """Make a manifest of one array, whose rows must be sorted."""
        indices = ChunkIndexColumns.of_sorted([(node_id, array.coords)])
        return cls(manifest_id, indices, array.payloads)

    def __len__(self) -> int:
        return len(self.indices)

    def get_array(self, node_id: NodeId) -> ArrayManifest | None:
        """Return the references of one array, or None; the result shares columns."""
        position = self.indices.find_array(node_id)
        if position is None:
            return None
        rows = slice(*(int(bound) for bound in self.indices.row_offsets[position : position + 2]))
        return ArrayManifest(self.indices.get_coords(position), self.payloads.select_rows(rows))

    @property
    def nbytes(self) -> int:
        """The size of the columns in memory, in bytes."""
        owners = (self.indices, self.payloads)
        return sum(
            _get_nbytes(getattr(owner, field.name)) for owner in owners for field in fields(owner)
        )


_get_offset, _get_length = attrgetter("offset"), attrgetter("length")


def _select_kind(
    payloads: Sequence[ChunkPayload], kind: type[Payload], kinds: set[type[ChunkPayload]]
) -> tuple[slice | list[int], Sequence[Payload]]:
    """Return the rows of the references of one of ``kinds``, and the references."""
    if kinds == {kind}:
        return slice(None), cast("Sequence[Payload]", payloads)
    if kind not in kinds:
        return [], []
    rows = [row for row, payload in enumerate(payloads) if isinstance(payload, kind)]
    return rows, [payload for payload in payloads if isinstance(payload, kind)]


def _to_u64(numbers: Iterable[int], count: int) -> NDArray[np.uint64]:
    # `numpy.array` needs twice the time, and makes floats of large numbers if no type is given.
    return np.fromiter(numbers, np.uint64, count)


def _get_nbytes(column: NDArray[np.generic] | Strings) -> int:
    if isinstance(column, Strings):
        return column.data.nbytes + column.offsets.nbytes
    # A column with stride 0 repeats one value (`make_constant`).
    return 0 if len(column) and column.strides[0] == 0 else column.nbytes


def merge_codes(
    parts: Sequence[tuple[NDArray[np.int32], Strings]],
) -> tuple[NDArray[np.int32], Strings]:
    """Concatenate dictionary-encoded columns; the result has one table of distinct strings."""
    tables = [table for _, table in parts]
    # `to_offsets` also returns the total, which is not needed.
    first_codes = to_offsets([len(table) for table in tables])[:-1]
    byte_starts = to_offsets([len(table.data) for table in tables])[:-1]
    ends = [table.offsets[1:] + start for table, start in zip(tables, byte_starts, strict=True)]
    combined = Strings(
        np.concatenate([EMPTY.data, *(table.data for table in tables)]),
        np.concatenate([EMPTY.offsets, *ends]),
    )
    new_codes, distinct = combined.unique()
    lookup = np.append(new_codes, np.int32(NO_CODE))  # the last entry is for rows without a string
    merged = [
        lookup[np.where(codes == NO_CODE, len(new_codes), codes + first_code)]
        for (codes, _), first_code in zip(parts, first_codes, strict=True)
    ]
    return np.concatenate(merged or [lookup[:0]]), distinct


def _has_same_strings(
    left: tuple[NDArray[np.int32], Strings], right: tuple[NDArray[np.int32], Strings]
) -> bool:
    """Whether two dictionary-encoded columns decode to the same strings, whatever their tables."""
    codes, table = left
    other_codes, other_table = right
    if not np.array_equal(codes == NO_CODE, other_codes == NO_CODE):
        return False
    if table == other_table:
        return np.array_equal(codes, other_codes)
    merged, _ = merge_codes([left, right])
    return np.array_equal(merged[: len(codes)], merged[len(codes) :])
