"""Addresses and settings of object stores, as plain values.

Places can be pickled and compared, and open no connection. Their repr omits credentials, options
and headers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.credentials import (
    AnyAzureCredential,
    AnyGcsCredential,
    AnyS3Credential,
    AzureCredentials,
    GcsCredentials,
    S3Credentials,
)
from icefloe.storage.urls import redact_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.containers import ChecksumAlgorithm


@dataclass(frozen=True, slots=True)
class Headers:
    """Headers of read requests and of write requests."""

    reading: Mapping[str, str] = field(default_factory=dict, repr=False)
    writing: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class S3Place:
    """A prefix of a bucket in S3 or an S3-compatible service.

    If ``virtual_hosted``, the bucket is part of the host name, as on AWS and Tigris, not the path.
    """

    bucket: str
    prefix: str = ""
    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    virtual_hosted: bool = True
    requester_pays: bool = False
    checksum_algorithm: ChecksumAlgorithm | None = None
    network_stream_timeout_seconds: int | None = 60
    headers: Headers = Headers()
    credentials: AnyS3Credential = field(default_factory=S3Credentials.FromEnv)
    scheme: str = "s3"
    read_only: bool = False

    def __post_init__(self) -> None:
        _require_url_part("bucket", self.bucket)
        _require_url_part("region", self.region)
        _require_url_part("endpoint_url", self.endpoint_url)

    @property
    def url(self) -> str:
        """URL for messages, without the endpoint and credentials."""
        return _join(f"{self.scheme}://{self.bucket}", self.prefix)

    @property
    def lists_in_key_order(self) -> bool:
        """Whether the service guarantees listings in byte order of the keys, as AWS does."""
        return self.endpoint_url is None

    @property
    def is_directory_bucket(self) -> bool:
        """Whether this is an S3 directory bucket, whose listings have no order."""
        return self.bucket.endswith("--x-s3")


@dataclass(frozen=True, slots=True)
class GcsPlace:
    """A prefix of a bucket of Google Cloud Storage."""

    bucket: str
    prefix: str = ""
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Headers = Headers()
    credentials: AnyGcsCredential = field(default_factory=GcsCredentials.FromEnv)

    def __post_init__(self) -> None:
        _require_url_part("bucket", self.bucket)

    @property
    def url(self) -> str:
        """URL for messages, without credentials."""
        return _join(f"gs://{self.bucket}", self.prefix)


@dataclass(frozen=True, slots=True)
class AzurePlace:
    """A prefix of a container of Azure Blob Storage; the environment has the default account."""

    account: str | None
    container: str
    prefix: str = ""
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: AnyAzureCredential = field(default_factory=AzureCredentials.FromEnv)

    def __post_init__(self) -> None:
        _require_url_part("account", self.account)
        _require_url_part("container", self.container)

    @property
    def url(self) -> str:
        """URL for messages, without credentials."""
        return _join(f"az://{self.container}", self.prefix)


@dataclass(frozen=True, slots=True)
class HttpPlace:
    """A URL below which a web server serves the objects of a repository or a container.

    ``redirects_below`` is the URL prefix that the redirects of a container must not leave.
    """

    base_url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    redirects_below: str | None = None

    @property
    def url(self) -> str:
        """The URL itself."""
        return self.base_url


_URL_PART: Final = re.compile(r"""[^\x00-\x20<>"{}|\\^`\x7f-\U0010ffff]*""")
"""obstore panics on requests to other URLs."""

Place: TypeAlias = S3Place | GcsPlace | AzurePlace | HttpPlace


def with_user_agent(place: Place, user_agent: str) -> Place:
    """Return a place whose requests have this ``User-Agent`` header."""
    header = {"User-Agent": user_agent}
    match place:
        case S3Place(headers=headers) | GcsPlace(headers=headers):
            merged = Headers({**headers.reading, **header}, {**headers.writing, **header})
            return replace(place, headers=merged)
        case HttpPlace():
            return replace(place, headers={**place.headers, **header})
        case AzurePlace():
            return replace(place, config={**place.config, "user_agent": user_agent})


def get_bucket(place: Place) -> Place:
    """Return the place without its prefix."""
    return place if isinstance(place, HttpPlace) else replace(place, prefix="")


def is_same_bucket(first: Place, second: Place) -> bool:
    """Whether both are in one bucket that can copy objects, with the same credentials."""
    return not isinstance(first, HttpPlace) and _get_identity(first) == _get_identity(second)


def is_same_place(first: Place, second: Place) -> bool:
    """Whether both are the same address, with whatever credentials."""
    if type(first) is not type(second):
        return False
    match first, second:
        case S3Place(), S3Place():
            return (first.url, first.endpoint_url) == (second.url, second.endpoint_url)
        case AzurePlace(), AzurePlace():
            return (first.url, first.account) == (second.url, second.account)
        case _:
            return first.url == second.url


def is_below(place: Place, other: Place) -> bool:
    """Whether all keys of a place are keys of the other one too, with whatever credentials."""
    if isinstance(place, HttpPlace) or isinstance(other, HttpPlace):
        return False
    prefix, outer = (f"{part.prefix.strip('/')}/".lstrip("/") for part in (place, other))
    return (
        prefix != outer
        and prefix.startswith(outer)
        and is_same_place(get_bucket(place), get_bucket(other))
    )


def get_path_prefix(place: Place) -> str:
    """Return the start of the paths of all keys in the bucket, empty or with a final ``/``."""
    prefix = "" if isinstance(place, HttpPlace) else place.prefix.strip("/")
    return f"{prefix}/" if prefix else ""


def _require_url_part(name: str, text: str | None) -> None:
    """Raise `InvalidInputError` if a text cannot be part of a URL."""
    if text is not None and not _URL_PART.fullmatch(text):
        raise InvalidInputError(
            f"{name} {redact_url(text)!r} contains a character that is not valid in a URL",
            kind=ErrorKind.STORAGE_CONFIG,
        )


def _get_identity(place: Place) -> Place:
    """Return the bucket, without what does not matter for a copy inside it."""
    match get_bucket(place):
        case S3Place() as bucket:
            return replace(bucket, headers=Headers(), read_only=False)
        case GcsPlace() as bucket:
            return replace(bucket, headers=Headers())
        case bucket:
            return bucket


def _join(base: str, prefix: str) -> str:
    return f"{base}/{prefix}" if prefix else base
