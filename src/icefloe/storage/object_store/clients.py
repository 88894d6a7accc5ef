"""Makes the obstore clients of a place, with its credentials, timeouts and retries.

A place has a client for reads and a client for writes, which retry failed requests, and a client
for conditional puts, which does not retry, so that `conditional_put` gets every response.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, cast, get_args

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
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
from icefloe.storage.object_store.errors import OBSTORE_ERRORS, format_error, redact_error
from icefloe.storage.places import AzurePlace, GcsPlace, HttpPlace, Place, S3Place
from icefloe.storage.refreshing import RefreshingCredential

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of one place."""

    reader: ObjectStore
    writer: ObjectStore
    conditional: ObjectStore


def open_clients(place: Place, settings: StorageSettings) -> Clients:
    """Make the clients of a place; options that obstore rejects raise `InvalidInputError`."""
    try:
        clients = _make_clients(place, settings)
    except OBSTORE_ERRORS as error:
        # `InvalidInputError` is also a `ValueError`.
        if isinstance(error, IcefloeError):
            raise
        failure = error
    else:
        _LOGGER.debug("opened clients for %s", place.url)
        return clients
    # Raised outside the handler: __context__ would hold the error with its secrets.
    raise InvalidInputError(
        f"{place.url}: invalid options: {format_error(failure)}", kind=ErrorKind.STORAGE_CONFIG
    ) from redact_error(failure)


def _make_clients(place: Place, settings: StorageSettings) -> Clients:
    retry = _make_retry_config(settings)
    no_retry: RetryConfig = {**retry, "max_retries": 0}
    match place:
        case S3Place(headers=headers) | GcsPlace(headers=headers):
            connect: Callable[[Mapping[str, str], RetryConfig], ObjectStore]
            if isinstance(place, S3Place):
                connect = _make_s3_connector(place, settings)
            else:
                connect = _make_gcs_connector(place, settings)
            return Clients(
                reader=connect(headers.reading, retry),
                writer=connect(headers.writing, retry),
                conditional=connect(headers.writing, no_retry),
            )
        case AzurePlace():
            connect_azure = _make_azure_connector(place, settings)
            client = connect_azure(retry)
            return Clients(reader=client, writer=client, conditional=connect_azure(no_retry))
        case HttpPlace():
            options = _make_client_config(settings, place.headers)
            options["allow_http"] = place.base_url.startswith("http:")
            # obstore validates the names and values.
            for name, value in place.options.items():
                options[name] = value  # type: ignore[literal-required]
            reader = HTTPStore(place.base_url, client_options=options, retry_config=retry)
            # HTTP is read-only: the other clients are never used.
            return Clients(reader=reader, writer=reader, conditional=reader)


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


def _make_s3_connector(
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
            # A provider, because obstore would combine keys in `config` with environment variables
            # such as a session token.
            provider = partial(_provide_s3, lambda: credentials)
        case S3Credentials.Refreshable(pickled_function, current):
            refreshing = RefreshingCredential(pickled_function, current, (S3StaticCredentials,))
            provider = partial(_provide_s3, refreshing.get)
    seconds = place.network_stream_timeout_seconds
    read_timeout = _DEFAULT_READ_TIMEOUT if seconds is None else timedelta(seconds=seconds)

    def connect(headers: Mapping[str, str], retry_config: RetryConfig) -> S3Store:
        client_options = _make_client_config(settings, headers, read_timeout=read_timeout)
        if place.allow_http:
            client_options["allow_http"] = True
        return S3Store(
            place.bucket,
            prefix=place.prefix or None,
            config=config,
            client_options=client_options,
            retry_config=retry_config,
            credential_provider=provider,
        )

    return connect


def _provide_s3(get: Callable[[], S3StaticCredentials]) -> S3Credential:
    """Credential provider for obstore, which calls it again before the credential expires."""
    credentials = get()
    return {
        "access_key_id": credentials.access_key_id,
        "secret_access_key": credentials.secret_access_key,
        "token": credentials.session_token,
        "expires_at": credentials.expires_after,
    }


def _make_gcs_connector(
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
            provider = partial(_provide_gcs, lambda: bearer)
        case GcsCredentials.Refreshable(pickled_function, current):
            refreshing = RefreshingCredential(pickled_function, current, (GcsBearerCredential,))
            provider = partial(_provide_gcs, refreshing.get)

    def connect(headers: Mapping[str, str], retry_config: RetryConfig) -> GCSStore:
        return GCSStore(
            place.bucket,
            prefix=place.prefix or None,
            config=cast("GCSConfig", config),
            client_options={**_make_client_config(settings, headers), **client_options},
            retry_config=retry_config,
            credential_provider=provider,
        )

    return connect


def _provide_gcs(get: Callable[[], GcsBearerCredential]) -> GCSCredential:
    credential = get()
    return {"token": credential.bearer, "expires_at": credential.expires_after}


def _make_azure_connector(
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
                pickled_function, current, get_args(AnyAzureRefreshableCredential)
            )
            provider = partial(_provide_azure, refreshing.get)

    def connect(retry_config: RetryConfig) -> AzureStore:
        return AzureStore(
            place.container,
            prefix=place.prefix or None,
            config=cast("AzureConfig", config),
            client_options={**_make_client_config(settings, {}), **client_options},
            retry_config=retry_config,
            credential_provider=provider,
        )

    return connect


def _provide_azure(get: Callable[[], AnyAzureRefreshableCredential]) -> AzureCredential:
    match get():
        case AzureRefreshableCredential.AccessKey(key, expires_after=expires):
            return {"access_key": key, "expires_at": expires}
        case AzureRefreshableCredential.SasToken(token, expires_after=expires):
            return {"sas_token": token, "expires_at": expires}
        case AzureRefreshableCredential.BearerToken(bearer, expires_after=expires):
            return {"token": bearer, "expires_at": expires}


def _split_config(options: Mapping[str, str]) -> tuple[dict[str, str], ClientConfig]:
    """Separate the options of the store from those of its HTTP client."""
    config = dict(options)
    client_options: ClientConfig = {}
    allow_http = config.pop("allow_http", None)
    if allow_http is not None:
        client_options["allow_http"] = allow_http.lower() in {"1", "true"}
    return config, client_options
