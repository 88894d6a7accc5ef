"""Constructors of store configs for virtual chunk containers, with Icechunk's names.

A store config describes how to connect to a service; the container (`icefloe.model.containers`)
adds the URL prefix, and the user passes the credentials. Pure, no I/O.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from icefloe.model.containers import ChecksumAlgorithm, ObjectStoreConfig, S3Options

if TYPE_CHECKING:
    from collections.abc import Mapping


def local_filesystem_store(path: str | os.PathLike[str]) -> ObjectStoreConfig.LocalFileSystem:
    """Describe a local directory."""
    return ObjectStoreConfig.LocalFileSystem(os.fspath(path))


def s3_store(  # noqa: PLR0917 - Icechunk's signature
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,  # noqa: FBT001, FBT002
    anonymous: bool = False,  # noqa: FBT001, FBT002
    s3_compatible: bool = False,  # noqa: FBT001, FBT002
    force_path_style: bool = False,  # noqa: FBT001, FBT002
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,  # noqa: FBT001, FBT002
    checksum_algorithm: ChecksumAlgorithm | None = None,
) -> ObjectStoreConfig.S3Compatible | ObjectStoreConfig.S3:
    """Describe S3, or another S3-compatible service with ``s3_compatible``."""
    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        anonymous=anonymous,
        force_path_style=force_path_style,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        requester_pays=requester_pays,
        checksum_algorithm=checksum_algorithm,
    )
    return (
        ObjectStoreConfig.S3Compatible(options) if s3_compatible else ObjectStoreConfig.S3(options)
    )


def gcs_store(opts: Mapping[str, str] | None = None) -> ObjectStoreConfig.Gcs:
    """Describe Google Cloud Storage, with options of its client."""
    return ObjectStoreConfig.Gcs(dict(opts or {}))


def azure_store(
    *, account: str, config: Mapping[str, str] | None = None
) -> ObjectStoreConfig.Azure:
    """Describe an account of Azure Blob Storage, with options of its client."""
    return ObjectStoreConfig.Azure({"account": account, **(config or {})})


def http_store(
    opts: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> ObjectStoreConfig.Http:
    """Describe web servers, with options of the client and headers for every request."""
    return ObjectStoreConfig.Http(dict(opts or {}), dict(headers or {}))
