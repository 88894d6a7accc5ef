"""Kerchunk's files of references: JSON of version 0 and 1, and folders of Parquet files.

Read here and not by VirtualiZarr, which has no inline references and one Python object for each
chunk; the Parquet files hold columns already.
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

import numpy as np

from icefloe.errors import ErrorKind, FormatError, InvalidInputError, NodeNotFoundError
from icefloe.model.chunk_payload import ChunkKind, ETag, LastModified
from icefloe.model.columns import constant
from icefloe.model.manifest import NO_CODE, ArrayManifest, ChunkPayloads
from icefloe.model.strings import Strings
from icefloe.storage.urls import redact_url, require_shareable
from icefloe.virtual.dataset import VirtualArray, VirtualDataset
from icefloe.virtual.parsers.zarr_nodes import DOCUMENTS, ZarrArray, below_group, read_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import OpenSource

_BASE64: Final = "base64:"


def parse_json(
    source: OpenSource, request: ParseRequest, opened: Callable[[str], OpenSource]
) -> VirtualDataset:
    """Parse references in JSON; no variable is loaded yet.

    Their chunks must not have changed after the file of references did: only until then does it
    say where they are.
    """
    try:
        document = json.loads(source.fetch_all())
    except (ValueError, RecursionError) as error:
        raise _damaged(source.url, f"it is no JSON ({error})") from error
    if not isinstance(document, dict):
        raise _damaged(source.url, "it is no JSON object")
    refs = document.get("refs", document)
    if document.get("gen"):
        raise InvalidInputError(
            f"{source.url}: its references are to be generated ('gen'); expand them with fsspec's "
            "ReferenceFileSystem, and write them down again",
            kind=ErrorKind.UNIMPLEMENTED,
        )
    if not isinstance(refs, dict) or not any(key.rpartition("/")[2] in DOCUMENTS for key in refs):
        raise FormatError(
            "is a JSON document, but none of Kerchunk's: it has no Zarr metadata",
            file=source.url,
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    templates = document.get("templates") or {}
    refs = _require_group(below_group(refs, request.group), request)
    documents: dict[str, Any] = {}
    folders: dict[str, tuple[list[str], list[Any]]] = {}
    for key, value in refs.items():
        folder, _, name = key.rpartition("/")
        if name in DOCUMENTS:
            documents[key] = _json_of(value, key, source.url)
        elif name != ".zmetadata":
            keys, values = folders.setdefault(folder, ([], []))
            keys.append(name)
            values.append(value)
    nodes = read_nodes(documents, request)
    chunks: dict[str, tuple[list[str], list[Any]]] = {}
    for folder, (names, values) in folders.items():
        path = _array_above(f"{folder}/", nodes.arrays)
        if path is not None:
            # Between the array and its chunks there are folders, if "/" separates the indices.
            between = f"{folder[len(path) :].lstrip('/')}/".lstrip("/")
            keys, found = chunks.setdefault(path, ([], []))
            keys += [f"{between}{name}" for name in names] if between else names
            found += values
    arrays = {}
    for path, array in nodes.arrays.items():
        keys, values = chunks.get(path, ([], []))
        rows = _rows(values, _Locations(source.url, templates, opened))
        arrays[path] = VirtualArray(array.metadata, _manifest(array, path, keys, rows, request))
    return VirtualDataset((request.source,), nodes.groups, dict(arrays))


def parse_parquet(
    source: OpenSource, request: ParseRequest, opened: Callable[[str], OpenSource]
) -> VirtualDataset:
    """Parse a folder of references in Parquet files; no variable is loaded yet."""
    try:
        document = json.loads(source.below(".zmetadata").fetch_all())
        documents, record_size = document["metadata"], int(document["record_size"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(source.url, f".zmetadata cannot be understood ({error!r})") from error
    nodes = read_nodes(_require_group(below_group(documents, request.group), request), request)
    locations = _Locations(source.url, {}, opened)
    arrays = {}
    for path, array in nodes.arrays.items():
        count = int(np.prod(array.grid, dtype=np.int64))
        whole = f"{request.group}/{path}".strip("/")
        parts = [
            _parquet_rows(source.below(f"{whole}/refs.{number}.parq"), locations)
            for number in range(-(-count // record_size))
        ]
        starts = np.arange(len(parts)) * record_size
        numbers = np.concatenate(
            [start + np.arange(len(part)) for start, part in zip(starts, parts, strict=True)]
            or [np.zeros(0, np.int64)]
        )
        rows = ChunkPayloads.concatenate(parts)
        kept = np.flatnonzero((rows.kind != 0) & (numbers < count))
        places = np.unravel_index(numbers[kept], array.grid) if array.grid else []
        coords = np.stack(places, 1) if array.grid else np.zeros((len(kept), 0), np.int64)
        refs = _with_checksum(rows.rows(kept), request)
        arrays[path] = VirtualArray(
            array.metadata, ArrayManifest.of(coords.astype(np.uint32), refs)
        )
    return VirtualDataset((request.source,), nodes.groups, dict(arrays))


class _Locations:
    """Turns what references call files into URLs."""

    def __init__(
        self, url: str, templates: dict[str, Any], opened: Callable[[str], OpenSource]
    ) -> None:
        self._url = url
        self._templates = templates
        self._opened = opened

    def absolute(self, location: str) -> str:
        """Fill in templates, and resolve a path against the file of references."""
        for name, value in self._templates.items():
            location = location.replace(f"{{{{{name}}}}}", str(value))
        if "{{" in location:
            raise InvalidInputError(
                f"{self._url}: the location {redact_url(location)!r} has a template that is not "
                "explained; expand it with fsspec's ReferenceFileSystem",
                kind=ErrorKind.INVALID_VIRTUAL_REF,
            )
        if "://" in location:
            require_shareable(location)
            return location
        if location.startswith("/"):
            return Path(location).as_uri()
        return urljoin(self._url, location)

    def size(self, url: str) -> int:
        """Fetch the length of a file that is referenced as a whole."""
        info = self._opened(url).fetch_info()
        if info is None or info.size_bytes is None:
            raise InvalidInputError(
                f"{self._url}: refers to the whole of {url}, which is not there",
                kind=ErrorKind.INVALID_VIRTUAL_REF,
            )
        return info.size_bytes


def _rows(values: list[Any], locations: _Locations) -> ChunkPayloads:
    """Turn references as JSON has them into columns; kind 0 marks those without any bytes."""
    ranges = _ranges(values, locations)
    if ranges is not None:
        return ranges
    rows = len(values)
    kind = np.zeros(rows, np.uint8)
    offset, length = np.zeros(rows, np.uint64), np.zeros(rows, np.uint64)
    location = np.full(rows, NO_CODE, np.int32)
    table: dict[str, int] = {}
    inline = bytearray()
    for row, value in enumerate(values):
        match value:
            case str() | dict():
                data = _inline(value)
                kind[row] = ChunkKind.INLINE if data else 0
                offset[row], length[row] = len(inline), len(data)
                inline += data
            case [str(url), int(start), int(size)] if start >= 0 and size >= 0:
                kind[row] = ChunkKind.VIRTUAL if size else 0
                location[row] = table.setdefault(url, len(table))
                offset[row], length[row] = start, size
            case [str(url)]:
                kind[row] = ChunkKind.VIRTUAL
                location[row] = table.setdefault(url, len(table))
                length[row] = locations.size(locations.absolute(url))
            case None:
                pass
            case _:
                raise InvalidInputError(
                    f"the reference {value!r} is none of Kerchunk's",
                    kind=ErrorKind.INVALID_VIRTUAL_REF,
                )
    codes, urls = Strings.of([locations.absolute(url) for url in table]).unique()
    return ChunkPayloads(
        kind=kind,
        offset=offset,
        length=length,
        chunk_id=np.broadcast_to(np.zeros(12, np.uint8), (rows, 12)),
        location=np.append(codes, np.int32(NO_CODE))[location],
        locations=urls,
        etag=constant(NO_CODE, rows, np.int32),
        etags=Strings.of([]),
        last_modified=constant(0, rows, np.uint32),
        inline=np.frombuffer(bytes(inline), np.uint8),
    )


def _ranges(values: list[Any], locations: _Locations) -> ChunkPayloads | None:
    """Do so for what is mostly the case, at several times the speed: all are ranges of files."""
    if not values or any(type(value) is not list or len(value) != 3 for value in values):
        return None
    urls, starts, sizes = zip(*values, strict=True)
    numbers = np.array([starts, sizes])
    if numbers.dtype.kind not in "iu" or numbers.min() < 0 or {*map(type, urls)} != {str}:
        return None
    table = {url: number for number, url in enumerate(dict.fromkeys(urls))}
    codes, absolute = Strings.of([locations.absolute(url) for url in table]).unique()
    location = codes[np.fromiter(map(table.__getitem__, urls), np.int64, len(urls))]
    offset, length = numbers.astype(np.uint64)
    payloads = ChunkPayloads.virtual(location, absolute, offset, length)
    return replace(payloads, kind=np.where(length > 0, ChunkKind.VIRTUAL, 0).astype(np.uint8))


def _parquet_rows(source: OpenSource, locations: _Locations) -> ChunkPayloads:
    """Read one Parquet file: its columns are those of a manifest but for the names."""
    import pyarrow as pa  # noqa: PLC0415 - nothing else here needs it
    import pyarrow.parquet as pq  # noqa: PLC0415

    if source.fetch_info() is None:
        return _rows([], locations)  # no chunk of this part was written
    try:
        table = pq.read_table(io.BytesIO(source.fetch_all()))
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        raw = columns.get("raw")
        # Text, or codes of text already, or nothing at all where all chunks are inline.
        paths = columns["path"].cast(pa.string()).dictionary_encode()
        offset = columns["offset"].to_numpy(zero_copy_only=False).astype(np.uint64)
        length = columns["size"].to_numpy(zero_copy_only=False).astype(np.uint64)
    except (KeyError, ValueError, OSError) as error:
        raise _damaged(source.url, f"it holds no references ({error})") from error
    rows = table.num_rows
    names = [locations.absolute(name) for name in paths.dictionary.to_pylist()]
    codes, urls = Strings.of(names).unique()
    location = np.append(codes, np.int32(NO_CODE))[
        paths.indices.fill_null(len(names)).to_numpy(zero_copy_only=False).astype(np.int64)
    ]
    kind = np.where(location == NO_CODE, 0, ChunkKind.VIRTUAL).astype(np.uint8)
    inline = np.zeros(0, np.uint8)
    if raw is not None and raw.null_count < rows:
        has_raw = raw.is_valid().to_numpy(zero_copy_only=False)
        pieces = [bytes(one or b"") for one in raw.to_pylist()]
        inline = np.frombuffer(b"".join(pieces), np.uint8)
        sizes = np.array([len(piece) for piece in pieces], np.uint64)
        ends = np.cumsum(sizes)
        kind[has_raw] = ChunkKind.INLINE
        offset = np.where(has_raw, ends - sizes, offset)
        length = np.where(has_raw, sizes, length)
        location = np.where(has_raw, NO_CODE, location).astype(np.int32)
    whole = np.flatnonzero((kind == ChunkKind.VIRTUAL) & (length == 0))
    if len(whole):
        length = length.copy()
        for row in whole.tolist():  # a request for each: whole files are no usual references
            length[row] = locations.size(urls[int(location[row])])
    kind[length == 0] = 0
    return ChunkPayloads(
        kind=kind,
        offset=offset,
        length=length,
        chunk_id=np.broadcast_to(np.zeros(12, np.uint8), (rows, 12)),
        location=location,
        locations=urls,
        etag=constant(NO_CODE, rows, np.int32),
        etags=Strings.of([]),
        last_modified=constant(0, rows, np.uint32),
        inline=inline,
    )


def _manifest(
    array: ZarrArray, path: str, keys: list[str], rows: ChunkPayloads, request: ParseRequest
) -> ArrayManifest:
    coords = array.coords(keys)
    if coords is None:
        bad = next(key for key in keys if array.coords([key]) is None)
        raise _damaged(request.url, f"{path}/{bad} is not the key of a chunk")
    outside = np.flatnonzero((coords >= np.array(array.grid, np.int64)).any(axis=1))
    if len(outside):
        raise _damaged(
            request.url, f"{path}/{keys[int(outside[0])]} lies outside the grid of its array"
        )
    kept = np.flatnonzero(rows.kind != 0)
    return ArrayManifest.of(coords[kept], _with_checksum(rows.rows(kept), request))


def _with_checksum(rows: ChunkPayloads, request: ParseRequest) -> ChunkPayloads:
    is_virtual = rows.kind == ChunkKind.VIRTUAL
    match request.checksum:
        case LastModified(seconds):
            return replace(rows, last_modified=(is_virtual * np.uint32(seconds)).astype(np.uint32))
        case ETag():  # of the file of references, which says nothing of the others
            return rows
        case _:
            return rows


def _inline(value: str | dict[str, Any]) -> bytes:
    if isinstance(value, dict):
        return json.dumps(value).encode()
    if value.startswith(_BASE64):
        return base64.b64decode(value[len(_BASE64) :])
    return value.encode("latin-1", "surrogateescape") if value.isascii() else value.encode()


def _json_of(value: Any, key: str, url: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        text = base64.b64decode(value[len(_BASE64) :]) if value.startswith(_BASE64) else value
        return json.loads(text)
    except ValueError as error:
        raise _damaged(url, f"{key} is no JSON ({error})") from error


def _array_above(key: str, arrays: dict[str, ZarrArray]) -> str | None:
    path = key
    while path:
        path = path.rpartition("/")[0]
        if path in arrays:
            return path
    return None


def _require_group(documents: dict[str, Any], request: ParseRequest) -> dict[str, Any]:
    if request.group and not documents:
        raise NodeNotFoundError(
            f"{request.url}: there is no group {request.group!r} among its references",
            kind=ErrorKind.NODE_NOT_FOUND,
        )
    return documents


def _damaged(url: str, what: str) -> FormatError:
    return FormatError(f"is damaged: {what}", file=url, kind=ErrorKind.INVALID_FILE_FORMAT)
