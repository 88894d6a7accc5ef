"""Makes the obstore clients of a place, with its credentials, timeouts and retries.

A place has a client for reads and a client for writes, which retry failed requests, and a client
for conditional puts, which does not retry, so that `conditional_put` gets every response. Each is
made on first use, and shared in this process with all places that have the same bucket, endpoint,
credentials, headers, retries, timeouts and environment variables. So clients get full keys, with
the prefix of the place.

Credentials are compared by value, but as objects if the value does not determine them: functions,
which may be redefined under their name, and files, which may be replaced.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.model.containers import ChecksumAlgorithm
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
from icefloe.storage.object_store.errors import format_error, is_obstore_failure, redact_error
from icefloe.storage.object_store.shared_values import Identity, SharedValues
from icefloe.storage.places import (
    AzurePlace,
    GcsPlace,
    Headers,
    HttpPlace,
    Place,
    S3Place,
)
from icefloe.storage.refreshing import RefreshingCredential

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

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

    from icefloe.model.storage_settings import StorageSettings

_LOGGER = logging.getLogger(__name__)

_DEFAULT_ATTEMPT_TIMEOUT: Final = timedelta(minutes=5)
"""Enough for 100 MiB over a slow connection; the read timeout detects a stalled connection."""

_DEFAULT_READ_TIMEOUT: Final = timedelta(seconds=60)

_DEFAULT_RETRY_TIMEOUT: Final = timedelta(minutes=3)
"""The time after the first attempt in which a request may be retried."""


_ENVIRONMENT: Final = re.compile(
    r"(AWS|AZURE|GOOGLE|IDENTITY|MSI|SERVICE_ACCOUNT|SSL_CERT)(_|$)|(ALL|HTTPS?|NO)_PROXY$",
    re.IGNORECASE,
)
"""Environment variables that obstore reads when it makes a client."""

_KEYS_OF_STORAGES: Final = frozenset({"prefix", "scheme", "read_only", "headers", "credentials"})
"""Fields of places that do not distinguish clients, or that `Clients` treats separately."""

_clients: Final = SharedValues["ObjectStore"](max_values=64)
_refreshing: Final = SharedValues[RefreshingCredential[Any]](max_values=64)


@dataclass(slots=True)
class _ObstoreThreads:
    """Whether obstore started threads, and whether this process lost them in a fork."""

    are_started: bool = False
    are_lost: bool = False


_threads: Final = _ObstoreThreads()


def _handle_fork() -> None:
    _threads.are_lost = _threads.are_started
    _clients.clear()
    _refreshing.clear()


os.register_at_fork(after_in_child=_handle_fork)


class Clients:
    """The clients of one place; options that obstore rejects raise `InvalidInputError`."""

    def __init__(self, place: Place, settings: StorageSettings) -> None:
        self._place = place
        self._settings = settings

    @cached_property
    def reader(self) -> ObjectStore:
        """For reads; it retries."""
        return self._open(self._headers.reading)

    @cached_property
    def writer(self) -> ObjectStore:
        """For unconditional writes; it retries."""
        return self._open(self._headers.writing)

    @cached_property
    def conditional(self) -> ObjectStore:
        """For conditional puts; it does not retry."""
        return self._open(self._headers.writing, can_retry=False)

    @property
    def _headers(self) -> Headers:
        match self._place:
            case S3Place(headers=headers) | GcsPlace(headers=headers):
                return headers
            case HttpPlace(headers=headers):
                return Headers(headers, headers)
            case AzurePlace():
                return Headers()

    def _open(self, headers: Mapping[str, str], *, can_retry: bool = True) -> ObjectStore:
        require_threads(self._place.url)
        key = (self._key, frozenset(headers.items()), can_retry)
        try:
            return _clients.get(key, lambda: self._make(headers, can_retry=can_retry))
        except BaseException as error:
            if not is_obstore_failure(error):
                raise
            failure = error
        # Raised outside the handler: __context__ would hold the error with its secrets.
        raise InvalidInputError(
            f"{self._place.url}: invalid options: {format_error(failure)}",
            kind=ErrorKind.STORAGE_CONFIG,
        ) from redact_error(failure)

    @cached_property
    def _key(self) -> Hashable:
        """What all clients of the place depend on."""
        retries, timeouts = self._settings.effective_retries, self._settings.effective_timeouts
        options = (
            getattr(self._place, item.name)
            for item in fields(self._place)
            if item.name not in _KEYS_OF_STORAGES
        )
        return (
            type(self._place),
            *(frozenset(value.items()) if isinstance(value, dict) else value for value in options),
            _make_credentials_key(self._place),
            retries.effective_max_tries,
            retries.effective_initial_backoff_ms,
            retries.effective_max_backoff_ms,
            timeouts.connect_timeout_ms,
            timeouts.read_timeout_ms,
            timeouts.operation_timeout_ms,
            timeouts.operation_attempt_timeout_ms,
            frozenset(item for item in os.environ.items() if _ENVIRONMENT.match(item[0])),
        )

    def _make(self, headers: Mapping[str, str], *, can_retry: bool) -> ObjectStore:
        retry = _make_retry_config(self._settings)
        if not can_retry:
            retry["max_retries"] = 0
        _LOGGER.debug("making a client for %s", self._place.url)
        match self._place:
            case S3Place() as place:
                return _make_s3(place, self._settings, headers, retry)
            case GcsPlace() as place:
                return _make_gcs(place, self._settings, headers, retry)
            case AzurePlace() as place:
                return _make_azure(place, self._settings, retry)
            case HttpPlace() as place:
                return _make_http(place, self._settings, headers, retry)


def require_threads(url: str) -> None:
    """Raise `StorageError` in a forked process that lacks the threads of obstore."""
    if _threads.are_lost:
        raise StorageError(
            f"{url}: this process was forked from one that had used an object store, and "
            "the threads that send requests do not survive a fork; start processes with the "
            "'spawn' or 'forkserver' method",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    _threads.are_started = True


def _make_credentials_key(place: Place) -> Hashable:
    match place:
        case HttpPlace():
            return None
        case S3Place(credentials=S3Credentials.Refreshable() as credentials):
            return Identity(credentials)
        case S3Place(credentials=credentials):
            return credentials
        case GcsPlace(
            credentials=GcsCredentials.Anonymous()
            | GcsCredentials.Static(
                GcsStaticCredentials.ServiceAccountKey() | GcsStaticCredentials.BearerToken()
            ) as credentials
        ):
            return credentials
        case AzurePlace(
            credentials=AzureCredentials.Anonymous() | AzureCredentials.Static() as credentials
        ):
            return credentials
        case _:
            return Identity(place.credentials)


def _refresh(
    credentials: S3Credentials.Refreshable
    | GcsCredentials.Refreshable
    | AzureCredentials.Refreshable,
    types: tuple[type[Any], ...],
) -> Callable[[], Any]:
    """Return the function that gets and refreshes a credential, shared by all clients with it."""

    def make() -> RefreshingCredential[Any]:
        return RefreshingCredential(credentials.pickled_function, credentials.current, types)

    return _refreshing.get(Identity(credentials), make).get


def _make_retry_config(settings: StorageSettings) -> RetryConfig:
    retries = settings.effective_retries
    timeout_ms = settings.effective_timeouts.operation_timeout_ms
    return {
        "max_retries": retries.effective_max_tries - 1,
        "backoff": {
            "init_backoff": timedelta(milliseconds=retries.effective_initial_backoff_ms),
            "max_backoff": timedelta(milliseconds=retries.effective_max_backoff_ms),
            "base": 2,
        },
        "retry_timeout": _to_timedelta(timeout_ms, _DEFAULT_RETRY_TIMEOUT),
    }


def _make_client_config(
    settings: StorageSettings,
    headers: Mapping[str, str],
    *,
    read_timeout: timedelta = _DEFAULT_READ_TIMEOUT,
) -> ClientConfig:
    timeouts = settings.effective_timeouts
    config: ClientConfig = {
        "timeout": _to_timedelta(timeouts.operation_attempt_timeout_ms, _DEFAULT_ATTEMPT_TIMEOUT),
        "read_timeout": _to_timedelta(timeouts.read_timeout_ms, read_timeout),
    }
    if timeouts.connect_timeout_ms is not None:
        config["connect_timeout"] = timedelta(milliseconds=timeouts.connect_timeout_ms)
    if headers:
        config["default_headers"] = dict(headers)
    return config


def _to_timedelta(value: int | None, default: timedelta) -> timedelta:
    return default if value is None else timedelta(milliseconds=value)


def _make_s3(
    place: S3Place, settings: StorageSettings, headers: Mapping[str, str], retry: RetryConfig
) -> S3Store:
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
            # A provider, because obstore would combine keys in `config` with environment variables
            # such as a session token.
            provider = partial(_provide_s3, lambda: credentials)
        case S3Credentials.Refreshable() as refreshable:
            provider = partial(_provide_s3, _refresh(refreshable, (S3StaticCredentials,)))
    seconds = place.network_stream_timeout_seconds
    read_timeout = _DEFAULT_READ_TIMEOUT if seconds is None else timedelta(seconds=seconds)
    client_options = _make_client_config(settings, headers, read_timeout=read_timeout)
    if place.allow_http:
        client_options["allow_http"] = True
    return S3Store(
        place.bucket,
        config=config,
        client_options=client_options,
        retry_config=retry,
        credential_provider=provider,
    )


def _provide_s3(get: Callable[[], S3StaticCredentials]) -> S3Credential:
    """Credential provider for obstore, which calls it again before the credential expires."""
    credentials = get()
    return {
        "access_key_id": credentials.access_key_id,
        "secret_access_key": credentials.secret_access_key,
        "token": credentials.session_token,
        "expires_at": credentials.expires_after,
    }


def _make_gcs(
    place: GcsPlace, settings: StorageSettings, headers: Mapping[str, str], retry: RetryConfig
) -> GCSStore:
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
            provider = partial(_provide_gcs, lambda: bearer)
        case GcsCredentials.Refreshable() as refreshable:
            provider = partial(_provide_gcs, _refresh(refreshable, (GcsBearerCredential,)))
    return GCSStore(
        place.bucket,
        config=cast("GCSConfig", config),
        client_options={**_make_client_config(settings, headers), **client_options},
        retry_config=retry,
        credential_provider=provider,
    )


def _provide_gcs(get: Callable[[], GcsBearerCredential]) -> GCSCredential:
    credential = get()
    return {"token": credential.bearer, "expires_at": credential.expires_after}


def _make_azure(place: AzurePlace, settings: StorageSettings, retry: RetryConfig) -> AzureStore:
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
        case AzureCredentials.Refreshable() as refreshable:
            types = get_args(AnyAzureRefreshableCredential)
            provider = partial(_provide_azure, _refresh(refreshable, types))
    return AzureStore(
        place.container,
        config=cast("AzureConfig", config),
        client_options={**_make_client_config(settings, {}), **client_options},
        retry_config=retry,
        credential_provider=provider,
    )


def _provide_azure(get: Callable[[], AnyAzureRefreshableCredential]) -> AzureCredential:
    match get():
        case AzureRefreshableCredential.AccessKey(key, expires_after=expires):
            return {"access_key": key, "expires_at": expires}
        case AzureRefreshableCredential.SasToken(token, expires_after=expires):
            return {"sas_token": token, "expires_at": expires}
        case AzureRefreshableCredential.BearerToken(bearer, expires_after=expires):
            return {"token": bearer, "expires_at": expires}


def _make_http(
    place: HttpPlace, settings: StorageSettings, headers: Mapping[str, str], retry: RetryConfig
) -> HTTPStore:
    options = _make_client_config(settings, headers)
    options["allow_http"] = place.base_url.startswith("http:")
    # obstore validates the names and values.
    for name, value in place.options.items():
        options[name] = value  # type: ignore[literal-required]
    return HTTPStore(place.base_url, client_options=options, retry_config=retry)


def _split_config(options: Mapping[str, str]) -> tuple[dict[str, str], ClientConfig]:
    """Separate the options of the store from those of its HTTP client."""
    config = dict(options)
    client_options: ClientConfig = {}
    allow_http = config.pop("allow_http", None)
    if allow_http is not None:
        client_options["allow_http"] = allow_http.lower() in {"1", "true"}
    return config, client_options
