"""The object stores of the clouds, and web servers, through the Rust library obstore.

The only module that knows obstore. It turns a `Place` into obstore's clients, the calls of the
interface into requests, and obstore's errors into ours; `conditional_put` decides what a failed
conditional put means.

Three clients serve one place: one that reads and one that writes, which repeat failed requests on
their own, and one for conditional puts, which does not, so that every answer is seen.

What obstore 0.12 cannot express, and what happens instead:

- ``concurrency`` of the settings: one get is one request here; many go out at once because callers
  use many threads.
- ``operation_timeout_ms`` bounds the time in which requests are repeated, not the last one.
- AWS profiles and SSO (``~/.aws/config``): credentials from the environment are variables, web
  identity, container and instance roles. For profiles pass ``get_credentials``.
- Headers given by the user go along unsigned, so S3 refuses ``x-amz-`` ones.
- CRC32, CRC32C and SHA-1 checksums of uploads; keys that start with ``/`` (``legacy_rooted_keys``).
- obstore's threads do not survive a fork: requests in the child would wait forever. They raise.
"""

from __future__ import annotations

import os
import re
import threading
import uuid
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from icefloe.errors import (
    ErrorKind,
    IcefloeError,
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
    ConditionRefusedError,
    PresentObject,
    RequestNotSentError,
    ResponseLostError,
    Tries,
    put_conditionally,
)
from icefloe.storage.credentials import (
    AnyAzureRefreshableCredential,
    AzureCredentials,
    AzureRefreshableCredential,
    AzureStaticCredentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
    S3Credentials,
    S3StaticCredentials,
)
from icefloe.storage.interface import (
    Create,
    Fetched,
    ObjectInfo,
    Overwrite,
    PutMode,
    Storage,
    Update,
    Version,
)
from icefloe.storage.keys import validate_key, validate_list_prefix
from icefloe.storage.places import (
    AzurePlace,
    ChecksumAlgorithm,
    GcsPlace,
    HttpPlace,
    Place,
    S3Place,
)
from icefloe.storage.refreshing import RefreshingCredential

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from obstore import Attributes, GetOptions, ObjectMeta, UpdateVersion
    from obstore import PutMode as ObstorePutMode
    from obstore.store import (
        AzureConfig,
        AzureCredential,
        ClientConfig,
        GCSConfig,
        GCSCredential,
        ObjectStore,
        RetryConfig,
        S3Config,
        S3Credential,
    )

T = TypeVar("T")

_DELETE_BATCH: Final = 1000
"""As many as one DeleteObjects request of S3 takes."""

_LIST_PAGE: Final = 1000

_MAX_PARTS: Final = 10_000
_MIN_PART_BYTES: Final = 8 * 1024 * 1024

_DEFAULT_ATTEMPT_TIMEOUT: Final = timedelta(minutes=5)
"""Enough for a part of 100 MiB over a slow line; a stalled one is noticed by the read timeout."""

_DEFAULT_READ_TIMEOUT: Final = timedelta(seconds=60)

_DEFAULT_RETRY_TIMEOUT: Final = timedelta(minutes=3)

_STATUS: Final = re.compile(r"status code: (\d{3})")
_QUERY: Final = re.compile(r"\?[^\s,\"']*")

_OBSTORE_ERRORS: Final = (BaseError, OSError, ValueError, TypeError)
"""Everything that obstore raises; a missing object, for one, is a `FileNotFoundError`."""


@dataclass(slots=True)
class _ObstoreRuntime:
    """Whether obstore's threads run, and whether they run in this process."""

    in_use: bool = False
    lost_by_fork: bool = False

    def note_fork(self) -> None:
        self.lost_by_fork = self.in_use


_runtime: Final = _ObstoreRuntime()
os.register_at_fork(after_in_child=_runtime.note_fork)


class ObjectStorage(Storage):
    """A prefix of a bucket in an object store.

    Clients are made at the first request, and again after unpickling.

    Parameters
    ----------
    place
        Where it is.
    settings
        What is unset takes the defaults of object stores.
    """

    def __init__(self, place: Place, *, settings: StorageSettings | None = None) -> None:
        self._place: Final = place
        self._settings: Final = self.default_settings().merge(settings or StorageSettings())
        self._clients: _Clients | None = None
        self._lock: Final = threading.Lock()

    @property
    def url(self) -> str:
        """The place as a URL without credentials."""
        return self._place.url

    @property
    def read_only(self) -> bool:
        """Whether the place takes no writes."""
        return isinstance(self._place, S3Place) and self._place.read_only

    @property
    def place(self) -> Place:
        """Where it is."""
        return self._place

    @property
    def settings(self) -> StorageSettings:
        """What applies."""
        return self._settings

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), self._place, self._settings)

    def default_settings(self) -> StorageSettings:
        """Tell the defaults of object stores."""
        return OBJECT_STORE_DEFAULTS

    def with_settings(self, settings: StorageSettings) -> Self:
        """Make a storage of the same place with other settings, and clients of its own."""
        return type(self)(self._place, settings=settings)

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        """Fetch an object or a range of it.

        One request, with three exceptions. An empty range, and on Azure the last bytes, take two.
        All but the last bytes (`Until`) are cut from the whole object, because no protocol can ask
        for them. A web server that ignores ranges sends the whole object.
        """
        validate_key(key)
        match byte_range:
            case Bounded(start, end) if start == end:
                return self._empty(key, byte_range)
            case Last(0):
                return self._empty(key, byte_range)
            case Last() if isinstance(self._place, AzurePlace):
                # One more request: Azure has no ranges that count from the end.
                byte_range = resolve(byte_range, self.head(key).size_bytes)
                if byte_range.start == byte_range.end:
                    return self._empty(key, byte_range)
        options = _range_option(byte_range)
        try:
            return self._call("read", key, lambda: self._fetch(key, options, byte_range))
        except _RangeUnsatisfiableError:
            return self._empty(key, byte_range)
        except _RangeIgnoredError:
            return self._call("read", key, lambda: self._fetch(key, None, byte_range))

    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        """Fetch several ranges of one object; those less than 1 MiB apart share a request.

        Ranges that lie further apart are requested at the same time.
        """
        validate_key(key)
        plan = coalesce([one for one in ranges if one.start < one.end])
        starts, ends = [one.start for one in plan.requests], [one.end for one in plan.requests]
        try:
            found = self._call(
                "read",
                key,
                lambda: obstore.get_ranges(self._reader, key, starts=starts, ends=ends, coalesce=0),
            )
        except _RangeUnsatisfiableError:
            found = []
        except _RangeIgnoredError:
            whole = memoryview(self.get(key).data)
            return [whole[one.start : one.end] for one in _within(ranges, len(whole))]
        # A server cuts ranges off at the end of the object and says nothing.
        too_short = [len(one) for one in found] != [one.end - one.start for one in plan.requests]
        if too_short or len(plan.slices) < len(ranges):
            ranges = _within(ranges, self.head(key).size_bytes)
        if too_short:
            raise StorageError(f"{self._where(key)}: fewer bytes came than were asked for")
        answers = [memoryview(one) for one in found]
        parts = (answers[one.request][one.start : one.end] for one in plan.slices)
        return [next(parts) if one.start < one.end else b"" for one in ranges]

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        """Write an object under the condition of ``mode``.

        One request, or several parts from ``minimum_size_for_multipart_upload`` on. A conditional
        put is always one request, and takes a second one to look at what is there when it fails.
        """
        validate_key(key)
        self._require_writable(key)
        match mode:
            case Create() if self._settings.effective_unsafe_use_conditional_create:
                return self._put_conditionally(key, data, mode)
            case Update() if self._settings.effective_unsafe_use_conditional_update:
                return self._put_conditionally(key, data, mode)
            case _:
                return self._overwrite(key, data)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand per request on S3 and 256 on Azure, else one by one."""
        rest = iter(keys)
        while batch := list(islice(rest, _DELETE_BATCH)):
            for key in batch:
                validate_key(key)
            self._require_writable(batch[0])
            try:
                self._call("delete", batch[0], lambda batch=batch: self._delete(batch))  # type: ignore[misc]
            except ObjectNotFoundError:
                # Azure and GCS stop at the first key that is absent.
                for key in batch:
                    self._delete_one(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below ``prefix``, a thousand per request.

        Where the provider promises the order (AWS, GCS), the listing is a stream. Elsewhere it is
        held in memory and sorted: some S3 servers, and Azure with hierarchical namespaces, list
        like a tree of directories.
        """
        validate_list_prefix(prefix)
        match self._place:
            case S3Place(lists_in_key_order=True) | GcsPlace():
                return self._checked_order(prefix, self._listed(prefix))
            case _:
                # Code points compare like their UTF-8 bytes.
                return iter(sorted(self._listed(prefix), key=lambda info: info.key))

    def head(self, key: str) -> ObjectInfo:
        """Tell what is known of one object; one request."""
        validate_key(key)
        return self._call("read", key, lambda: _info(key, obstore.head(self._reader, key)))

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the object store, replacing what is at ``target``."""
        validate_key(source)
        validate_key(target)
        self._require_writable(target)
        self._call("copy", source, lambda: obstore.copy(self._writer, source, target))

    @property
    def _reader(self) -> ObjectStore:
        return self._opened().reader

    @property
    def _writer(self) -> ObjectStore:
        return self._opened().writer

    def _opened(self) -> _Clients:
        if _runtime.lost_by_fork:
            raise StorageError(
                f"{self.url}: this process was forked from one that had used an object store, and "
                "the threads that send requests stayed there; start processes with the 'spawn' or "
                "'forkserver' method",
                kind=ErrorKind.STORAGE_CONFIG,
            )
        clients = self._clients
        if clients is None:
            with self._lock:
                clients = self._clients
                if clients is None:
                    clients = self._clients = _open(self._place, self._settings)
        _runtime.in_use = True
        return clients

    def _where(self, key: str) -> str:
        return f"{self.url}/{key}"

    def _require_writable(self, key: str) -> None:
        if self.read_only:
            raise ReadOnlyError(f"{self._where(key)}: the storage was opened for reading only")

    def _call(self, doing: str, key: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except _OBSTORE_ERRORS as error:
            if isinstance(error, IcefloeError):
                raise
            failure = error
        # Raised outside of the handler: obstore's own text, which can quote a signed URL, must
        # not come along as the context of the new error.
        raise _translated(failure, doing, self._where(key)) from _redacted(failure)

    def _fetch(self, key: str, options: GetOptions | None, byte_range: ByteRange | None) -> Fetched:
        result = obstore.get(self._reader, key, options=options)
        info = _info(key, result.meta)
        # Bytes that are missing at the end are the caller's error; servers do not say so.
        wanted = resolve(byte_range, info.size_bytes)
        start, _ = result.range
        data = memoryview(result.bytes())[wanted.start - start : wanted.end - start]
        if len(data) != wanted.end - wanted.start:
            raise StorageError(f"{self._where(key)}: fewer bytes came than were asked for")
        return Fetched(data, info)

    def _empty(self, key: str, byte_range: ByteRange | None) -> Fetched:
        """Answer an empty range, or say what is wrong with the range, from the size alone."""
        info = self.head(key)
        wanted = resolve(byte_range, info.size_bytes)
        if wanted.start != wanted.end:
            raise StorageError(f"{self._where(key)}: the server refused {byte_range}")
        return Fetched(b"", info)

    def _overwrite(self, key: str, data: bytes | memoryview) -> Version:
        minimum = self._settings.effective_minimum_size_for_multipart_upload
        size = memoryview(data).nbytes
        result = self._call(
            "write",
            key,
            lambda: obstore.put(
                self._writer,
                key,
                _as_bytes(data),
                attributes=self._attributes(key),
                use_multipart=size >= max(minimum, _MIN_PART_BYTES),
                chunk_size=max(_MIN_PART_BYTES, -(-size // _MAX_PARTS)),
            ),
        )
        return Version(etag=result["e_tag"], generation=result["version"])

    def _put_conditionally(
        self, key: str, data: bytes | memoryview, condition: Create | Update
    ) -> Version:
        uses_metadata = self._settings.effective_unsafe_use_metadata
        write_id = str(uuid.uuid4()) if uses_metadata else None
        attributes = self._attributes(key)
        if write_id is not None:
            attributes[WRITE_ID_ATTRIBUTE] = write_id
        where, mode, content = self._where(key), _mode(condition), _as_bytes(data)

        def send() -> Version:
            client = self._opened().conditional
            try:
                result = obstore.put(client, key, content, attributes=attributes, mode=mode)
                return Version(etag=result["e_tag"], generation=result["version"])
            except _OBSTORE_ERRORS as error:
                failure = error
            raise _outcome_of_put(failure, where) from _redacted(failure)

        def look() -> PresentObject | None:
            try:
                return self._call("read", key, lambda: self._look(key))
            except ObjectNotFoundError:
                return None

        retries = self._settings.effective_retries
        tries = Tries(
            most=retries.effective_max_tries,
            initial_backoff_s=retries.effective_initial_backoff_ms / 1000,
            max_backoff_s=retries.effective_max_backoff_ms / 1000,
        )
        return put_conditionally(where, condition, write_id, send=send, look=look, tries=tries)

    def _look(self, key: str) -> PresentObject:
        result = obstore.get(self._reader, key, options={"head": True})
        version = Version(etag=result.meta["e_tag"], generation=result.meta["version"])
        return PresentObject(version, result.attributes.get(WRITE_ID_ATTRIBUTE))

    def _attributes(self, key: str) -> Attributes:
        storage_class = (
            self._settings.effective_chunks_storage_class
            if key.startswith("chunks/")
            else self._settings.effective_metadata_storage_class
        )
        return {} if storage_class is None else {"Storage-Class": storage_class}

    def _delete(self, keys: Sequence[str]) -> None:
        obstore.delete(self._writer, keys)

    def _delete_one(self, key: str) -> None:
        try:
            self._call("delete", key, lambda: self._delete([key]))
        except ObjectNotFoundError:
            return

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        pages = self._call(
            "list",
            prefix,
            lambda: iter(obstore.list(self._reader, prefix or None, chunk_size=_LIST_PAGE)),
        )
        while page := self._call("list", prefix, lambda: next(pages, None)):
            for meta in page:
                yield _info(meta["path"], meta)

    def _checked_order(self, prefix: str, infos: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        last = ""
        for info in infos:
            if info.key <= last:
                # An S3 directory bucket, for one. Who relies on the order must not miss objects.
                raise StorageError(
                    f"{self._where(prefix)}: the listing is not in the order of the keys; give "
                    "endpoint_url, and it will be sorted here"
                )
            last = info.key
            yield info


class HttpStorage(ObjectStorage):
    """A repository that a web server offers for reading."""

    @property
    def read_only(self) -> bool:
        """Always: a web server is asked for objects, never given any."""
        return True

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below ``prefix``, which only servers that speak WebDAV can."""
        try:
            return super().list(prefix)
        except StorageError as error:
            raise StorageError(
                f"{self._where(prefix)}: this web server cannot list what it has; open the "
                "repository where it is stored instead",
                kind=ErrorKind.OBJECT_STORE,
            ) from error


def _rebuilt(kind: type[ObjectStorage], place: Place, settings: StorageSettings) -> ObjectStorage:
    return kind(place, settings=settings)


def _within(ranges: Sequence[Bounded], size_bytes: int) -> list[Bounded]:
    return [resolve(one, size_bytes) for one in ranges]


def _info(key: str, meta: ObjectMeta) -> ObjectInfo:
    etag = meta["e_tag"]
    if etag is not None and not etag.endswith('"'):
        etag = f'"{etag}"'  # listings of Azure leave the quotes out, and versions must compare
    version = Version(etag=etag, generation=meta["version"])
    return ObjectInfo(key, meta["size"], meta["last_modified"], version)


def _as_bytes(data: bytes | memoryview) -> bytes | memoryview:
    # obstore takes buffers of one dimension of bytes only.
    return data if isinstance(data, bytes) else memoryview(data).cast("B")


def _range_option(byte_range: ByteRange | None) -> GetOptions | None:
    match byte_range:
        case None | Until() | From(0):
            return None
        case Bounded(start, end):
            return {"range": (start, end)}
        case From(start):
            return {"range": {"offset": start}}
        case Last(length):
            return {"range": {"suffix": length}}


def _mode(condition: Create | Update) -> ObstorePutMode:
    match condition:
        case Create():
            return "create"
        case Update(Version(etag, generation)):
            mode: UpdateVersion = {}
            if etag is not None:
                mode["e_tag"] = etag
            if generation is not None:
                mode["version"] = generation
            if not mode:
                raise InvalidInputError("an update needs the version that was read before")
            return mode


# ---------------------------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------------------------


class _RangeUnsatisfiableError(StorageError):
    """The object ends before the range begins."""


class _RangeIgnoredError(StorageError):
    """The server sent the whole object instead of the range."""


def _status(error: BaseException) -> int | None:
    found = _STATUS.search(str(error))
    return None if found is None else int(found.group(1))


def _short(error: BaseException) -> str:
    """Say what obstore said, without its debug output and without the queries of URLs."""
    text = str(error).partition("\n\nDebug source")[0]
    return _QUERY.sub("?...", text)


def _redacted(error: BaseException) -> BaseException:
    """Copy an error of obstore without what could be a secret, to be the cause of ours."""
    kind = type(error) if isinstance(error, BaseError) else BaseError
    return kind(_short(error))


def _translated(error: BaseException, doing: str, where: str) -> IcefloeError:
    text = _short(error)
    match error:
        case FileNotFoundError() if "NoSuchBucket" in text or "ContainerNotFound" in text:
            return StorageError(
                f"{where}: there is no such bucket or container", kind=ErrorKind.STORAGE_CONFIG
            )
        case FileNotFoundError():
            return ObjectNotFoundError(f"{where}: no such object")
        case PermissionDeniedError() | UnauthenticatedError():
            return StorageError(
                f"{where}: not allowed to {doing} it; check the credentials and what they permit: "
                f"{text}",
                kind=ErrorKind.OBJECT_STORE,
            )
        case NotSupportedError() if "Range request not supported" in text:
            return _RangeIgnoredError(f"{where}: {text}")
        case _ if _status(error) == 416 or "Wanted range starting at" in text:
            return _RangeUnsatisfiableError(f"{where}: {text}")
        case _:
            return StorageError(
                f"{where}: could not {doing} it: {text}", kind=ErrorKind.OBJECT_STORE
            )


def _outcome_of_put(error: BaseException, where: str) -> Exception:
    """Tell what a failed conditional put says about whether it was carried out."""
    text, status = _short(error), _status(error)
    if isinstance(error, AlreadyExistsError | PreconditionError) or status in {409, 412}:
        return ConditionRefusedError(text)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError | FileNotFoundError):
        return _translated(error, "write", where)
    if status is not None:
        # 429 is sent instead of an answer. A 5xx can come from a gateway that lost the answer.
        if status == 429:
            return RequestNotSentError(text)
        return ResponseLostError(text) if status >= 500 else _translated(error, "write", where)
    if "kind: Connect," in str(error):
        return RequestNotSentError(text)
    if "HTTP error" in text and "builder error" not in text:
        return ResponseLostError(text)
    return _translated(error, "write", where)


# ---------------------------------------------------------------------------------------------
# Clients
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Clients:
    reader: ObjectStore
    writer: ObjectStore
    conditional: ObjectStore


def _open(place: Place, settings: StorageSettings) -> _Clients:
    try:
        return _open_unchecked(place, settings)
    except _OBSTORE_ERRORS as error:
        if isinstance(error, IcefloeError):
            raise
        failure = error
    raise InvalidInputError(
        f"{place.url}: the options do not fit: {_short(failure)}", kind=ErrorKind.STORAGE_CONFIG
    ) from _redacted(failure)


def _open_unchecked(place: Place, settings: StorageSettings) -> _Clients:
    repeated = _retry_config(settings)
    once: RetryConfig = {**repeated, "max_retries": 0}
    match place:
        case S3Place(headers=headers):
            connect_s3 = _s3_connector(place, settings)
            return _Clients(
                reader=connect_s3(headers.reading, repeated),
                writer=connect_s3(headers.writing, repeated),
                conditional=connect_s3(headers.writing, once),
            )
        case GcsPlace(headers=headers):
            connect_gcs = _gcs_connector(place, settings)
            return _Clients(
                reader=connect_gcs(headers.reading, repeated),
                writer=connect_gcs(headers.writing, repeated),
                conditional=connect_gcs(headers.writing, once),
            )
        case AzurePlace():
            connect_azure = _azure_connector(place, settings)
            both = connect_azure(repeated)
            return _Clients(reader=both, writer=both, conditional=connect_azure(once))
        case HttpPlace():
            options = _client_config(settings, place.headers)
            options["allow_http"] = place.base_url.startswith("http:")
            # What a user may set here is for obstore to judge, names and values alike.
            for name, value in place.options.items():
                options[name] = value  # type: ignore[literal-required]
            only = HTTPStore(place.base_url, client_options=options, retry_config=repeated)
            return _Clients(reader=only, writer=only, conditional=only)


def _retry_config(settings: StorageSettings) -> RetryConfig:
    retries = settings.effective_retries
    timeout_ms = settings.effective_timeouts.operation_timeout_ms
    return {
        "max_retries": retries.effective_max_tries - 1,
        "backoff": {
            "init_backoff": timedelta(milliseconds=retries.effective_initial_backoff_ms),
            "max_backoff": timedelta(milliseconds=retries.effective_max_backoff_ms),
            "base": 2,
        },
        "retry_timeout": _milliseconds(timeout_ms, _DEFAULT_RETRY_TIMEOUT),
    }


def _client_config(
    settings: StorageSettings,
    headers: Mapping[str, str],
    *,
    read_timeout: timedelta = _DEFAULT_READ_TIMEOUT,
) -> ClientConfig:
    timeouts = settings.effective_timeouts
    config: ClientConfig = {
        "timeout": _milliseconds(timeouts.operation_attempt_timeout_ms, _DEFAULT_ATTEMPT_TIMEOUT),
        "read_timeout": _milliseconds(timeouts.read_timeout_ms, read_timeout),
    }
    if timeouts.connect_timeout_ms is not None:
        config["connect_timeout"] = timedelta(milliseconds=timeouts.connect_timeout_ms)
    if headers:
        config["default_headers"] = dict(headers)
    return config


def _milliseconds(value: int | None, default: timedelta) -> timedelta:
    return default if value is None else timedelta(milliseconds=value)


def _s3_connector(
    place: S3Place, settings: StorageSettings
) -> Callable[[Mapping[str, str], RetryConfig], S3Store]:
    config: S3Config = {"virtual_hosted_style_request": place.virtual_hosted}
    if place.region is not None:
        config["region"] = place.region
    if place.endpoint_url is not None:
        config["endpoint"] = place.endpoint_url
    if place.requester_pays:
        config["request_payer"] = True
    match place.checksum_algorithm:
        case None:
            pass
        case ChecksumAlgorithm.Sha256:
            config["checksum_algorithm"] = "SHA256"
        case ChecksumAlgorithm.Crc64Nvme:
            config["checksum_algorithm"] = "CRC64NVME"
        case other:
            raise InvalidInputError(
                f"uploads with {other.name} checksums are not supported: use Sha256 or Crc64Nvme",
                kind=ErrorKind.STORAGE_CONFIG,
            )
    provider: Callable[[], S3Credential] | None = None
    match place.credentials:
        case S3Credentials.FromEnv():
            pass
        case S3Credentials.Anonymous():
            config["skip_signature"] = True
        case S3Credentials.Static(credentials):
            # By way of a provider, so that no variable of the environment, such as a session
            # token, gets mixed with the given keys.
            provider = _S3Provider(lambda: credentials)
        case S3Credentials.Refreshable(pickled_function, current):
            refreshing = RefreshingCredential(pickled_function, current, (S3StaticCredentials,))
            provider = _S3Provider(refreshing.get)
    seconds = place.network_stream_timeout_seconds
    read_timeout = _DEFAULT_READ_TIMEOUT if seconds is None else timedelta(seconds=seconds)

    def connect(headers: Mapping[str, str], retry_config: RetryConfig) -> S3Store:
        client = _client_config(settings, headers, read_timeout=read_timeout)
        if place.allow_http:
            client["allow_http"] = True
        return S3Store(
            place.bucket,
            prefix=place.prefix or None,
            config=config,
            client_options=client,
            retry_config=retry_config,
            credential_provider=provider,
        )

    return connect


class _S3Provider:
    """Gives obstore S3 credentials whenever it asks, which is at least before they expire."""

    def __init__(self, get: Callable[[], S3StaticCredentials]) -> None:
        self._get = get

    def __call__(self) -> S3Credential:
        credentials = self._get()
        return {
            "access_key_id": credentials.access_key_id,
            "secret_access_key": credentials.secret_access_key,
            "token": credentials.session_token,
            "expires_at": credentials.expires_after,
        }


def _gcs_connector(
    place: GcsPlace, settings: StorageSettings
) -> Callable[[Mapping[str, str], RetryConfig], GCSStore]:
    config, client_options = _split_config(place.config)
    provider: Callable[[], GCSCredential] | None = None
    match place.credentials:
        case GcsCredentials.FromEnv():
            pass
        case GcsCredentials.Anonymous():
            config["skip_signature"] = "true"
        case GcsCredentials.Static(GcsStaticCredentials.ServiceAccount(path)):
            config["service_account"] = path
        case GcsCredentials.Static(GcsStaticCredentials.ServiceAccountKey(key)):
            config["service_account_key"] = key
        case GcsCredentials.Static(GcsStaticCredentials.ApplicationCredentials(path)):
            config["application_credentials"] = path
        case GcsCredentials.Static(GcsStaticCredentials.BearerToken(token)):
            bearer = GcsBearerCredential(token)
            provider = _GcsProvider(lambda: bearer)
        case GcsCredentials.Refreshable(pickled_function, current):
            refreshing = RefreshingCredential(pickled_function, current, (GcsBearerCredential,))
            provider = _GcsProvider(refreshing.get)

    def connect(headers: Mapping[str, str], retry_config: RetryConfig) -> GCSStore:
        return GCSStore(
            place.bucket,
            prefix=place.prefix or None,
            config=cast("GCSConfig", config),
            client_options={**_client_config(settings, headers), **client_options},
            retry_config=retry_config,
            credential_provider=provider,
        )

    return connect


class _GcsProvider:
    """Gives obstore GCS credentials whenever it asks."""

    def __init__(self, get: Callable[[], GcsBearerCredential]) -> None:
        self._get = get

    def __call__(self) -> GCSCredential:
        credential = self._get()
        return {"token": credential.bearer, "expires_at": credential.expires_after}


def _azure_connector(
    place: AzurePlace, settings: StorageSettings
) -> Callable[[RetryConfig], AzureStore]:
    config, client_options = _split_config(place.config)
    if place.account is not None:
        config["account_name"] = place.account
    provider: Callable[[], AzureCredential] | None = None
    match place.credentials:
        case AzureCredentials.FromEnv():
            pass
        case AzureCredentials.Anonymous():
            config["skip_signature"] = "true"
        case AzureCredentials.Static(AzureStaticCredentials.AccessKey(key)):
            config["account_key"] = key
        case AzureCredentials.Static(AzureStaticCredentials.SasToken(token)):
            config["sas_key"] = token
        case AzureCredentials.Static(AzureStaticCredentials.BearerToken(token)):
            config["token"] = token
        case AzureCredentials.Refreshable(pickled_function, current):
            refreshing = RefreshingCredential[AnyAzureRefreshableCredential](
                pickled_function,
                current,
                (
                    AzureRefreshableCredential.AccessKey,
                    AzureRefreshableCredential.SasToken,
                    AzureRefreshableCredential.BearerToken,
                ),
            )
            provider = _AzureProvider(refreshing.get)

    def connect(retry_config: RetryConfig) -> AzureStore:
        return AzureStore(
            place.container,
            prefix=place.prefix or None,
            config=cast("AzureConfig", config),
            client_options={**_client_config(settings, {}), **client_options},
            retry_config=retry_config,
            credential_provider=provider,
        )

    return connect


class _AzureProvider:
    """Gives obstore Azure credentials whenever it asks."""

    def __init__(self, get: Callable[[], AnyAzureRefreshableCredential]) -> None:
        self._get = get

    def __call__(self) -> AzureCredential:
        match self._get():
            case AzureRefreshableCredential.AccessKey(key, expires_after=expires):
                return {"access_key": key, "expires_at": expires}
            case AzureRefreshableCredential.SasToken(token, expires_after=expires):
                return {"sas_token": token, "expires_at": expires}
            case AzureRefreshableCredential.BearerToken(bearer, expires_after=expires):
                return {"token": bearer, "expires_at": expires}


def _split_config(given: Mapping[str, str]) -> tuple[dict[str, str], ClientConfig]:
    """Part what configures the store from what configures its HTTP client."""
    config = dict(given)
    client: ClientConfig = {}
    allow_http = config.pop("allow_http", None)
    if allow_http is not None:
        client["allow_http"] = allow_http.lower() in {"1", "true"}
    return config, client
