"""Parser of Kerchunk references: JSON (versions 0 and 1), and directories of Parquet files.

Used instead of VirtualiZarr's parser, which does not support inline references and creates a Python
object per chunk. Parquet files are read as columns.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.chunk_payload import ChunkKind, LastModified
from icefloe.model.manifest import NO_CODE, ArrayManifest, ChunkPayloads
from icefloe.model.strings import Strings
from icefloe.storage.urls import redact_url, require_shareable
from icefloe.virtual.arrays import VirtualArray
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.parse_errors import damaged_error, file_format_error
from icefloe.virtual.parsers.zarr_nodes import DOCUMENTS, ZarrArray, read_nodes, select_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import OpenSource

_BASE64: Final = "base64:"


def parse_json(
    source: OpenSource, request: ParseRequest, open_location: Callable[[str], OpenSource]
) -> VirtualDataset:
    """Parse references in JSON, without loading variables.

    The checksum of the references is the modification time of the JSON file, so that files modified
    later are rejected.
    """
    try:
        document = json.loads(source.fetch_all())
    except (ValueError, RecursionError) as error:
        raise damaged_error(source.url, f"it is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise damaged_error(source.url, "it is not a JSON object")
    refs = document.get("refs", document)
    if document.get("gen"):
        raise InvalidInputError(
            f"{source.url}: generated references ('gen') are not supported; expand them with "
            "fsspec's ReferenceFileSystem and save the result",
            kind=ErrorKind.UNIMPLEMENTED,
        )
    if not isinstance(refs, dict) or not any(key.rpartition("/")[2] in DOCUMENTS for key in refs):
        reason = "is a JSON document without Zarr metadata, not a Kerchunk file"
        raise file_format_error(source.url, reason)
    templates = document.get("templates") or {}
    refs = select_group(refs, request.group, request.url)
    documents: dict[str, Any] = {}
    folders: dict[str, tuple[list[str], list[Any]]] = {}
    for key, value in refs.items():
        folder, _, name = key.rpartition("/")
        if name in DOCUMENTS:
            documents[key] = _decode_json(value, key, source.url)
        elif name != ".zmetadata":
            keys, values = folders.setdefault(folder, ([], []))
            keys.append(name)
            values.append(value)
    nodes = read_nodes(documents, request)
    chunks: dict[str, tuple[list[str], list[Any]]] = {}
    for folder, (names, values) in folders.items():
        path = nodes.find_array(f"{folder}/")
        if path is not None:
            # With the separator "/", chunk keys have directories below the array.
            prefix = f"{folder[len(path) :].lstrip('/')}/".lstrip("/")
            array_keys, array_values = chunks.setdefault(path, ([], []))
            array_keys += [f"{prefix}{name}" for name in names] if prefix else names
            array_values += values
    arrays = {}
    for path, array in nodes.arrays.items():
        keys, values = chunks.get(path, ([], []))
        rows = _parse_refs(values, _LocationResolver(source.url, templates, open_location))
        manifest = _build_manifest(array, path, keys, rows, request)
        arrays[path] = VirtualArray(array.metadata, manifest)
    return VirtualDataset((request.source,), nodes.groups, dict(arrays))


def parse_parquet(
    source: OpenSource, request: ParseRequest, open_location: Callable[[str], OpenSource]
) -> VirtualDataset:
    """Parse a directory of references in Parquet files, without loading variables."""
    try:
        document = json.loads(source.open_child(".zmetadata").fetch_all())
        documents, record_size = document["metadata"], int(document["record_size"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged_error(source.url, f".zmetadata is not valid ({error!r})") from error
    nodes = read_nodes(select_group(documents, request.group, request.url), request)
    resolver = _LocationResolver(source.url, {}, open_location)
    arrays = {}
    for path, array in nodes.arrays.items():
        count = int(np.prod(array.grid, dtype=np.int64))
        full_path = f"{request.group}/{path}".strip("/")
        parts = [
            _read_parquet(source.open_child(f"{full_path}/refs.{number}.parq"), resolver)
            for number in range(-(-count // record_size))
        ]
        ranges = [number * record_size + np.arange(len(part)) for number, part in enumerate(parts)]
        numbers = np.concatenate(ranges or [np.zeros(0, np.int64)])
        rows = ChunkPayloads.concatenate(parts)
        present = np.flatnonzero((rows.kind != 0) & (numbers < count))
        axes = np.unravel_index(numbers[present], array.grid) if array.grid else []
        coords = np.stack(axes, 1) if array.grid else np.zeros((len(present), 0), np.int64)
        refs = _set_checksum(rows.select_rows(present), request)
        manifest = ArrayManifest.of(coords.astype(np.uint32), refs)
        arrays[path] = VirtualArray(array.metadata, manifest)
    return VirtualDataset((request.source,), nodes.groups, dict(arrays))


class _LocationResolver:
    """Converts the locations in references to URLs."""

    def __init__(
        self, url: str, templates: dict[str, Any], open_location: Callable[[str], OpenSource]
    ) -> None:
        self._url = url
        self._templates = templates
        self._open_location = open_location

    def resolve(self, location: str) -> str:
        """Expand templates, and resolve relative paths against the reference file."""
        for name, value in self._templates.items():
            location = location.replace(f"{{{{{name}}}}}", str(value))
        if "{{" in location:
            raise _reference_error(
                f"{self._url}: the location {redact_url(location)!r} has an undefined "
                "template; expand it with fsspec's ReferenceFileSystem"
            )
        if "://" in location:
            require_shareable(location)
            return location
        if location.startswith("/"):
            return Path(location).as_uri()
        return urljoin(self._url, location)

    def fetch_size(self, url: str) -> int:
        """Fetch the size of a file for a reference without a byte range."""
        info = self._open_location(url).fetch_info()
        if info is None or info.size_bytes is None:
            problem = f"refers to the whole file {url}, which does not exist"
            raise _reference_error(f"{self._url}: {problem}")
        return info.size_bytes


def _reference_error(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind=ErrorKind.INVALID_VIRTUAL_REF)


def _parse_refs(values: list[Any], resolver: _LocationResolver) -> ChunkPayloads:
    """Convert JSON references to columns; the kind of empty chunks is 0."""
    ranges = _parse_ranges(values, resolver)
    if ranges is not None:
        return ranges
    rows = len(values)
    kind = np.zeros(rows, np.uint8)
    offset, length = np.zeros(rows, np.uint64), np.zeros(rows, np.uint64)
    location = np.full(rows, NO_CODE, np.int32)
    url_codes: dict[str, int] = {}
    inline = bytearray()
    for row, value in enumerate(values):
        match value:
            case str() | dict():
                data = _decode_inline(value)
                kind[row] = ChunkKind.INLINE if data else 0
                offset[row], length[row] = len(inline), len(data)
                inline += data
            case [str(url), int(start), int(size)] if start >= 0 and size >= 0:
                kind[row] = ChunkKind.VIRTUAL if size else 0
                location[row] = url_codes.setdefault(url, len(url_codes))
                offset[row], length[row] = start, size
            case [str(url)]:
                kind[row] = ChunkKind.VIRTUAL
                location[row] = url_codes.setdefault(url, len(url_codes))
                length[row] = resolver.fetch_size(resolver.resolve(url))
            case None:
                pass
            case _:
                raise _reference_error(f"{value!r} is not a Kerchunk reference")
    codes, urls = Strings.of([resolver.resolve(url) for url in url_codes]).unique()
    location = np.append(codes, np.int32(NO_CODE))[location]
    payloads = ChunkPayloads.make_virtual(location, urls, offset, length)
    return replace(payloads, kind=kind, inline=np.frombuffer(bytes(inline), np.uint8))


def _parse_ranges(values: list[Any], resolver: _LocationResolver) -> ChunkPayloads | None:
    """Convert references that are all byte ranges (a fast path), or return None."""
    if not values or any(type(value) is not list or len(value) != 3 for value in values):
        return None
    urls, starts, sizes = zip(*values, strict=True)
    numbers = np.array([starts, sizes])
    if numbers.dtype.kind not in "iu" or numbers.min() < 0 or {*map(type, urls)} != {str}:
        return None
    url_codes = {url: code for code, url in enumerate(dict.fromkeys(urls))}
    codes, resolved = Strings.of([resolver.resolve(url) for url in url_codes]).unique()
    location = codes[np.fromiter(map(url_codes.__getitem__, urls), np.int64, len(urls))]
    offset, length = numbers.astype(np.uint64)
    payloads = ChunkPayloads.make_virtual(location, resolved, offset, length)
    return replace(payloads, kind=np.where(length > 0, ChunkKind.VIRTUAL, 0).astype(np.uint8))


def _read_parquet(source: OpenSource, resolver: _LocationResolver) -> ChunkPayloads:
    """Read one Parquet file, whose columns correspond to those of a manifest."""
    import pyarrow as pa  # noqa: PLC0415 - optional, only for Parquet
    import pyarrow.parquet as pq  # noqa: PLC0415

    if source.fetch_info() is None:
        return _parse_refs([], resolver)  # all chunks of this part are missing
    try:
        # Without threads: one that releases a Python object at exit aborts the process.
        table = pq.ParquetFile(pa.BufferReader(source.fetch_all())).read(use_threads=False)
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        raw = columns.get("raw")
        # Strings, dictionary-encoded strings, or nulls if all chunks are inline.
        paths = columns["path"].cast(pa.string()).dictionary_encode()
        offset = columns["offset"].to_numpy(zero_copy_only=False).astype(np.uint64)
        length = columns["size"].to_numpy(zero_copy_only=False).astype(np.uint64)
    except (KeyError, ValueError, OSError) as error:
        problem = f"its reference columns are missing or invalid ({error})"
        raise damaged_error(source.url, problem) from error
    rows = table.num_rows
    path_urls = [resolver.resolve(path) for path in paths.dictionary.to_pylist()]
    codes, urls = Strings.of(path_urls).unique()
    location = np.append(codes, np.int32(NO_CODE))[
        paths.indices.fill_null(len(path_urls)).to_numpy(zero_copy_only=False).astype(np.int64)
    ]
    kind = np.where(location == NO_CODE, 0, ChunkKind.VIRTUAL).astype(np.uint8)
    inline = np.zeros(0, np.uint8)
    if raw is not None and raw.null_count < rows:
        has_raw = raw.is_valid().to_numpy(zero_copy_only=False)
        pieces = [bytes(data or b"") for data in raw.to_pylist()]
        inline = np.frombuffer(b"".join(pieces), np.uint8)
        sizes = np.array([len(piece) for piece in pieces], np.uint64)
        ends = np.cumsum(sizes)
        kind[has_raw] = ChunkKind.INLINE
        offset = np.where(has_raw, ends - sizes, offset)
        length = np.where(has_raw, sizes, length)
        location = np.where(has_raw, NO_CODE, location).astype(np.int32)
    whole_files = np.flatnonzero((kind == ChunkKind.VIRTUAL) & (length == 0))
    if len(whole_files):
        length = length.copy()
        for row in whole_files.tolist():  # one request each: references to whole files are rare
            length[row] = resolver.fetch_size(urls[int(location[row])])
    kind[length == 0] = 0
    payloads = ChunkPayloads.make_virtual(location, urls, offset, length)
    return replace(payloads, kind=kind, inline=inline)


def _build_manifest(
    array: ZarrArray, path: str, keys: list[str], rows: ChunkPayloads, request: ParseRequest
) -> ArrayManifest:
    coords = array.parse_keys(keys)
    if coords is None:
        bad_key = next(key for key in keys if array.parse_keys([key]) is None)
        raise damaged_error(request.url, f"{path}/{bad_key} is not a chunk key")
    outside = np.flatnonzero((coords >= np.array(array.grid, np.int64)).any(axis=1))
    if len(outside):
        bad_key = keys[int(outside[0])]
        raise damaged_error(request.url, f"{path}/{bad_key} is outside the chunk grid")
    present = np.flatnonzero(rows.kind != 0)
    return ArrayManifest.of(coords[present], _set_checksum(rows.select_rows(present), request))


def _set_checksum(rows: ChunkPayloads, request: ParseRequest) -> ChunkPayloads:
    if not isinstance(request.checksum, LastModified):
        return rows
    seconds = np.where(rows.kind == ChunkKind.VIRTUAL, request.checksum.seconds, 0)
    return replace(rows, last_modified=seconds.astype(np.uint32))


def _decode_inline(value: str | dict[str, Any]) -> bytes:
    if isinstance(value, dict):
        return json.dumps(value).encode()
    if value.startswith(_BASE64):
        return base64.b64decode(value[len(_BASE64) :])
    return value.encode("latin-1", "surrogateescape") if value.isascii() else value.encode()


def _decode_json(value: Any, key: str, url: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        text = base64.b64decode(value[len(_BASE64) :]) if value.startswith(_BASE64) else value
        return json.loads(text)
    except ValueError as error:
        raise damaged_error(url, f"{key} is not JSON ({error})") from error
