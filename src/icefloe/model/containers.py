"""Virtual chunk containers: URL prefixes outside the repository that its chunks may refer to.

A container has a URL prefix and the settings of its store, never a credential. A virtual chunk is
read from the container with the longest matching prefix, if that container is on the platform of
the repository or the user has authorized it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, Self, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.config_section import (
    ABSENT_IF_UNSET,
    NOT_PERSISTED,
    U32,
    Persisted,
    PersistedValue,
)


class ChecksumAlgorithm(IntEnum):
    """The checksum algorithm of writes to S3."""

    Crc32 = 0
    Crc32c = 1
    Crc64Nvme = 2
    Sha1 = 3
    Sha256 = 4

    __str__ = Enum.__str__


@dataclass(frozen=True, slots=True, repr=False)
class S3Options(PersistedValue):
    """Settings of an S3 client."""

    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    anonymous: bool = False
    force_path_style: bool = False
    network_stream_timeout_seconds: U32 | None = None
    requester_pays: bool = False
    checksum_algorithm: ChecksumAlgorithm | None = None


@dataclass(frozen=True, slots=True, init=False)
class _StoreWithOptions(PersistedValue):
    """A store whose client takes named options; None means no options, as in Icechunk."""

    opts: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def __init__(
        self, opts: Mapping[str, str] | None = None, *, unknown: Mapping[str, object] | None = None
    ) -> None:
        object.__setattr__(self, "opts", {} if opts is None else opts)
        object.__setattr__(self, "unknown", {} if unknown is None else unknown)
        self.__post_init__()


class ObjectStoreConfig:
    """The kinds of stores; `AnyObjectStoreConfig` is their union.

    A repr omits options and headers, because they can hold credentials.
    """

    @dataclass(frozen=True, slots=True)
    class InMemory(PersistedValue):
        """Objects in the memory of this process."""

    @dataclass(frozen=True, slots=True)
    class LocalFileSystem(PersistedValue):
        """A local directory."""

        path: str

    @dataclass(frozen=True, slots=True)
    class S3Compatible(PersistedValue):
        """A service that implements the S3 API."""

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
    class Gcs(_StoreWithOptions):
        """Google Cloud Storage, with client options."""

    @dataclass(frozen=True, slots=True, init=False)
    class Azure(_StoreWithOptions):
        """Azure Blob Storage, with client options, including ``account``."""

    @dataclass(frozen=True, slots=True, init=False)
    class Http(_StoreWithOptions):
        """A web server, with client options and headers for each request."""

        headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

        def __init__(
            self,
            opts: Mapping[str, str] | None = None,
            headers: Mapping[str, str] | None = None,
            *,
            unknown: Mapping[str, object] | None = None,
        ) -> None:
            object.__setattr__(self, "headers", {} if headers is None else headers)
            _StoreWithOptions.__init__(self, opts, unknown=unknown)


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

_STORES_BY_SCHEME: Final[Mapping[str, tuple[type[Persisted], ...]]] = {
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
"""Stores with buckets; custom schemes, such as ``modela``, must use one of them."""

DEFAULT_CONTAINER_NAMES: Final = ("s3", "gcs", "gs", "azure", "az", "tigris", "r2")
"""The names of the default containers; the URL prefix of each is the scheme of its name.

The container ``r2`` exists only in repositories on R2, because it needs an endpoint.
"""

RELATIVE_SCHEME: Final = "vcc"
"""``vcc://name/path`` refers to a container by name, so containers must not use this scheme."""

_SCHEMES_WITH_HOST: Final = frozenset({"http", "https"})
"""Schemes without a wildcard for hosts: authorizing a web container must show the server."""

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)")
_HOST: Final = re.compile(r"(?:[^@:\[\]]*|\[[0-9A-Fa-f:.]*\])(?::[0-9]*)?")
"""A password with a slash does not match either: the text before the slash is no valid port."""
_BUCKET: Final = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{0,254}")
_BARE_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:/(.*))?", re.DOTALL)


def normalize_prefix(url_prefix: str) -> str:
    """Return the canonical form of a URL prefix.

    Bare schemes become URLs (``s3`` is ``s3://``, ``models/dev`` is ``models://dev/``), schemes are
    lowercased, and a bucket or host ends in ``/``. Invalid prefixes are returned unchanged.
    """
    bare = _BARE_SCHEME.fullmatch(url_prefix)
    if bare is not None:
        url_prefix = f"{bare[1]}://{bare[2] or ''}"
    parts = _URL.fullmatch(url_prefix)
    if parts is None:
        return url_prefix
    scheme, host, path = parts[1].lower(), parts[2], parts[3]
    # The slash makes the prefix match this host or bucket only, not longer names.
    return f"{scheme}://{host}{path}" if path or not host else f"{scheme}://{host}/"


def is_bucket(name: str) -> bool:
    """Whether a name is valid for a bucket.

    Buckets become part of host names, and configurations and locations are untrusted: with the
    bucket ``evil.example#`` a signed request would be sent to another server.
    """
    return _BUCKET.fullmatch(name) is not None


def get_bucket(store: AnyObjectStoreConfig, authority: str) -> str:
    """Return the bucket in the authority of a URL, without user and host."""
    if isinstance(store, ObjectStoreConfig.Azure):
        # abfs://container@account.dfs.core.windows.net/path
        return authority.partition("@")[0]
    return authority.rpartition("@")[2]


@dataclass(frozen=True, slots=True, repr=False)
class VirtualChunkContainer(PersistedValue):
    """A URL prefix of virtual chunks, and the store that serves it.

    A prefix matches whole segments: ``s3://foo`` matches the bucket ``foo`` but not ``foobar``,
    ``s3://foo/bar.nc`` matches that object or folder, and ``s3://`` or ``s3`` match every bucket.
    The buckets of a custom scheme, such as ``modela://``, are those of the store.

    Parameters
    ----------
    url_prefix
        The URL prefix of chunk locations.
    store
        The platform and its settings.
    name
        The name in ``vcc://name/path`` and for credentials, unique within a repository.
    target_prefix
        The URL that replaces ``url_prefix`` on reads: with ``gs://bucket/folder/`` as target of
        ``modela://``, ``modela://2024/x.nc`` is read from ``gs://bucket/folder/2024/x.nc``.
        Icechunk has no targets.

    Raises
    ------
    InvalidInputError
        If the prefix does not match the store or contains credentials, or the name is invalid. A
        container in memory, which no repository can use, is refused where it is configured.
    """

    url_prefix: str
    store: AnyObjectStoreConfig
    name: str | None = None
    target_prefix: str | None = field(default=None, kw_only=True, metadata=ABSENT_IF_UNSET)
    _was_persisted: bool = field(
        default=False, init=False, repr=False, compare=False, metadata=NOT_PERSISTED
    )

    def __post_init__(self) -> None:
        PersistedValue.__post_init__(self)
        object.__setattr__(self, "url_prefix", normalize_prefix(self.url_prefix))
        if self.target_prefix is not None:
            object.__setattr__(self, "target_prefix", normalize_prefix(self.target_prefix))
        problem = _find_secrets(self)
        if problem is None and not isinstance(self.store, ObjectStoreConfig.InMemory):
            problem = self.problem
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
        """Make a container from its persisted form, without validation.

        An invalid container must not make a repository unreadable, and a rewrite of the
        configuration must preserve it; chunks are never read from it, see `usable_containers`.
        """
        container = object.__new__(cls)
        for field_name, value in (
            ("url_prefix", url_prefix),
            ("store", store),
            ("name", name),
            ("target_prefix", target_prefix),
            ("unknown", unknown),
            ("_was_persisted", True),
        ):
            object.__setattr__(container, field_name, value)
        return container

    @property
    def problem(self) -> str | None:
        """Why this container is invalid, or None."""
        if self.name is not None and (not self.name or "/" in self.name):
            return f"the name of a container must not be empty or contain '/': {self.name!r}"
        if self.target_prefix is None:
            return _check_prefix(self.url_prefix) or _check_store(self.url_prefix, self.store)
        target = normalize_prefix(self.target_prefix)
        problem = _check_prefix(self.url_prefix) or _check_prefix(target)
        if problem is None and target.endswith("://"):
            problem = (
                f"the target of a container must include a host or bucket: {_redact(target)!r}"
            )
        return problem or _check_store(target, self.store)


def find_unsupported(containers: Iterable[VirtualChunkContainer]) -> str | None:
    """Return the problem of a container that can be made, but not configured, or None."""
    for container in containers:
        is_in_memory = isinstance(container.store, ObjectStoreConfig.InMemory)
        if is_in_memory and not _were_persisted(container):
            return container.problem
    return None


def find_duplicate(containers: Iterable[VirtualChunkContainer]) -> str | None:
    """Return which name or URL prefix two containers share, or None.

    Icechunk does not check names and prefixes. So that its repositories can be opened, two
    containers that were both persisted may share them; `ContainerTable` resolves no such name.
    """
    by_prefix: dict[str, VirtualChunkContainer] = {}
    by_name: dict[str, VirtualChunkContainer] = {}
    for container in containers:
        prefix = normalize_prefix(container.url_prefix)
        other = by_prefix.setdefault(prefix, container)
        if other is not container and not _were_persisted(container, other):
            return f"two containers have the URL prefix {_redact(prefix)!r}"
        if container.name is None:
            continue
        other = by_name.setdefault(container.name, container)
        if other is not container and not _were_persisted(container, other):
            prefixes = f"{_redact(other.url_prefix)!r} and {_redact(container.url_prefix)!r}"
            return f"the containers {prefixes} have the same name, {container.name!r}"
    return None


def _were_persisted(*containers: VirtualChunkContainer) -> bool:
    return all(container._was_persisted for container in containers)  # noqa: SLF001


def _find_secrets(container: VirtualChunkContainer) -> str | None:
    """Return why a prefix seems to hold a secret, or None; not checked for persisted containers."""
    for prefix in (container.url_prefix, container.target_prefix or ""):
        host = prefix.partition("://")[2].partition("/")[0]
        if isinstance(container.store, ObjectStoreConfig.Azure):
            host = host.rpartition("@")[2] if ":" not in host else host  # container@account.…
        if _HOST.fullmatch(host) is None:
            return (
                f"{_hide(prefix)!r}: the URL prefix of a container must not have a user or "
                "password, which all readers of the repository could see; pass credentials to "
                "authorize_virtual_chunk_access, or in the environment"
            )
    return None


def _hide(prefix: str) -> str:
    return f"{prefix.partition('://')[0]}://..." if "://" in prefix else "..."


def _redact(prefix: str) -> str:
    """Hide a prefix that may hold a password or a signature."""
    return _hide(prefix) if re.search("[@?#]", prefix) else prefix


def _check_prefix(prefix: str) -> str | None:
    parts = _URL.fullmatch(normalize_prefix(prefix))
    if parts is None:
        return f"expected a URL prefix like 's3://bucket/', got {_redact(prefix)!r}"
    scheme, host, path = parts[1].lower(), parts[2], parts[3]
    if scheme == RELATIVE_SCHEME:
        return f"the scheme vcc:// is reserved and cannot be a URL prefix: {_redact(prefix)!r}"
    if scheme == "file":
        if not host and len(path) < 2:
            return f"a local URL prefix must include a path: {_redact(prefix)!r}"
        if any(segment.lower().replace("%2e", ".") in (".", "..") for segment in path.split("/")):
            return f"a local URL prefix must not contain '.' or '..' segments: {_redact(prefix)!r}"
    elif not host and (path or scheme in _SCHEMES_WITH_HOST):
        return f"the URL prefix of a container must include a host or bucket: {_redact(prefix)!r}"
    return None


def _check_store(prefix: str, store: AnyObjectStoreConfig) -> str | None:
    scheme, _, path = normalize_prefix(prefix).partition("://")
    if isinstance(store, ObjectStoreConfig.InMemory):
        return "virtual chunks are not supported in stores of kind InMemory"
    if not isinstance(store, _STORES_BY_SCHEME.get(scheme, _STORES_WITH_BUCKETS)):
        kind = type(store).__name__
        return f"the URL prefix {_redact(prefix)!r} does not match a store of kind {kind}"
    bucket = get_bucket(store, path.partition("/")[0])
    if path and isinstance(store, _STORES_WITH_BUCKETS) and not is_bucket(bucket):
        return (
            f"{_redact(bucket)!r} in the URL prefix {_redact(prefix)!r} is not a valid bucket name"
        )
    return None
