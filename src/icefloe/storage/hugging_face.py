"""Hugging Face Storage Buckets, through their S3 gateway."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.constructors import s3_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from icefloe.storage.credentials import S3StaticCredentials
    from icefloe.storage.object_store import ObjectStorage

_GATEWAY: Final = "https://s3.hf.co"
_REGION: Final = "us-east-1"
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.-]+")


def hf_storage(
    *,
    bucket: str,
    prefix: str | None,
    namespace: str,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Make a storage in a Hugging Face bucket; arguments not listed are those of `s3_storage`.

    The credentials are an S3 key pair created from an access token, not the token itself.

    Parameters
    ----------
    namespace
        User or organization that owns the bucket.
    """
    return s3_storage(
        bucket=bucket,
        prefix=prefix,
        region=_REGION,
        endpoint_url=build_hf_endpoint(namespace),
        force_path_style=True,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        legacy_rooted_keys=legacy_rooted_keys,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


def build_hf_endpoint(namespace: str) -> str:
    """Return the S3 endpoint of a user or organization; raise if the name is not valid."""
    if not _NAMESPACE.fullmatch(namespace) or namespace in {".", ".."}:
        raise InvalidInputError(
            f"{namespace!r} is not a valid name of a Hugging Face user or organization",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    return f"{_GATEWAY}/{namespace}"
