"""Codec of manifest files (``docs/format/sequence.md``).

Files as icefloe writes them are read and written by columns (`manifest_scan`, `manifest_text`).
JSON in another layout is parsed as a whole, with a Python object for each reference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.chunk_indices import MAX_DIMENSIONS, are_indices_sorted
from icefloe.format.flatbuffer_reader import is_utf8
from icefloe.format.json_text import parse_json, parse_text
from icefloe.format.sequence.chunk_keys import parse_key
from icefloe.format.sequence.json_document import ID_SIZE, Reader
from icefloe.format.sequence.manifest_scan import find_row_starts, scan_rows
from icefloe.format.sequence.manifest_text import BLOCK_ROWS, RefRows, Spans, write_rows
from icefloe.model.chunk_index_columns import ChunkIndexColumns, find_sort_order
from icefloe.model.chunk_payload import (
    MAX_U32,
    MAX_U64,
    ChunkKind,
    ChunkPayload,
    ChunkRef,
    ETag,
    InlineChunk,
    LastModified,
    VirtualChunkRef,
)
from icefloe.model.columns import make_constant, to_offsets
from icefloe.model.ids import ChunkId, NodeId
from icefloe.model.manifest import NO_CODE, ChunkPayloads, Manifest
from icefloe.model.strings import EMPTY, Strings, factorize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.ids import ManifestId

HEADER: Final = b'{"chunks":{'
TRAILER: Final = b"}}"
_BLOCK_BYTES: Final = 1 << 21
_BACKSLASH: Final = ord("\\")
_QUOTE: Final = ord('"')


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest file."""
    indices, payloads = manifest.indices, manifest.payloads
    _require_writable(manifest)
    writer = _RowSource(manifest)
    pieces = [HEADER]
    pieces += [
        write_rows(writer.get_rows(begin, min(begin + BLOCK_ROWS, len(payloads))))
        for begin in range(0, len(indices), BLOCK_ROWS)
    ]
    if len(indices):
        pieces[-1] = pieces[-1][:-1]  # the last comma
    return b"".join([*pieces, TRAILER])


def _require_writable(manifest: Manifest) -> None:
    indices, payloads = manifest.indices, manifest.payloads
    problem = None
    if len(indices) != len(payloads):
        problem = f"has {len(indices)} chunk indices and {len(payloads)} payloads"
    elif int(indices.ndims.max(initial=0)) > MAX_DIMENSIONS:
        problem = f"has an array of more than {MAX_DIMENSIONS} dimensions"
    elif indices.node_ids[:, :4].any():
        problem = "has an array whose node has no number that fits 32 bits"
    elif payloads.chunk_id.shape[1] != ID_SIZE and (payloads.kind == ChunkKind.NATIVE).any():
        problem = f"has chunk ids of {payloads.chunk_id.shape[1]} bytes, expected {ID_SIZE}"
    if problem is not None:
        raise FormatError(f"manifest {manifest.id} {problem}", kind=ErrorKind.SERIALIZATION)


class _RowSource:
    """The columns of a manifest, with strings that are escaped once."""

    def __init__(self, manifest: Manifest) -> None:
        indices, payloads = manifest.indices, manifest.payloads
        self._payloads = payloads
        self._row_offsets, self._ndims = indices.row_offsets, indices.ndims
        self._coord_starts, self._coords = indices.coord_starts, indices.coords
        self._nodes = np.ascontiguousarray(indices.node_ids).view(">u8").reshape(-1)
        self._locations = _escape(payloads.locations)
        self._etags = _escape(payloads.etags)
        self._inline = _pad(payloads.inline, int(self._get_inline_width()))

    def _get_inline_width(self) -> int:
        is_inline = self._payloads.kind == ChunkKind.INLINE
        return int(self._payloads.length[is_inline].max(initial=0)) if is_inline.any() else 0

    def get_rows(self, begin: int, end: int) -> RefRows:
        """Return the rows of a block."""
        payloads, block = self._payloads, slice(begin, end)
        kind = payloads.kind[block]
        numbers, num_numbers = self._get_numbers(begin, end)
        is_virtual, is_inline = kind == ChunkKind.VIRTUAL, kind == ChunkKind.INLINE
        has_virtual = bool(is_virtual.any())
        offset, length = payloads.offset[block], payloads.length[block]
        etag_codes = payloads.etag_codes[block]
        has_etag = is_virtual & (etag_codes != NO_CODE)
        times = payloads.last_modified[block]
        return RefRows(
            kind,
            numbers,
            num_numbers,
            offset,
            length,
            payloads.chunk_id[block],
            _take(self._locations, payloads.location_codes[block], is_virtual)
            if has_virtual
            else None,
            _take(self._etags, etag_codes, has_etag) if has_etag.any() else None,
            np.where(is_virtual & ~has_etag, times, np.uint32(0)) if has_virtual else None,
            Spans(
                self._inline,
                np.where(is_inline, offset, 0).astype(np.int64),
                np.where(is_inline, length, 0).astype(np.int64),
            )
            if is_inline.any()
            else None,
        )

    def _get_numbers(self, begin: int, end: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the numbers of the keys of a block, and how many each key has."""
        first = int(np.searchsorted(self._row_offsets, begin, "right")) - 1
        last = int(np.searchsorted(self._row_offsets, end, "left"))
        counts = np.diff(self._row_offsets[first : last + 1].clip(begin, end))
        ndims = np.repeat(self._ndims[first:last], counts)
        skipped = int(begin - self._row_offsets[first]) * int(self._ndims[first])
        coords_begin = int(self._coord_starts[first]) + skipped
        flat = self._coords[coords_begin : coords_begin + int(ndims.sum())]
        width = int(ndims.max(initial=0))
        numbers = np.zeros((end - begin, 1 + width), np.uint32)
        numbers[:, 0] = np.repeat(self._nodes[first:last], counts)
        if int(ndims.min(initial=width)) == width:
            numbers[:, 1:] = flat.reshape(end - begin, width)
        else:
            numbers[:, 1:][np.arange(width) < ndims[:, np.newaxis]] = flat
        return numbers, ndims + 1


def _pad(data: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    return np.concatenate([data, np.zeros(width, np.uint8)])


def _take(strings: Strings, codes: NDArray[np.int32], is_present: NDArray[np.bool_]) -> Spans:
    """Return the strings of some rows; ``strings`` is padded (`_escape`)."""
    codes = np.where(is_present, codes, 0)
    starts = strings.offsets[codes]
    lengths = strings.offsets[codes + 1] - starts
    return Spans(strings.data, starts, np.where(is_present, lengths, -1))


def _escape(strings: Strings) -> Strings:
    """Escape strings as in JSON; the data is padded by the length of the longest string."""
    data, lengths = strings.data, strings.lengths
    if (data < 0x20).any():
        # Control characters have escapes of several lengths.
        strings = Strings.of([_format_text(text) for text in strings])
        data, lengths = strings.data, strings.lengths
    elif (is_special := (data == _QUOTE) | (data == _BACKSLASH)).any():
        num_special = np.append(0, np.cumsum(is_special))
        lengths = lengths + np.diff(num_special[strings.offsets])
        data = np.insert(data, np.flatnonzero(is_special), _BACKSLASH)
    return Strings(_pad(data, int(lengths.max(initial=0))), to_offsets(lengths))


def _format_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def decode_manifest(data: bytes | memoryview, file: str, manifest_id: ManifestId) -> Manifest:
    """Decode a manifest file; its id is not in the file."""
    view = memoryview(data)
    parts = None
    if bytes(view[: len(HEADER)]) == HEADER and bytes(view[-len(TRAILER) :]) == TRAILER:
        parts = _decode_blocks(np.frombuffer(view, np.uint8), file)
    if parts is None:
        parts = [_parse_file(data, file)]
    return _build_manifest(parts, file, manifest_id)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows in the order of the file: node, rank and concatenated coordinates; and the payloads."""

    nodes: NDArray[np.uint32]
    ndims: NDArray[np.int64]
    coords: NDArray[np.uint32]
    payloads: ChunkPayloads


def _decode_blocks(data: NDArray[np.uint8], file: str) -> list[_Part] | None:
    """Decode a file block by block; return None if it is not in the layout that icefloe writes."""
    parts: list[_Part] = []
    batch = _Batch(data, file)
    begin, end, size = len(HEADER), len(data) - len(TRAILER), _BLOCK_BYTES
    if end < begin:
        return None
    while begin < end:
        text = data[begin : min(begin + size, end)]
        starts = find_row_starts(text)
        if begin + len(text) == end:
            text = np.append(text, np.uint8(ord(",")))
        elif len(starts):
            text, starts = text[: int(starts[-1])], starts[:-1]
        else:
            size *= 2  # a row longer than the block
            continue
        rows = scan_rows(text, np.append(0, starts))
        if rows is not None:
            batch.add(rows, begin)
        else:
            # Such as escaped control characters in a location.
            part = _parse_block(text, file)
            if part is None:
                return None
            parts += [*batch.build(), part]
            batch = _Batch(data, file)
        begin, size = begin + len(text), _BLOCK_BYTES
    return [*parts, *batch.build()]


class _Batch:
    """Collects blocks of rows; ``data`` is the file that contains their strings."""

    def __init__(self, data: NDArray[np.uint8], file: str) -> None:
        self._data, self._file = data, file
        self._blocks: list[RefRows] = []
        self._coords: list[NDArray[np.uint32]] = []
        self._inline: list[NDArray[np.uint8]] = []
        self._num_inline = 0

    def add(self, rows: RefRows, begin: int) -> None:
        """Add a block that starts at a position of the file."""
        coords = rows.numbers[:, 1:]
        is_present = np.arange(coords.shape[1]) < (rows.num_numbers - 1)[:, np.newaxis]
        self._coords.append(coords.reshape(-1) if is_present.all() else coords[is_present])
        offset = rows.offset
        if rows.inline is not None:
            is_inline = rows.kind == ChunkKind.INLINE
            offset = np.where(is_inline, offset + np.uint64(self._num_inline), offset)
            self._inline.append(rows.inline.data[: int(rows.inline.lengths.clip(0).sum())])
            self._num_inline += len(self._inline[-1])
        self._blocks.append(
            replace(
                rows,
                numbers=rows.numbers[:, :1].copy(),
                offset=offset,
                locations=_move(rows.locations, begin, self._data),
                etags=_move(rows.etags, begin, self._data),
                inline=None,
            )
        )

    def build(self) -> list[_Part]:
        """Return the rows as one part, or none."""
        blocks = self._blocks
        if not blocks:
            return []
        num_rows = sum(map(len, blocks))
        location_codes, locations = self._factorize([block.locations for block in blocks])
        etag_codes, etags = self._factorize([block.etags for block in blocks])
        chunk_id = _broadcast_ids(num_rows)
        if any(block.chunk_id is not None for block in blocks):
            chunk_id = np.concatenate(
                [
                    _broadcast_ids(len(block)) if block.chunk_id is None else block.chunk_id
                    for block in blocks
                ]
            )
        times = make_constant(0, num_rows, np.uint32)
        if any(block.last_modified is not None for block in blocks):
            times = np.concatenate(
                [
                    make_constant(0, len(block), np.uint32)
                    if block.last_modified is None
                    else block.last_modified
                    for block in blocks
                ]
            )
        payloads = ChunkPayloads(
            kind=np.concatenate([block.kind for block in blocks]),
            offset=np.concatenate([block.offset for block in blocks]),
            length=np.concatenate([block.length for block in blocks]),
            chunk_id=chunk_id,
            location_codes=location_codes,
            locations=locations,
            etag_codes=etag_codes,
            etags=etags,
            last_modified=times,
            inline=np.concatenate(self._inline or [np.zeros(0, np.uint8)]),
        )
        return [
            _Part(
                np.concatenate([block.numbers[:, 0] for block in blocks]),
                np.concatenate([block.num_numbers for block in blocks]) - 1,
                np.concatenate(self._coords),
                payloads,
            )
        ]

    def _factorize(self, blocks: list[Spans | None]) -> tuple[NDArray[np.int32], Strings]:
        """Encode strings as codes of a table of distinct strings, and unescape them."""
        num_rows = sum(map(len, self._blocks))
        if all(spans is None for spans in blocks):
            return make_constant(NO_CODE, num_rows, np.int32), EMPTY
        codes = np.full(num_rows, NO_CODE, np.int32)
        rows, starts, lengths = [], [], []
        begin = 0
        for block, spans in zip(self._blocks, blocks, strict=True):
            if spans is not None:
                present = np.flatnonzero(spans.lengths >= 0)
                rows.append(present + begin)
                starts.append(spans.starts[present])
                lengths.append(spans.lengths[present])
            begin += len(block)
        present_codes, table = factorize(
            self._data, np.concatenate(starts), np.concatenate(lengths)
        )
        codes[np.concatenate(rows)] = present_codes
        return codes, _unescape(table, self._file)


def _move(spans: Spans | None, begin: int, data: NDArray[np.uint8]) -> Spans | None:
    """Return spans of a block as spans of the file."""
    return None if spans is None else Spans(data, spans.starts + begin, spans.lengths)


def _broadcast_ids(num_rows: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.zeros(ID_SIZE, np.uint8), (num_rows, ID_SIZE))


def _unescape(table: Strings, file: str) -> Strings:
    if not is_utf8(table):
        raise FormatError("has a string that is not valid UTF-8", file=file)
    is_backslash = table.data == _BACKSLASH
    if not is_backslash.any():
        return table
    following = np.append(table.data[1:], np.uint8(0))
    if (following[is_backslash] == _QUOTE).all():
        num_backslashes = np.append(0, np.cumsum(is_backslash))
        return Strings(table.data[~is_backslash], table.offsets - num_backslashes[table.offsets])
    try:
        return Strings.of([json.loads(f'"{text}"') for text in table])
    except ValueError as error:  # or InvalidInputError, a ValueError
        raise FormatError(f"has a string that cannot be read ({error})", file=file) from error


def _parse_block(text: NDArray[np.uint8], file: str) -> _Part | None:
    """Parse rows that are each followed by a comma, or return None if they are not JSON."""
    try:
        members = parse_text("{" + text[:-1].tobytes().decode() + "}")
    except (ValueError, RecursionError):
        return None
    return _read_members(members, Reader(file))


def _parse_file(data: bytes | memoryview, file: str) -> _Part:
    reader = Reader(file)
    content = reader.read_object(parse_json(data, file), "the content")
    chunks = reader.get_member(content, "chunks", "the manifest")
    return _read_members(reader.read_object(chunks, "chunks"), reader)


def _read_members(members: dict[str, Any], reader: Reader) -> _Part:
    nodes: list[int] = []
    ndims: list[int] = []
    coords: list[int] = []
    payloads: list[ChunkPayload] = []
    for key, value in members.items():
        numbers = parse_key(key)
        if numbers is None:
            reader.fail(f"{key!r:.80} is not the key of a chunk")
        nodes.append(numbers[0])
        ndims.append(len(numbers[1]))
        coords += numbers[1]
        payloads.append(_read_payload(value, f"the chunk {key}", reader))
    return _Part(
        np.array(nodes, np.uint32),
        np.array(ndims, np.int64),
        np.array(coords, np.uint32),
        ChunkPayloads.of(payloads),
    )


def _read_payload(value: Any, label: str, reader: Reader) -> ChunkPayload:
    members = list(reader.read_object(value, label).items())
    if len(members) != 1:
        reader.fail(f"{label} has {len(members)} payloads, expected 1")
    kind, content = members[0]
    if kind == "Inline":
        return InlineChunk(reader.read_bytes(content, label))
    if kind not in ("Ref", "Virtual"):
        reader.fail(f"{label} is neither Inline, Ref nor Virtual, but {kind!r:.80}")
    ref = reader.read_object(content, label)
    length, offset = (
        reader.read_integer(reader.get_member(ref, name, label), f"the {name} of {label}", MAX_U64)
        for name in ("length", "offset")
    )
    if kind == "Ref":
        chunk_id = reader.read_id(reader.get_member(ref, "id", label), ChunkId, label)
        return ChunkRef(chunk_id, offset, length)
    location = reader.read_text(reader.get_member(ref, "location", label), label)
    return VirtualChunkRef(location, offset, length, _read_checksum(ref, label, reader))


def _read_checksum(ref: dict[str, Any], label: str, reader: Reader) -> ETag | LastModified | None:
    etag, time = ref.get("etag"), ref.get("last_modified")
    checksum: ETag | LastModified | None = None
    if time is not None:
        seconds = reader.read_integer(time, f"last_modified of {label}", MAX_U32)
        if not seconds:
            reader.fail(f"last_modified of {label} is 0")
        checksum = LastModified(seconds)
    return checksum if etag is None else ETag(reader.read_text(etag, f"the etag of {label}"))


def _build_manifest(parts: list[_Part], file: str, manifest_id: ManifestId) -> Manifest:
    payloads = ChunkPayloads.concatenate([part.payloads for part in parts])
    if payloads.chunk_id.shape[1] != ID_SIZE:  # without native chunks
        payloads = replace(payloads, chunk_id=_broadcast_ids(len(payloads)))
    nodes = np.concatenate([np.zeros(0, np.uint32), *(part.nodes for part in parts)])
    ndims = np.concatenate([np.zeros(0, np.int64), *(part.ndims for part in parts)])
    coords = np.concatenate([np.zeros(0, np.uint32), *(part.coords for part in parts)])
    heads = np.flatnonzero(np.append(True, nodes[1:] != nodes[:-1])) if len(nodes) else ndims[:0]
    counts = np.diff(heads, append=len(nodes))
    if (nodes[heads][1:] > nodes[heads][:-1]).all():
        if not np.array_equal(np.repeat(ndims[heads], counts), ndims):
            raise FormatError("has chunks of one array that differ in rank", file=file)
        node_ids = nodes[heads].astype(">u8").view(np.uint8).reshape(-1, NodeId.SIZE)
        indices = ChunkIndexColumns(node_ids, to_offsets(counts), ndims[heads], coords)
        if are_indices_sorted(indices):
            return Manifest(manifest_id, indices, payloads)
    indices, order = _sort(nodes, ndims, coords, file)
    if not are_indices_sorted(indices):
        raise FormatError("has two references to one chunk", file=file)
    return Manifest(manifest_id, indices, payloads.select_rows(order))


def _sort(
    nodes: NDArray[np.uint32], ndims: NDArray[np.int64], coords: NDArray[np.uint32], file: str
) -> tuple[ChunkIndexColumns, NDArray[np.int64]]:
    """Sort rows by node and coordinates; return the indices and the order of the rows."""
    starts = to_offsets(ndims)[:-1]
    by_node = np.argsort(nodes, kind="stable")
    bounds = np.flatnonzero(np.diff(nodes[by_node])) + 1
    arrays, order = [], []
    for rows in np.split(by_node, bounds):
        ndim = int(ndims[rows[0]])
        if (ndims[rows] != ndim).any():
            raise FormatError("has chunks of one array that differ in rank", file=file)
        matrix = coords[starts[rows][:, np.newaxis] + np.arange(ndim)].reshape(len(rows), ndim)
        row_order = find_sort_order(matrix)
        if row_order is not None:
            rows, matrix = rows[row_order], matrix[row_order]  # noqa: PLW2901
        arrays.append((NodeId.from_number(int(nodes[rows[0]])), matrix))
        order.append(rows)
    return ChunkIndexColumns.of_sorted(arrays), np.concatenate(order)
