"""Virtual chunk containers: the places outside the repository that its chunks may point into.

Seed `002` introduces them. A container names a URL prefix and how to reach the store behind it,
never a credential. A virtual chunk is read from the container with the longest matching prefix,
and only where the user authorised that prefix.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.config_section import U32, Persisted, PersistedValue


class ChecksumAlgorithm(Enum):
    """The checksum that is sent along with writes to S3."""

    Crc32 = 0
    Crc32c = 1
    Crc64Nvme = 2
    Sha1 = 3
    Sha256 = 4


@dataclass(frozen=True, slots=True, repr=False)
class S3Options(PersistedValue):
    """How to reach an S3 service."""

    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    anonymous: bool = False
    force_path_style: bool = False
    network_stream_timeout_seconds: U32 | None = None
    requester_pays: bool = False
    checksum_algorithm: ChecksumAlgorithm | None = None


@dataclass(frozen=True, slots=True, init=False)
class _ByOptions(PersistedValue):
    """A store whose client takes options by name; None, as Icechunk takes it, means none."""

    opts: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def __init__(
        self,
        opts: Mapping[str, str] | None = None,
        *,
        unknown: Mapping[str, object] | None = None,
    ) -> None:
        object.__setattr__(self, "opts", {} if opts is None else opts)
        object.__setattr__(self, "unknown", {} if unknown is None else unknown)
        self.__post_init__()


class ObjectStoreConfig:
    """The kinds of store, one class each; `AnyObjectStoreConfig` is their union.

    Options and headers are left out of every repr, because they can hold credentials.
    """

    @dataclass(frozen=True, slots=True)
    class InMemory(PersistedValue):
        """The memory of this process."""

    @dataclass(frozen=True, slots=True)
    class LocalFileSystem(PersistedValue):
        """A directory of this machine."""

        path: str

    @dataclass(frozen=True, slots=True)
    class S3Compatible(PersistedValue):
        """A service that speaks the S3 protocol."""

        options: S3Options

    @dataclass(frozen=True, slots=True)
    class S3(PersistedValue):
        """Amazon S3."""

        options: S3Options

    @dataclass(frozen=True, slots=True)
    class Tigris(PersistedValue):
        """Tigris."""

        opts: S3Options

    @dataclass(frozen=True, slots=True, init=False)
    class Gcs(_ByOptions):
        """Google Cloud Storage, with the options of its client by name."""

    @dataclass(frozen=True, slots=True, init=False)
    class Azure(_ByOptions):
        """Azure Blob Storage, with the options of its client by name, among them ``account``."""

    @dataclass(frozen=True, slots=True, init=False)
    class Http(_ByOptions):
        """A web server, with the options of the client by name and headers for each request."""

        headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

        def __init__(
            self,
            opts: Mapping[str, str] | None = None,
            headers: Mapping[str, str] | None = None,
            *,
            unknown: Mapping[str, object] | None = None,
        ) -> None:
            object.__setattr__(self, "headers", {} if headers is None else headers)
            _ByOptions.__init__(self, opts, unknown=unknown)


AnyObjectStoreConfig: TypeAlias = (
    ObjectStoreConfig.InMemory
    | ObjectStoreConfig.LocalFileSystem
    | ObjectStoreConfig.S3Compatible
    | ObjectStoreConfig.S3
    | ObjectStoreConfig.Tigris
    | ObjectStoreConfig.Gcs
    | ObjectStoreConfig.Azure
    | ObjectStoreConfig.Http
)

_STORES_OF_SCHEME: Final[Mapping[str, tuple[type[Persisted], ...]]] = {
    "s3": (ObjectStoreConfig.S3, ObjectStoreConfig.S3Compatible, ObjectStoreConfig.Tigris),
    "gcs": (ObjectStoreConfig.Gcs,),
    "gs": (ObjectStoreConfig.Gcs,),
    "az": (ObjectStoreConfig.Azure,),
    "azure": (ObjectStoreConfig.Azure,),
    "abfs": (ObjectStoreConfig.Azure,),
    "tigris": (ObjectStoreConfig.Tigris,),
    "http": (ObjectStoreConfig.Http,),
    "https": (ObjectStoreConfig.Http,),
    "file": (ObjectStoreConfig.LocalFileSystem,),
}

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)")


@dataclass(frozen=True, slots=True, repr=False)
class VirtualChunkContainer(PersistedValue):
    """A prefix of the URLs of virtual chunks, and the store that holds them.

    Raises
    ------
    InvalidInputError
        If the prefix does not end in ``/``, does not fit the store, or the name is not usable.
    """

    url_prefix: str
    store: AnyObjectStoreConfig
    name: str | None = None

    def __post_init__(self) -> None:
        PersistedValue.__post_init__(self)
        if self.problem is not None:
            raise InvalidInputError(self.problem, kind=ErrorKind.BAD_PREFIX)

    @classmethod
    def from_persisted(
        cls,
        url_prefix: str,
        store: AnyObjectStoreConfig,
        name: str | None = None,
        *,
        unknown: Mapping[str, object],
    ) -> Self:
        """Make a container without checking its rules.

        A bad container in a repository must not make the repository unreadable, and must survive
        a rewrite of the configuration; nothing is read through it, see `usable_containers`.
        """
        container = object.__new__(cls)
        for name_, value in (
            ("url_prefix", url_prefix),
            ("store", store),
            ("name", name),
            ("unknown", unknown),
        ):
            object.__setattr__(container, name_, value)
        return container

    @property
    def problem(self) -> str | None:
        """Why this container cannot be used, or None where it can."""
        if self.name is not None and (not self.name or "/" in self.name):
            return f"the name of a container is not empty and has no '/': {self.name!r}"
        prefix = self.url_prefix
        if not prefix.endswith("/"):
            return f"the URL prefix of a container ends in '/': {prefix!r}"
        parts = _URL.fullmatch(prefix)
        if parts is None:
            return f"the URL prefix of a container looks like 's3://bucket/': {prefix!r}"
        scheme, host, path = parts[1].lower(), parts[2], parts[3]
        if not isinstance(self.store, _STORES_OF_SCHEME.get(scheme, ())):
            kind = type(self.store).__name__
            return f"the URL prefix {prefix!r} does not fit a store of kind {kind}"
        if scheme == "file":
            if not host and len(path) < 2:
                return f"the URL prefix of a local container includes a path: {prefix!r}"
            if any(
                segment.lower().replace("%2e", ".") in (".", "..") for segment in path.split("/")
            ):
                return f"the URL prefix of a local container has no '.' or '..': {prefix!r}"
        elif not host:
            return f"the URL prefix of a container includes a host or bucket: {prefix!r}"
        return None
