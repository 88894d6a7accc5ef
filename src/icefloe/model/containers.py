"""Virtual chunk containers: the places outside the repository that its chunks may point into.

Seed `002` introduces them. A container names a URL prefix and how to reach the store behind it,
never a credential. A virtual chunk is read from the container with the longest matching prefix,
and only where that is the repository's own platform or the user authorised the container.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.config_section import ABSENT_IF_UNSET, U32, Persisted, PersistedValue


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

_STORES_WITH_BUCKETS: Final = (
    ObjectStoreConfig.S3,
    ObjectStoreConfig.S3Compatible,
    ObjectStoreConfig.Tigris,
    ObjectStoreConfig.Gcs,
    ObjectStoreConfig.Azure,
)
"""Also those of a scheme that means nothing by itself, as ``modela``."""

RELATIVE_SCHEME: Final = "vcc"
"""``vcc://name/path`` names a container, so no container has this scheme."""

_SCHEMES_THAT_NEED_A_HOST: Final = frozenset({"http", "https"})
"""Whoever allows a container on the web must be able to see which servers it leads to."""

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)")
_HOST: Final = re.compile(r"(?:[^@:\[\]]*|\[[0-9A-Fa-f:.]*\])(?::[0-9]*)?")
"""A password may hold a slash: then what stands before the first one has a port that is none."""
_BUCKET: Final = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{0,254}")
_WITHOUT_COLON: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:/(.*))?", re.DOTALL)


def normalize_prefix(url_prefix: str) -> str:
    """Write a URL prefix in the one way that it is compared and persisted.

    The seed's bare schemes become URLs (``s3`` is ``s3://``, ``models/dev`` is ``models://dev/``),
    schemes are in lower case, and a bucket or host ends in ``/``. What is no prefix stays as it is.
    """
    bare = _WITHOUT_COLON.fullmatch(url_prefix)
    if bare is not None:
        url_prefix = f"{bare[1]}://{bare[2] or ''}"
    parts = _URL.fullmatch(url_prefix)
    if parts is None:
        return url_prefix
    scheme, host, path = parts[1].lower(), parts[2], parts[3]
    # Only a host: no bucket has a name that goes on, so that nothing else can be meant.
    return f"{scheme}://{host}{path}" if path or not host else f"{scheme}://{host}/"


def is_bucket(name: str) -> bool:
    """Whether a name can be that of a bucket.

    Buckets become a part of host names, and neither a configuration nor a location is trusted: were
    ``evil.example#`` a bucket, a signed request would leave for another server.
    """
    return _BUCKET.fullmatch(name) is not None


def bucket_in(store: AnyObjectStoreConfig, authority: str) -> str:
    """Tell the bucket that the authority of a URL names, without the user or host beside it."""
    if isinstance(store, ObjectStoreConfig.Azure):
        # abfs://container@account.dfs.core.windows.net/path
        return authority.partition("@")[0]
    return authority.rpartition("@")[2]


@dataclass(frozen=True, slots=True, repr=False)
class VirtualChunkContainer(PersistedValue):
    """A prefix of the URLs of virtual chunks, and the store that holds them.

    A prefix holds what lies below it, in whole segments: ``s3://foo`` is the bucket ``foo`` and
    never ``foobar``, ``s3://foo/bar.nc`` is that object, or what lies below a folder of that name,
    and ``s3://``, for which ``s3`` may be written, is every bucket. A scheme that is not a
    platform's own, such as ``modela://``, has the buckets of the store's platform.

    Parameters
    ----------
    url_prefix
        What the locations of the container's chunks begin with.
    store
        The platform, and how it is reached.
    name
        For people, for credentials and for ``vcc://name/path``; unique within a repository.
    target_prefix
        The URL that ``url_prefix`` stands for, if that is another one: with
        ``gs://real-bucket/folder/`` as the target of ``modela://``, the location
        ``modela://2024/x.nc`` is read from ``gs://real-bucket/folder/2024/x.nc``. Icechunk does not
        know targets.

    Raises
    ------
    InvalidInputError
        If the prefix does not fit the store or holds a user or a password, or the name is not
        usable.
    """

    url_prefix: str
    store: AnyObjectStoreConfig
    name: str | None = None
    target_prefix: str | None = field(default=None, kw_only=True, metadata=ABSENT_IF_UNSET)

    def __post_init__(self) -> None:
        PersistedValue.__post_init__(self)
        object.__setattr__(self, "url_prefix", normalize_prefix(self.url_prefix))
        if self.target_prefix is not None:
            object.__setattr__(self, "target_prefix", normalize_prefix(self.target_prefix))
        problem = _problem_with_secrets(self) or self.problem
        if problem is not None:
            raise InvalidInputError(problem, kind=ErrorKind.BAD_PREFIX)

    @classmethod
    def from_persisted(
        cls,
        url_prefix: str,
        store: AnyObjectStoreConfig,
        name: str | None = None,
        target_prefix: str | None = None,
        *,
        unknown: Mapping[str, object],
    ) -> Self:
        """Make a container without checking its rules, from what somebody wrote.

        A bad container in a repository must not make the repository unreadable, and must survive
        a rewrite of the configuration; nothing is read through it, see `usable_containers`.
        """
        container = object.__new__(cls)
        for name_, value in (
            ("url_prefix", url_prefix),
            ("store", store),
            ("name", name),
            ("target_prefix", target_prefix),
            ("unknown", unknown),
        ):
            object.__setattr__(container, name_, value)
        return container

    @property
    def problem(self) -> str | None:
        """Why this container cannot be used, or None where it can."""
        if self.name is not None and (not self.name or "/" in self.name):
            return f"the name of a container is not empty and has no '/': {self.name!r}"
        if self.target_prefix is None:
            return _problem_with_prefix(self.url_prefix) or _problem_with_place(
                self.url_prefix, self.store
            )
        target = normalize_prefix(self.target_prefix)
        problem = _problem_with_prefix(self.url_prefix) or _problem_with_prefix(target)
        if problem is None and target.endswith("://"):
            problem = f"the target of a container includes a host or bucket: {_shown(target)!r}"
        return problem or _problem_with_place(target, self.store)


def _problem_with_secrets(container: VirtualChunkContainer) -> str | None:
    """Tell what a new container must not say; an old one that does is read as it always was."""
    for prefix in (container.url_prefix, container.target_prefix or ""):
        host = prefix.partition("://")[2].partition("/")[0]
        if isinstance(container.store, ObjectStoreConfig.Azure):
            host = host.rpartition("@")[2] if ":" not in host else host  # container@account.…
        if _HOST.fullmatch(host) is None:
            return (
                f"{_hidden(prefix)!r}: a user or a password in the URL prefix of a container would "
                "be saved, and shown to all who open the repository; leave it out, and give "
                "credentials to authorize_virtual_chunk_access, or in the environment"
            )
    return None


def _hidden(prefix: str) -> str:
    return f"{prefix.partition('://')[0]}://..." if "://" in prefix else "..."


def _shown(prefix: str) -> str:
    """Show a prefix, but not where it leads if it may hold a password or a signature."""
    return _hidden(prefix) if re.search("[@?#]", prefix) else prefix


def _problem_with_prefix(prefix: str) -> str | None:
    parts = _URL.fullmatch(normalize_prefix(prefix))
    if parts is None:
        return f"the URL prefix of a container looks like 's3://bucket/', not {_shown(prefix)!r}"
    scheme, host, path = parts[1].lower(), parts[2], parts[3]
    if scheme == RELATIVE_SCHEME:
        return f"vcc:// names containers, and cannot be the URL prefix of one: {_shown(prefix)!r}"
    if scheme == "file":
        if not host and len(path) < 2:
            return f"the URL prefix of a local container includes a path: {_shown(prefix)!r}"
        if any(segment.lower().replace("%2e", ".") in (".", "..") for segment in path.split("/")):
            return f"the URL prefix of a local container has no '.' or '..': {_shown(prefix)!r}"
    elif not host and (path or scheme in _SCHEMES_THAT_NEED_A_HOST):
        return f"the URL prefix of a container includes a host or bucket: {_shown(prefix)!r}"
    return None


def _problem_with_place(prefix: str, store: AnyObjectStoreConfig) -> str | None:
    scheme, _, rest = normalize_prefix(prefix).partition("://")
    if not isinstance(store, _STORES_OF_SCHEME.get(scheme, _STORES_WITH_BUCKETS)):
        return (
            f"the URL prefix {_shown(prefix)!r} does not fit a store of kind {type(store).__name__}"
        )
    bucket = bucket_in(store, rest.partition("/")[0])
    if rest and isinstance(store, _STORES_WITH_BUCKETS) and not is_bucket(bucket):
        return (
            f"the URL prefix of a container names a bucket, and {_shown(bucket)!r} is none: "
            f"{_shown(prefix)!r}"
        )
    return None
