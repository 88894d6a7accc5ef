"""The storage interface for object stores, on obstore.

`conditional_put` determines the outcome of conditional puts that fail.

Limitations, most of them of obstore 0.12:

- ``concurrency`` of the settings is ignored: a get is one request, and callers send requests
  concurrently from threads or tasks.
- ``operation_timeout_ms`` limits the time in which retries start, not the last retry.
- AWS profiles and SSO (``~/.aws/config``) are not read: credentials from the environment are
  variables, web identity, container and instance roles. For profiles pass ``get_credentials``.
- Headers of the user are not signed, so S3 rejects ``x-amz-`` headers.
- CRC32, CRC32C and SHA-1 checksums of uploads, and keys that start with ``/``
  (``legacy_rooted_keys``), are not supported.
- obstore's threads do not survive a fork: requests in the child raise instead of hanging.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import obstore
from obstore.exceptions import NotModifiedError

from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
)
from icefloe.model.byte_range import Bounded, ByteRange, From, Last, Until, resolve
from icefloe.model.storage_settings import OBJECT_STORE_DEFAULTS, StorageSettings
from icefloe.storage.coalescing import coalesce
from icefloe.storage.conditional_put import (
    WRITE_ID_ATTRIBUTE,
    CurrentObject,
    RetryPolicy,
    put_conditionally,
)
from icefloe.storage.interface import (
    Create,
    Fetched,
    ObjectInfo,
    Overwrite,
    PutMode,
    Storage,
    UpdateIfMatch,
    Version,
    is_same_version,
)
from icefloe.storage.keys import validate_key, validate_list_prefix
from icefloe.storage.object_store.clients import Clients, require_threads
from icefloe.storage.object_store.errors import (
    RangeIgnoredError,
    RangeUnsatisfiableError,
    classify_put_failure,
    is_obstore_failure,
    redact_error,
    translate_error,
)
from icefloe.storage.places import (
    AzurePlace,
    GcsPlace,
    Place,
    S3Place,
    get_path_prefix,
    is_same_bucket,
    with_user_agent,
)
from icefloe.storage.read_condition import ReadCondition
from icefloe.storage.size_limit import require_at_most

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from obstore import (
        Attributes,
        Bytes,
        GetOptions,
        GetResult,
        ObjectMeta,
        PutResult,
        UpdateVersion,
    )
    from obstore import PutMode as ObstorePutMode
    from obstore.store import ObjectStore

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)

_DELETE_BATCH: Final = 1000
"""Maximum number of keys in a DeleteObjects request of S3."""

# Of all generations of the format (`icefloe.format.generation`).
_CHUNK_PREFIXES: Final = ("chunks/", "c/")
_LIST_PAGE: Final = 1000
_CHECKED_LIST_ENTRIES: Final = 20

_MAX_PARTS: Final = 10_000
_MIN_PART_BYTES: Final = 8 * 1024 * 1024


class ObjectStorage(Storage):
    """A prefix of a bucket in an object store.

    Clients are opened on the first request, and shared in the process (`clients`). Unset
    ``settings`` have the defaults of object stores.
    """

    def __init__(self, place: Place, *, settings: StorageSettings | None = None) -> None:
        self._place: Final = place
        self._settings: Final = self.default_settings().merge(settings or StorageSettings())
        self._clients: Final = Clients(place, self._settings)
        self._path_prefix: Final = get_path_prefix(place)

    @property
    def url(self) -> str:
        return self._place.url

    @property
    def read_only(self) -> bool:
        return isinstance(self._place, S3Place) and self._place.read_only

    @property
    def place(self) -> Place:
        """The address of the storage."""
        return self._place

    @property
    def settings(self) -> StorageSettings:
        """The effective settings."""
        return self._settings

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self._place, settings=self._settings), ()

    def default_settings(self) -> StorageSettings:
        return OBJECT_STORE_DEFAULTS

    def with_settings(self, settings: StorageSettings) -> Self:
        return type(self)(self._place, settings=settings)

    def with_user_agent(self, user_agent: str) -> Self:
        return type(self)(with_user_agent(self._place, user_agent), settings=self._settings)

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        """Fetch an object or a range of it.

        One request; two for an empty range, and for `Last` on Azure. `Until` fetches the complete
        object, because HTTP has no such range. So does every range from a web server that ignores
        ranges.
        """
        validate_key(key)
        match byte_range:
            case Bounded(start, end) if start == end:
                return self._fetch_empty(key, byte_range)
            case Last(0):
                return self._fetch_empty(key, byte_range)
            case Last() if isinstance(self._place, AzurePlace):
                # Azure has no suffix ranges.
                byte_range = resolve(byte_range, self.head(key).size_bytes)
                if byte_range.start == byte_range.end:
                    return self._fetch_empty(key, byte_range)
        options = _make_range_options(byte_range)
        try:
            return self._call("read", key, lambda: self._fetch(key, options, byte_range, max_bytes))
        except RangeUnsatisfiableError:
            return self._fetch_empty(key, byte_range)
        except RangeIgnoredError:
            return self._call("read", key, lambda: self._fetch(key, None, byte_range, max_bytes))

    def get_if_changed(
        self, key: str, version: Version, *, max_bytes: int | None = None
    ) -> Fetched | None:
        """Fetch an object unless it still has a known version.

        One request, which a server that compares entity tags answers without the content.
        """
        validate_key(key)
        options: GetOptions | None = None
        if version.etag is not None:
            options = {"if_none_match": version.etag}

        def fetch() -> Fetched | None:
            try:
                result = obstore.get(self._reader, self._get_path(key), options=options)
            except NotModifiedError:
                return None
            if is_same_version(_make_info(key, result.meta).version, version):
                return None  # the server ignores the condition
            return self._receive(key, result, None, max_bytes)

        return self._call("read", key, fetch)

    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        """Fetch several ranges; ranges up to 1 MiB apart share a request, others are concurrent."""
        validate_key(key)
        plan = coalesce([part for part in ranges if part.start < part.end])
        starts = [request.start for request in plan.requests]
        ends = [request.end for request in plan.requests]
        try:
            responses = self._call(
                "read",
                key,
                lambda: obstore.get_ranges(
                    self._reader, self._get_path(key), starts=starts, ends=ends, coalesce=0
                ),
            )
        except RangeUnsatisfiableError:
            responses = []
        except RangeIgnoredError:
            content = memoryview(self.get(key).data)
            return [content[part.start : part.end] for part in _resolve_all(ranges, len(content))]
        # Servers silently truncate ranges at the end of the object.
        sizes = [request.end - request.start for request in plan.requests]
        too_short = [len(data) for data in responses] != sizes
        if too_short or len(plan.slices) < len(ranges):
            ranges = _resolve_all(ranges, self.head(key).size_bytes)
        if too_short:
            raise self._too_short_error(key)
        views = [memoryview(data) for data in responses]
        parts = (views[part.request][part.start : part.end] for part in plan.slices)
        return [next(parts) if part.start < part.end else b"" for part in ranges]

    def get_bytes(self, key: str, start: int, length: int) -> bytes | memoryview:
        return self.get(key, Bounded(start, start + length)).data

    async def get_bytes_async(self, key: str, start: int, length: int) -> bytes | memoryview:
        span = Bounded(start, start + length)
        return (await self.get_if_async(key, span, ReadCondition())).data

    def get_if(self, key: str, span: Bounded, condition: ReadCondition) -> Fetched:
        """Fetch a range of an object that must satisfy ``condition``; one request.

        Raises `PreconditionFailedError` if the server rejects the condition, and the errors of
        `get`. Used for virtual chunks: objects of the repository are read without conditions.
        """
        validate_key(key)
        if span.start == span.end:
            return self._fetch_empty(key, span)
        conditions = _make_condition_options(condition)
        ranged: GetOptions = {**conditions, "range": (span.start, span.end)}
        try:
            return self._call("read", key, lambda: self._fetch(key, ranged, span, None))
        except RangeUnsatisfiableError:
            return self._fetch_empty(key, span)
        except RangeIgnoredError:
            return self._call("read", key, lambda: self._fetch(key, conditions, span, None))

    async def get_if_async(self, key: str, span: Bounded, condition: ReadCondition) -> Fetched:
        """`get_if` without blocking the event loop."""
        validate_key(key)
        if span.start < span.end:
            conditions = _make_condition_options(condition)
            options: GetOptions = {**conditions, "range": (span.start, span.end)}
            with suppress(RangeUnsatisfiableError, RangeIgnoredError):
                return await self._call_async(
                    "read", key, lambda: self._fetch_async(key, options, span)
                )
        return await asyncio.to_thread(self.get_if, key, span, condition)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        """Write an object under the condition of ``mode``.

        One request, or a multipart upload from ``minimum_size_for_multipart_upload`` on. A
        conditional put is always one request, and another one reads the object back if it fails.
        `Fresh` is like `Overwrite`.
        """
        validate_key(key)
        self._require_writable(key)
        match mode:
            case Create() if self._settings.effective_unsafe_use_conditional_create:
                return self._put_conditionally(key, data, mode)
            case UpdateIfMatch() if self._settings.effective_unsafe_use_conditional_update:
                return self._put_conditionally(key, data, mode)
            case _:
                return self._overwrite(key, data)

    async def put_async(self, key: str, data: bytes | memoryview) -> Version:
        validate_key(key)
        self._require_writable(key)
        content, options = _cast_to_bytes(data), self._make_put_options(key, data)
        path = self._get_path(key)
        result = await self._call_async(
            "write", key, lambda: obstore.put_async(self._writer, path, content, **options)
        )
        return _make_version(result)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects: 1000 per request on S3, 256 on Azure, otherwise one."""
        remaining = iter(keys)
        while batch := list(islice(remaining, _DELETE_BATCH)):
            for key in batch:
                validate_key(key)
            self._require_writable(batch[0])
            try:
                self._delete(batch)
            except ObjectNotFoundError:
                # Azure and GCS stop at the first missing object.
                for key in batch:
                    with suppress(ObjectNotFoundError):
                        self._delete([key])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below ``prefix``, 1000 per request.

        If the service guarantees the order (AWS, GCS), objects are streamed. Otherwise the listing
        is held in memory and sorted: some S3-compatible servers, and Azure with hierarchical
        namespaces, list objects in the order of a directory tree.
        """
        validate_list_prefix(prefix)
        match self._place:
            case S3Place(lists_in_key_order=True) | GcsPlace():
                return self._check_order(prefix, self._iter_pages(prefix))
            case _:
                # Code points sort like their UTF-8 bytes.
                return iter(sorted(self._iter_pages(prefix), key=lambda info: info.key))

    def list_first(self, prefix: str, limit: int) -> Sequence[ObjectInfo]:
        """List the first objects below ``prefix``.

        One request, except for S3 directory buckets and WebDAV, which have no order at all.
        """
        validate_list_prefix(prefix)
        match self._place:
            case S3Place(is_directory_bucket=False) | GcsPlace() | AzurePlace():
                # obstore requests pages of the service's size, and the next one only if needed.
                # The order of more entries than `limit` is checked, in case it is not that of keys.
                chunk_size = max(limit, _CHECKED_LIST_ENTRIES)
                entries = next(self._iter_chunks(prefix, chunk_size), [])
                return list(self._check_order(prefix, iter(entries)))[:limit]
            case _:
                return super().list_first(prefix, limit)

    def head(self, key: str) -> ObjectInfo:
        validate_key(key)
        path = self._get_path(key)
        return self._call("read", key, lambda: _make_info(key, obstore.head(self._reader, path)))

    def copy(self, source: str, target: str) -> None:
        validate_key(source)
        validate_key(target)
        self._require_writable(target)
        paths = self._get_path(source), self._get_path(target)
        self._call("copy", source, lambda: obstore.copy(self._writer, *paths))

    def copy_from(self, source: Storage, source_key: str, key: str) -> bool:
        """Copy an object on the server, from a prefix of the same bucket."""
        if not isinstance(source, ObjectStorage) or not is_same_bucket(self._place, source.place):
            return False
        validate_key(source_key)
        validate_key(key)
        self._require_writable(key)
        paths = source._get_path(source_key), self._get_path(key)  # noqa: SLF001 - same class
        try:
            self._call("copy", source_key, lambda: obstore.copy(self._writer, *paths))
        except ObjectNotFoundError:
            raise
        except StorageError as error:
            # Such as objects above 5 GB in S3, or a server without this request.
            _LOGGER.debug("%s: cannot copy on the server: %s", self._get_url(key), error)
            return False
        return True

    @property
    def _reader(self) -> ObjectStore:
        require_threads(self.url)
        return self._clients.reader

    @property
    def _writer(self) -> ObjectStore:
        require_threads(self.url)
        return self._clients.writer

    def _get_path(self, key: str) -> str:
        """Return the path of a key in the bucket."""
        return self._path_prefix + key

    def _get_url(self, key: str) -> str:
        return f"{self.url}/{key}"

    def _too_short_error(self, key: str) -> StorageError:
        return StorageError(f"{self._get_url(key)}: the server returned fewer bytes than requested")

    def _require_writable(self, key: str) -> None:
        if self.read_only:
            raise ReadOnlyError(f"{self._get_url(key)}: the storage is read-only")

    def _call(self, operation: str, key: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except BaseException as error:
            if not is_obstore_failure(error):
                raise
            failure = error
        # Raised outside the handler: obstore's error, which may contain a signed URL, must not
        # become the context of the new error.
        raise translate_error(failure, operation, self._get_url(key)) from redact_error(failure)

    async def _call_async(self, operation: str, key: str, request: Callable[[], Awaitable[T]]) -> T:
        try:
            return await request()
        except BaseException as error:
            if not is_obstore_failure(error):
                raise
            failure = error
        raise translate_error(failure, operation, self._get_url(key)) from redact_error(failure)

    def _fetch(
        self,
        key: str,
        options: GetOptions | None,
        byte_range: ByteRange | None,
        max_bytes: int | None,
    ) -> Fetched:
        result = obstore.get(self._reader, self._get_path(key), options=options)
        return self._receive(key, result, byte_range, max_bytes)

    def _receive(
        self, key: str, result: GetResult, byte_range: ByteRange | None, max_bytes: int | None
    ) -> Fetched:
        info = _make_info(key, result.meta)
        # Raises for a range past the end, which servers truncate.
        span = resolve(byte_range, info.size_bytes)
        # So far only the headers have been received.
        require_at_most(max_bytes, span, self._get_url(key))
        start, end = result.range
        content = _Content(self._get_url(key), end - start)
        for part in result.stream(min_chunk_size=max(end - start, 1)):
            content.append(part)
        data = content.join()[span.start - start : span.end - start]
        if len(data) != span.end - span.start:
            raise self._too_short_error(key)
        return Fetched(data, info)

    async def _fetch_async(self, key: str, options: GetOptions, span: Bounded) -> Fetched:
        result = await obstore.get_async(self._reader, self._get_path(key), options=options)
        info = _make_info(key, result.meta)
        # As in `_fetch`, raises before the bytes are received.
        resolve(span, info.size_bytes)
        start, end = result.range
        content = _Content(self._get_url(key), end - start)
        async for part in result.stream(min_chunk_size=max(end - start, 1)):
            content.append(part)
        data = content.join()[span.start - start : span.end - start]
        if len(data) != span.end - span.start:
            raise self._too_short_error(key)
        return Fetched(data, info)

    def _fetch_empty(self, key: str, byte_range: ByteRange | None) -> Fetched:
        """Return an empty range, or raise the error for a range that the object does not have."""
        info = self.head(key)
        span = resolve(byte_range, info.size_bytes)
        if span.start != span.end:
            raise StorageError(f"{self._get_url(key)}: the server rejected {byte_range}")
        return Fetched(b"", info)

    def _overwrite(self, key: str, data: bytes | memoryview) -> Version:
        content, options = _cast_to_bytes(data), self._make_put_options(key, data)
        path = self._get_path(key)
        result = self._call(
            "write", key, lambda: obstore.put(self._writer, path, content, **options)
        )
        return _make_version(result)

    def _make_put_options(self, key: str, data: bytes | memoryview) -> dict[str, Any]:
        minimum = self._settings.effective_minimum_size_for_multipart_upload
        size = memoryview(data).nbytes
        return {
            "attributes": self._make_attributes(key),
            "use_multipart": size >= max(minimum, _MIN_PART_BYTES),
            "chunk_size": max(_MIN_PART_BYTES, -(-size // _MAX_PARTS)),
        }

    def _put_conditionally(
        self, key: str, data: bytes | memoryview, condition: Create | UpdateIfMatch
    ) -> Version:
        uses_metadata = self._settings.effective_unsafe_use_metadata
        write_id = str(uuid.uuid4()) if uses_metadata else None
        attributes = self._make_attributes(key)
        if write_id is not None:
            attributes[WRITE_ID_ATTRIBUTE] = write_id
        where, mode, content = self._get_url(key), _make_put_mode(condition), _cast_to_bytes(data)
        path = self._get_path(key)

        def send() -> Version:
            require_threads(self.url)
            client = self._clients.conditional
            try:
                return _make_version(
                    obstore.put(client, path, content, attributes=attributes, mode=mode)
                )
            except BaseException as error:
                if not is_obstore_failure(error):
                    raise
                failure = error
            raise classify_put_failure(failure, where) from redact_error(failure)

        def read_back() -> CurrentObject | None:
            try:
                return self._call("read", key, lambda: self._read_back(key))
            except ObjectNotFoundError:
                return None

        retries = self._settings.effective_retries
        policy = RetryPolicy(
            max_attempts=retries.effective_max_tries,
            initial_backoff_s=retries.effective_initial_backoff_ms / 1000,
            max_backoff_s=retries.effective_max_backoff_ms / 1000,
        )
        return put_conditionally(
            where, condition, write_id, send=send, read_back=read_back, policy=policy
        )

    def _read_back(self, key: str) -> CurrentObject:
        result = obstore.get(self._reader, self._get_path(key), options={"head": True})
        version = Version(etag=result.meta["e_tag"], generation=result.meta["version"])
        return CurrentObject(version, result.attributes.get(WRITE_ID_ATTRIBUTE))

    def _make_attributes(self, key: str) -> Attributes:
        storage_class = (
            self._settings.effective_chunks_storage_class
            if key.startswith(_CHUNK_PREFIXES)
            else self._settings.effective_metadata_storage_class
        )
        return {} if storage_class is None else {"Storage-Class": storage_class}

    def _delete(self, keys: Sequence[str]) -> None:
        paths = list(map(self._get_path, keys))
        self._call("delete", keys[0], lambda: obstore.delete(self._writer, paths))

    def _iter_pages(self, prefix: str) -> Iterator[ObjectInfo]:
        return chain.from_iterable(self._iter_chunks(prefix, _LIST_PAGE))

    def _iter_chunks(self, prefix: str, chunk_size: int) -> Iterator[Sequence[ObjectInfo]]:
        path = self._get_path(prefix)
        chunks = self._call(
            "list",
            prefix,
            lambda: iter(obstore.list(self._reader, path or None, chunk_size=chunk_size)),
        )
        start = len(self._path_prefix)
        while chunk := self._call("list", prefix, lambda: next(chunks, None)):
            yield [_make_info(meta["path"][start:], meta) for meta in chunk]

    def _check_order(self, prefix: str, infos: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        last = ""
        for info in infos:
            if info.key <= last:
                # Such as S3 directory buckets. Callers that rely on the order would miss objects.
                raise StorageError(
                    f"{self._get_url(prefix)}: the listing is not in key order; pass endpoint_url "
                    "to sort it"
                )
            last = info.key
            yield info


class HttpStorage(ObjectStorage):
    """The files below a URL of a web server, read-only."""

    @property
    def read_only(self) -> bool:
        return True

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below ``prefix``; requires a WebDAV server."""
        try:
            return super().list(prefix)
        except StorageError as error:
            raise StorageError(
                f"{self._get_url(prefix)}: the web server cannot list objects; open the repository "
                "in its object store instead",
                kind=ErrorKind.UNIMPLEMENTED,
            ) from error


class _Content:
    """The parts of a response, which must not exceed the range that its headers announce."""

    def __init__(self, where: str, max_bytes: int) -> None:
        self._where, self._remaining = where, max_bytes
        self._parts: list[bytes | Bytes] = []

    def append(self, part: bytes | Bytes) -> None:
        self._remaining -= len(part)
        if self._remaining < 0:
            raise StorageError(f"{self._where}: the server returned more bytes than requested")
        self._parts.append(part)

    def join(self) -> memoryview:
        return memoryview(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))


def _resolve_all(ranges: Sequence[Bounded], size_bytes: int) -> list[Bounded]:
    return [resolve(byte_range, size_bytes) for byte_range in ranges]


def _make_info(key: str, meta: ObjectMeta) -> ObjectInfo:
    etag = meta["e_tag"]
    if etag is not None and not etag.endswith('"'):
        etag = f'"{etag}"'  # listings of Azure omit the quotes
    version = Version(etag=etag, generation=meta["version"])
    return ObjectInfo(key, meta["size"], meta["last_modified"], version)


def _make_version(result: PutResult) -> Version:
    return Version(etag=result["e_tag"], generation=result["version"])


def _cast_to_bytes(data: bytes | memoryview) -> bytes | memoryview:
    # obstore accepts one-dimensional buffers of bytes only.
    return data if isinstance(data, bytes) else memoryview(data).cast("B")


def _make_range_options(byte_range: ByteRange | None) -> GetOptions | None:
    match byte_range:
        case None | Until() | From(0):
            return None
        case Bounded(start, end):
            return {"range": (start, end)}
        case From(start):
            return {"range": {"offset": start}}
        case Last(length):
            return {"range": {"suffix": length}}


def _make_condition_options(condition: ReadCondition) -> GetOptions:
    options: GetOptions = {}
    if condition.if_match is not None:
        options["if_match"] = condition.if_match
    if condition.if_unmodified_since is not None:
        options["if_unmodified_since"] = condition.if_unmodified_since
    return options


def _make_put_mode(condition: Create | UpdateIfMatch) -> ObstorePutMode:
    match condition:
        case Create():
            return "create"
        case UpdateIfMatch(Version(etag, generation)):
            mode: UpdateVersion = {}
            if etag is not None:
                mode["e_tag"] = etag
            if generation is not None:
                mode["version"] = generation
            if not mode:
                raise InvalidInputError("expected a version to update, got an empty version")
            return mode
