"""Constructors of storages, with the names and arguments of Icechunk.

They send no requests: a storage connects on first use. Invalid arguments raise `InvalidInputError`
immediately.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.credentials import (
    GcsBearerCredential,
    S3StaticCredentials,
    azure_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.storage.keys import find_key_problem
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.object_store import HttpStorage, ObjectStorage
from icefloe.storage.places import AzurePlace, GcsPlace, Headers, HttpPlace, S3Place
from icefloe.storage.split_root import SplitRootStorage
from icefloe.storage.url_options import split_options
from icefloe.storage.urls import redact_url, require_no_secrets, split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from icefloe.model.containers import ChecksumAlgorithm
    from icefloe.storage.interface import Storage

_TIGRIS_ENDPOINT: Final = "https://t3.storage.dev"
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_HEADER_VALUE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_STORE_ROOT: Final = re.compile(r"(.+?)[?&]store_root=(.*)")


def in_memory_storage() -> MemoryStorage:
    """Make an empty storage in the memory of this process; it cannot be pickled."""
    return MemoryStorage()


def local_filesystem_storage(
    path: str | os.PathLike[str], *, durable: bool = True, follow_symlinks: bool = False
) -> LocalStorage:
    """Make a storage in a directory; the first put creates it if it does not exist.

    Parameters
    ----------
    path
        Directory; not a URL.
    durable
        If True, a commit returns once all its files are on the disk, so it survives a power
        failure. If False, it does not wait for the disk. Commits are still atomic and survive a
        killed process, but a power failure or a crash of the system within some seconds can lose
        their files and leave a branch unreadable; for scratch data.
    follow_symlinks
        Whether links below the directory are followed; see `LocalStorage`.
    """
    if "://" in os.fspath(path):
        redacted = redact_url(os.fspath(path))
        raise _config_error(f"{redacted!r} is a URL: pass a path, or use storage_from_url")
    if not os.fspath(path):
        raise _config_error("the path is empty: use '.' for the current directory")
    return LocalStorage(path, durable=durable, follow_symlinks=follow_symlinks)


def s3_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Make a storage in a bucket of S3 or an S3-compatible service.

    Pass at most one kind of credentials: a key pair, ``anonymous``, ``from_env`` (the default) or
    ``get_credentials``.

    Parameters
    ----------
    bucket, prefix
        Bucket and key prefix of the storage; no prefix means the whole bucket.
    region
        Defaults to the region in the environment, or ``us-east-1``.
    endpoint_url
        Server other than AWS, with path-style requests. Defaults to ``AWS_ENDPOINT_URL`` in the
        environment, which may be ``http://`` on this machine or with ``AWS_ALLOW_HTTP``.
    allow_http
        Whether the endpoint may be ``http://``. Requests contain a signature, not the secret key.
    access_key_id, secret_access_key, session_token, expires_after
        Key pair, possibly temporary.
    anonymous
        Whether requests are unsigned.
    from_env
        Whether credentials come from the environment.
    get_credentials, scatter_initial_credentials
        Function that returns key pairs; see `s3_refreshable_credentials`.
    force_path_style
        Whether to use path-style requests on AWS too.
    network_stream_timeout_seconds
        Timeout of an idle connection.
    requester_pays
        Whether to pay for requests to a requester-pays bucket.
    checksum_algorithm
        ``Sha256`` or ``Crc64Nvme``.
    legacy_rooted_keys
        Not supported: True raises.
    read_headers, write_headers, headers
        Headers for read requests, write requests, or both.
    """
    if legacy_rooted_keys:
        raise _rooted_keys_error()
    if endpoint_url is None:
        # Looked up here, not on first use, so that all tasks use the same endpoint.
        endpoint_url = _read_environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        allow_http = allow_http or _allows_http(endpoint_url)
    return ObjectStorage(
        S3Place(
            bucket=_require_bucket(bucket),
            prefix=_normalize_prefix(prefix),
            region=region,
            endpoint_url=_normalize_endpoint(endpoint_url, allow_http=allow_http),
            allow_http=allow_http,
            virtual_hosted=not force_path_style and endpoint_url is None,
            requester_pays=requester_pays,
            checksum_algorithm=checksum_algorithm,
            network_stream_timeout_seconds=network_stream_timeout_seconds,
            headers=_merge_headers(headers, read_headers, write_headers),
            credentials=s3_credentials(
                access_key_id=access_key_id,
                secret_access_key=secret_access_key,
                session_token=session_token,
                expires_after=expires_after,
                anonymous=anonymous,
                from_env=from_env,
                get_credentials=get_credentials,
                scatter_initial_credentials=scatter_initial_credentials,
            ),
        )
    )


def s3_object_store_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    force_path_style: bool = False,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Make an S3 storage like `s3_storage`; Icechunk has two S3 clients, icefloe has one."""
    return s3_storage(
        bucket=bucket,
        prefix=prefix,
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        force_path_style=force_path_style,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def tigris_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    use_weak_consistency: bool = False,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Make a storage in a Tigris bucket; other arguments are those of `s3_storage`.

    Tigris distributes objects over regions. Conditional puts are safe only if all requests go to
    one region, so a region is required. With ``use_weak_consistency`` the storage is read-only.
    """
    if legacy_rooted_keys:
        raise _rooted_keys_error()
    if region is None and not use_weak_consistency:
        raise _config_error(
            "Tigris needs the region of the bucket for consistent reads and writes: pass region, "
            "or use_weak_consistency=True to only read"
        )
    region_headers: dict[str, str] = {}
    if region is not None and not use_weak_consistency:
        region_headers = {"X-Tigris-Regions": region, "X-Tigris-Consistent": "true"}
    endpoint = _normalize_endpoint(endpoint_url or _TIGRIS_ENDPOINT, allow_http=allow_http)
    return ObjectStorage(
        S3Place(
            bucket=_require_bucket(bucket),
            prefix=_normalize_prefix(prefix),
            region=region or "auto",
            # Tigris accepts new buckets only as part of the host name.
            endpoint_url=_add_bucket_to_host(endpoint, bucket),
            allow_http=allow_http,
            virtual_hosted=True,
            checksum_algorithm=checksum_algorithm,
            network_stream_timeout_seconds=network_stream_timeout_seconds,
            headers=_merge_headers(
                {**region_headers, **(headers or {})}, read_headers, write_headers
            ),
            credentials=s3_credentials(
                access_key_id=access_key_id,
                secret_access_key=secret_access_key,
                session_token=session_token,
                expires_after=expires_after,
                anonymous=anonymous,
                from_env=from_env,
                get_credentials=get_credentials,
                scatter_initial_credentials=scatter_initial_credentials,
            ),
            scheme="tigris",
            read_only=use_weak_consistency,
        )
    )


def r2_storage(
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Make a storage in a Cloudflare R2 bucket; other arguments are those of `s3_storage`.

    Without a bucket, the first segment of the prefix is the bucket.

    Parameters
    ----------
    account_id
        Cloudflare account, which determines the endpoint; alternative to ``endpoint_url``.
    """
    if legacy_rooted_keys:
        raise _rooted_keys_error()
    if account_id is None and endpoint_url is None:
        raise _config_error("R2 needs account_id or endpoint_url")
    if bucket is None:
        bucket, _, prefix = (prefix or "").strip("/").partition("/")
        if not bucket:
            raise _config_error("R2 needs a bucket, or a prefix whose first segment is the bucket")
    endpoint = endpoint_url or f"https://{account_id}.r2.cloudflarestorage.com"
    return ObjectStorage(
        S3Place(
            bucket=_require_bucket(bucket),
            prefix=_normalize_prefix(prefix),
            region=region or "auto",
            endpoint_url=_normalize_endpoint(endpoint, allow_http=allow_http),
            allow_http=allow_http,
            virtual_hosted=False,
            checksum_algorithm=checksum_algorithm,
            network_stream_timeout_seconds=network_stream_timeout_seconds,
            headers=_merge_headers(headers, read_headers, write_headers),
            credentials=s3_credentials(
                access_key_id=access_key_id,
                secret_access_key=secret_access_key,
                session_token=session_token,
                expires_after=expires_after,
                anonymous=anonymous,
                from_env=from_env,
                get_credentials=get_credentials,
                scatter_initial_credentials=scatter_initial_credentials,
            ),
            scheme="r2",
        )
    )


def gcs_storage(
    *,
    bucket: str,
    prefix: str | None,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    config: Mapping[str, str] | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Make a storage in a bucket of Google Cloud Storage.

    Pass at most one kind of credentials; the default is the environment. Other arguments are those
    of `s3_storage`.

    Parameters
    ----------
    service_account_file, service_account_key, application_credentials, bearer_token
        Static credential.
    config
        Further options, named as in obstore's ``GCSConfig``, and ``allow_http``.
    """
    return ObjectStorage(
        GcsPlace(
            bucket=_require_bucket(bucket),
            prefix=_normalize_prefix(prefix),
            config=dict(config or {}),
            headers=_merge_headers(headers, read_headers, write_headers),
            credentials=gcs_credentials(
                service_account_file=service_account_file,
                service_account_key=service_account_key,
                application_credentials=application_credentials,
                bearer_token=bearer_token,
                anonymous=anonymous,
                from_env=from_env,
                get_credentials=get_credentials,
                scatter_initial_credentials=scatter_initial_credentials,
            ),
        )
    )


def azure_storage(
    *,
    account: str | None,
    container: str,
    prefix: str | None,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    config: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Make a storage in a container of Azure Blob Storage.

    Pass at most one kind of credentials; the default is the environment. For refreshable
    credentials make an `AzurePlace` with `azure_refreshable_credentials`.

    Parameters
    ----------
    access_key, sas_token, bearer_token
        Static credential.
    config
        Further options, named as in obstore's ``AzureConfig``, and ``allow_http``.
    """
    return ObjectStorage(
        AzurePlace(
            account=account,
            container=_require_bucket(container),
            prefix=_normalize_prefix(prefix),
            config=dict(config or {}),
            credentials=azure_credentials(
                access_key=access_key,
                sas_token=sas_token,
                bearer_token=bearer_token,
                from_env=from_env,
                anonymous=anonymous,
            ),
        )
    )


def http_storage(
    base_url: str, opts: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> HttpStorage:
    """Make a read-only storage of the files below a URL of a web server.

    Parameters
    ----------
    base_url
        ``http://`` or ``https://``, without a query.
    opts
        Options of the HTTP client, named as in obstore's ``ClientConfig``.
    headers
        Headers for every request.
    """
    parts = split_url(base_url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise _config_error(
            f"{redact_url(base_url)!r} is not an HTTP URL: it must start with http:// or https://"
        )
    require_no_secrets(parts, "pass headers to http_storage, such as an Authorization header")
    _require_headers(headers or {})
    return HttpStorage(
        HttpPlace(base_url.rstrip("/"), options=dict(opts or {}), headers=dict(headers or {}))
    )


def storage_from_url(url: str) -> Storage:
    """Make a storage from a URL or a path; options that it lacks come from the environment.

    Supported are a path or ``file://`` (``?durable=false`` as in `local_filesystem_storage`),
    ``s3://bucket/prefix`` (``AWS_`` variables, including ``AWS_ENDPOINT_URL``),
    ``gs://bucket/prefix``, ``az://container/prefix``
    (``AZURE_STORAGE_ACCOUNT_NAME``), ``abfss://container@account.dfs.core.windows.net/prefix``,
    ``http://`` and ``https://`` (read-only), and ``memory://``. Options may follow in the query,
    ``s3://bucket/prefix?endpoint=https://host&region=eu-west-1``: ``endpoint``, ``region`` and
    ``allow_http`` (S3), ``account`` (Azure), and ``anonymous``. ``?store_root=URL`` at the end of a
    URL names the root of all other files of a repository of generation ``draft``.
    """
    if not url:
        raise _config_error(
            "the URL is empty: pass a URL such as s3://bucket/prefix, or a path ('.' for the "
            "current directory)"
        )
    if "://" not in url:
        return local_filesystem_storage(url)
    if split_roots := _STORE_ROOT.fullmatch(url):
        state, data = map(storage_from_url, split_roots.groups())
        return SplitRootStorage(state, data)
    parts = split_url(url)
    if parts.scheme in {"http", "https"}:
        return http_storage(url)
    container, account = parts.netloc, None
    if parts.scheme in {"abfs", "abfss"} and "@" in parts.netloc:
        # The part before '@' is the container, not a user.
        container, _, host = parts.netloc.partition("@")
        account = host.partition(".")[0]
        parts = parts._replace(netloc=host)
    parts, options = split_options(parts)
    require_no_secrets(
        parts, "set environment variables, or use the constructor of this kind of storage"
    )
    prefix = parts.path.strip("/")
    match parts.scheme:
        case "file":
            if parts.netloc not in {"", "localhost"}:
                raise _config_error(
                    f"{redact_url(url)!r}: a file URL has three slashes, as in file:///data/repo"
                )
            return local_filesystem_storage(
                unquote(parts.path), durable=options.durable is not False
            )
        case "memory":
            return in_memory_storage()
        case "s3":
            return s3_storage(
                bucket=parts.netloc,
                prefix=prefix,
                region=options.region,
                endpoint_url=options.endpoint,
                allow_http=options.allow_http or _allows_http(options.endpoint),
                anonymous=options.anonymous,
                from_env=not options.anonymous,
            )
        case "gs" | "gcs":
            return gcs_storage(
                bucket=parts.netloc,
                prefix=prefix,
                anonymous=options.anonymous,
                from_env=not options.anonymous,
            )
        case "az" | "azure" | "abfs" | "abfss":
            return azure_storage(
                account=options.account or account,
                container=container,
                prefix=prefix,
                anonymous=options.anonymous,
                from_env=not options.anonymous,
            )
        case _:
            raise InvalidInputError(
                f"{redact_url(url)!r}: unknown scheme {parts.scheme!r}; expected a path or one of: "
                "file, s3, gs, az, http, https, memory",
                kind=ErrorKind.CANNOT_PARSE_URL,
            )


def _rooted_keys_error() -> InvalidInputError:
    return _config_error(
        "keys that start with '/' (legacy_rooted_keys), which only repositories at an empty prefix "
        "can have, are not supported: copy the objects to keys "
        "without the leading slash"
    )


def _read_environment(*names: str) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)


def _allows_http(endpoint: str | None) -> bool:
    if endpoint is not None and split_url(endpoint).hostname in {"localhost", "127.0.0.1", "::1"}:
        return True
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true"}


def _require_bucket(name: str) -> str:
    # ':' and '@' come from a user and password before the name.
    if not name or any(character in name for character in "/:@"):
        raise _config_error(f"{redact_url(name)!r} is not a valid bucket or container name")
    return name


def _normalize_prefix(prefix: str | None) -> str:
    stripped = (prefix or "").strip("/")
    problem = find_key_problem(stripped) if stripped else None
    if problem is not None:
        raise InvalidInputError(
            f"{prefix!r} is not a valid prefix: {problem}", kind=ErrorKind.BAD_PREFIX
        )
    return stripped


def _normalize_endpoint(endpoint_url: str | None, *, allow_http: bool) -> str | None:
    if endpoint_url is None:
        return None
    parts = split_url(endpoint_url)
    redacted = redact_url(endpoint_url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise _config_error(f"{redacted!r} does not start with https:// or http://")
    require_no_secrets(parts, "pass credentials in their own arguments")
    if parts.scheme == "http" and not allow_http:
        raise _config_error(f"{redacted!r} is not encrypted: pass allow_http=True to allow it")
    return endpoint_url.rstrip("/")


def _add_bucket_to_host(endpoint: str | None, bucket: str) -> str | None:
    if endpoint is None:
        return None
    scheme, _, host = endpoint.partition("://")
    return f"{scheme}://{bucket}.{host}"


def _merge_headers(
    both: Mapping[str, str] | None,
    reading: Mapping[str, str] | None,
    writing: Mapping[str, str] | None,
) -> Headers:
    headers = Headers(
        reading={**(both or {}), **(reading or {})}, writing={**(both or {}), **(writing or {})}
    )
    _require_headers(headers.reading)
    _require_headers(headers.writing)
    return headers


def _require_headers(headers: Mapping[Any, Any]) -> None:
    for name, value in headers.items():
        if not isinstance(name, str) or _HEADER_NAME.fullmatch(name) is None:
            raise _config_error(f"invalid HTTP header name {name!r:.80}")
        if not isinstance(value, str) or _NOT_IN_HEADER_VALUE.search(value) is not None:
            # The value may be a secret.
            raise _config_error(
                f"invalid HTTP header value of {name!r}: expected text without control characters"
            )


def _config_error(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind=ErrorKind.STORAGE_CONFIG)
