"""Icechunk's static methods ``Storage.new_s3(…)`` etc.

Most users prefer the functions of `constructors`, which these methods call. Here credentials are
one argument, and so are the options of S3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from icefloe.storage.constructors import (
    azure_storage,
    gcs_storage,
    http_storage,
    in_memory_storage,
    local_filesystem_storage,
    r2_storage,
    s3_storage,
    tigris_storage,
)
from icefloe.storage.hugging_face import build_hf_endpoint
from icefloe.storage.interface import Storage
from icefloe.storage.object_store import HttpStorage, ObjectStorage
from icefloe.storage.places import AzurePlace, GcsPlace, S3Place
from icefloe.storage.redirect import redirect_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.model.containers import S3Options
    from icefloe.storage.credentials import AnyAzureCredential, AnyGcsCredential, AnyS3Credential

_DEFAULT_STREAM_TIMEOUT_S: Final = 60


new_in_memory = in_memory_storage
new_local_filesystem = local_filesystem_storage
new_redirect = redirect_storage


def new_s3(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,  # noqa: FBT001 - Icechunk's signature
    *,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """See `s3_storage`."""
    return _make_s3(
        s3_storage,
        config,
        credentials,
        bucket=bucket,
        prefix=prefix,
        force_path_style=config.force_path_style,
        requester_pays=config.requester_pays,
        legacy_rooted_keys=legacy_rooted_keys,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def new_s3_object_store(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None = None,
    *,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """See `new_s3`: Icechunk has two S3 clients, icefloe has one."""
    return new_s3(
        config,
        bucket,
        prefix,
        credentials,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def new_tigris(  # noqa: PLR0917 - Icechunk's signature
    config: S3Options,
    bucket: str,
    prefix: str | None,
    use_weak_consistency: bool,  # noqa: FBT001 - Icechunk's signature
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,  # noqa: FBT001
    *,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """See `tigris_storage`."""
    return _make_s3(
        tigris_storage,
        config,
        credentials,
        bucket=bucket,
        prefix=prefix,
        use_weak_consistency=use_weak_consistency,
        legacy_rooted_keys=legacy_rooted_keys,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def new_r2(  # noqa: PLR0917 - Icechunk's signature
    config: S3Options,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,  # noqa: FBT001 - Icechunk's signature
    *,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """See `r2_storage`."""
    return _make_s3(
        r2_storage,
        config,
        credentials,
        bucket=bucket,
        prefix=prefix,
        account_id=account_id,
        legacy_rooted_keys=legacy_rooted_keys,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def new_hf(  # noqa: PLR0917 - Icechunk's signature
    config: S3Options,
    bucket: str,
    prefix: str | None,
    namespace: str,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,  # noqa: FBT001 - Icechunk's signature
    *,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """See `hf_storage`."""
    return _make_s3(
        s3_storage,
        config,
        credentials,
        bucket=bucket,
        prefix=prefix,
        region=config.region or "us-east-1",
        endpoint_url=config.endpoint_url or build_hf_endpoint(namespace),
        force_path_style=True,
        legacy_rooted_keys=legacy_rooted_keys,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def new_gcs(
    bucket: str,
    prefix: str | None,
    credentials: AnyGcsCredential | None = None,
    *,
    config: Mapping[str, str] | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """See `gcs_storage`."""
    storage = gcs_storage(
        bucket=bucket,
        prefix=prefix,
        config=config,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )
    if credentials is None or not isinstance(storage.place, GcsPlace):
        return storage
    return ObjectStorage(replace(storage.place, credentials=credentials))


def new_azure_blob(
    account: str,
    container: str,
    prefix: str | None,
    credentials: AnyAzureCredential | None = None,
    *,
    config: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """See `azure_storage`."""
    storage = azure_storage(account=account, container=container, prefix=prefix, config=config)
    if credentials is None or not isinstance(storage.place, AzurePlace):
        return storage
    return ObjectStorage(replace(storage.place, credentials=credentials))


def new_http(
    base_url: str, config: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> HttpStorage:
    """See `http_storage`."""
    return http_storage(base_url, config, headers)


def _make_s3(
    construct: Callable[..., ObjectStorage],
    config: S3Options,
    credentials: AnyS3Credential | None,
    **arguments: object,
) -> ObjectStorage:
    seconds = config.network_stream_timeout_seconds
    options = {
        "region": config.region,
        "endpoint_url": config.endpoint_url,
        "allow_http": config.allow_http,
        "anonymous": config.anonymous or None,
        "network_stream_timeout_seconds": _DEFAULT_STREAM_TIMEOUT_S if seconds is None else seconds,
        "checksum_algorithm": config.checksum_algorithm,
    }
    storage = construct(**{**options, **arguments})
    # Credentials take precedence over `config.anonymous`.
    if credentials is None or not isinstance(storage.place, S3Place):
        return storage
    return ObjectStorage(replace(storage.place, credentials=credentials))


# The module of `Storage` declares these static methods, but cannot import them: they return
# subclasses of `Storage`.
for _name in [name for name in globals() if name.startswith("new_")]:
    setattr(Storage, _name, staticmethod(globals()[_name]))
