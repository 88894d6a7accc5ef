"""The configuration of a repository.

`RepositoryConfig` is a tree of mutable sections. An unset field is None; its ``effective_``
attribute has the value that applies. `RepositoryConfig.merge` overlays configurations: the defaults
of the storage, the persisted configuration, and the configuration of the user.

As in Icechunk, two configurations can share a section: assign a `copy` to separate them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, EnumType, IntEnum
from typing import Any, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.config_section import (
    ABSENT_IF_UNSET,
    U8,
    U16,
    U64,
    ConfigSection,
    Effective,
    NonZeroU64,
    convert_with,
)
from icefloe.model.containers import (
    DEFAULT_CONTAINER_NAMES,
    VirtualChunkContainer,
    find_duplicate,
    find_unsupported,
    normalize_prefix,
)
from icefloe.model.manifest_config import ManifestConfig
from icefloe.model.storage_settings import StorageRetriesSettings, StorageSettings


class _WithDefault(EnumType):
    """The type of an enumeration whose call without a value returns the member 0, as Icechunk's."""

    def __call__(cls, value: object = 0, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(value, *args, **kwargs)


class CompressionAlgorithm(IntEnum, metaclass=_WithDefault):
    """The compression of metadata files."""

    Zstd = 0

    __str__ = Enum.__str__

    @staticmethod
    def default() -> "CompressionAlgorithm":
        """Return the default algorithm."""
        return CompressionAlgorithm.Zstd


@dataclass(slots=True, repr=False)
class CompressionConfig(ConfigSection):
    """The compression algorithm and level of metadata files."""

    algorithm: CompressionAlgorithm | None = None
    level: U8 | None = None

    effective_algorithm = Effective(CompressionAlgorithm.Zstd)
    effective_level = Effective(3)

    @staticmethod
    def default() -> "CompressionConfig":
        """Return a section with nothing set."""
        return CompressionConfig()


@dataclass(slots=True, repr=False)
class CachingConfig(ConfigSection):
    """The sizes of the in-memory caches; 0 disables a cache."""

    num_snapshot_nodes: U64 | None = None
    num_chunk_refs: U64 | None = None
    num_transaction_changes: U64 | None = None
    num_bytes_attributes: U64 | None = None
    num_bytes_chunks: U64 | None = None

    effective_num_snapshot_nodes = Effective(500_000)
    effective_num_chunk_refs = Effective(15_000_000)
    effective_num_transaction_changes = Effective(0)
    effective_num_bytes_attributes = Effective(0)
    effective_num_bytes_chunks = Effective(0)

    @staticmethod
    def default() -> "CachingConfig":
        """Return a section with nothing set."""
        return CachingConfig()


@dataclass(slots=True, repr=False)
class PackingConfig(ConfigSection):
    """The packing of small chunks into larger objects.

    Chunks of at most ``max_chunk_bytes`` are packed into objects of about ``target_object_bytes``;
    0 disables packing. Icechunk ignores this section, and drops it when it saves a configuration.
    """

    max_chunk_bytes: U64 | None = None
    target_object_bytes: NonZeroU64 | None = None

    effective_max_chunk_bytes = Effective(256 * 1024)
    effective_target_object_bytes = Effective(8 * 1024 * 1024)


DEFAULT_REPO_UPDATE_RETRIES: Final = StorageRetriesSettings(
    max_tries=100, initial_backoff_ms=50, max_backoff_ms=30_000
)


@dataclass(slots=True, repr=False)
class RepoUpdateRetryConfig(ConfigSection):
    """Retries of an update of ``repo`` after another writer updated it first."""

    default: StorageRetriesSettings | None = None

    effective_default = Effective(DEFAULT_REPO_UPDATE_RETRIES)


def _copy_containers(containers: object) -> object:
    """Copy a mapping, so that every change of a section is a checked assignment.

    Raises `InvalidInputError` if two containers have the same name or URL prefix.
    """
    if not isinstance(containers, Mapping):
        return containers
    found = [item for item in containers.values() if isinstance(item, VirtualChunkContainer)]
    unsupported = find_unsupported(found)
    if unsupported is not None:
        raise InvalidInputError(unsupported, kind=ErrorKind.BAD_PREFIX)
    problem = find_duplicate(found)
    if problem is not None:
        raise InvalidInputError(
            f"RepositoryConfig.virtual_chunk_containers: {problem}; names and URL prefixes of "
            "containers are unique",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    return dict(containers)


def _to_tuple(names: object) -> object:
    return tuple(names) if isinstance(names, list) else names


@dataclass(slots=True, repr=False)
class RepositoryConfig(ConfigSection):
    """The configuration of a repository.

    Chunks of at most ``inline_chunk_threshold_bytes`` bytes are stored in their manifest.
    ``virtual_chunk_containers`` maps URL prefixes to containers, whose names and prefixes are
    unique. They override the default containers with the same prefix; an empty mapping means no
    containers and no defaults. ``default_virtual_chunk_containers`` has the names of the default
    containers that apply (`DEFAULT_CONTAINER_NAMES` if unset); Icechunk ignores it, and drops it
    when it saves a configuration. Chunks are packed only if ``packing`` is set.
    """

    inline_chunk_threshold_bytes: U16 | None = None
    get_partial_values_concurrency: U16 | None = None
    compression: CompressionConfig | None = None
    max_concurrent_requests: U16 | None = None
    caching: CachingConfig | None = None
    storage: StorageSettings | None = None
    virtual_chunk_containers: Mapping[str, VirtualChunkContainer] | None = field(
        default=None, metadata=convert_with(_copy_containers)
    )
    manifest: ManifestConfig | None = None
    repo_update_retries: RepoUpdateRetryConfig | None = None
    num_updates_per_repo_info_file: U16 | None = None
    max_concurrent_decodes: U16 | None = None
    previous_file: str | None = field(default=None, kw_only=True)
    packing: PackingConfig | None = field(default=None, kw_only=True, metadata=ABSENT_IF_UNSET)
    default_virtual_chunk_containers: tuple[str, ...] | None = field(
        default=None, kw_only=True, metadata={**ABSENT_IF_UNSET, **convert_with(_to_tuple)}
    )

    effective_inline_chunk_threshold_bytes = Effective(512)
    effective_compression = Effective(CompressionConfig())
    effective_caching = Effective(CachingConfig())
    effective_storage = Effective(StorageSettings())
    effective_manifest = Effective(ManifestConfig())
    effective_repo_update_retries = Effective(RepoUpdateRetryConfig())
    effective_num_updates_per_repo_info_file = Effective(1000)

    @property
    def effective_max_concurrent_requests(self) -> int:
        """The maximum number of concurrent requests, at least one."""
        return 256 if self.max_concurrent_requests is None else max(1, self.max_concurrent_requests)

    @property
    def effective_get_partial_values_concurrency(self) -> int:
        """The maximum number of keys that one call fetches concurrently, at least one."""
        concurrency = self.get_partial_values_concurrency
        return 10 if concurrency is None else max(1, concurrency)

    @property
    def effective_default_virtual_chunk_containers(self) -> tuple[str, ...]:
        """The names of the default containers that apply where no container has their prefix."""
        if self.default_virtual_chunk_containers is not None:
            return self.default_virtual_chunk_containers
        return () if self._has_no_containers else DEFAULT_CONTAINER_NAMES

    @property
    def _has_no_containers(self) -> bool:
        """Whether the list of containers is empty, which differs from a list that is not set."""
        return self.virtual_chunk_containers is not None and not self.virtual_chunk_containers

    @staticmethod
    def default() -> "RepositoryConfig":
        """Return a configuration with nothing set."""
        return RepositoryConfig()

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """Return the container with this URL prefix or name, or None.

        Default containers depend on the storage of the repository, and are not part of the
        configuration: `Repository.list_virtual_chunk_containers` has them.
        """
        containers = self.virtual_chunk_containers or {}
        # A name has no '/' and a prefix has '://', so a name can only equal a bare scheme.
        named = (container for container in containers.values() if container.name == name)
        container = containers.get(name) or next(named, None)
        return container or containers.get(normalize_prefix(name))

    def set_virtual_chunk_container(self, cont: VirtualChunkContainer) -> None:
        """Add a container, and remove containers with the same prefix or name.

        It overrides the default container with its prefix; the other defaults still apply, unless
        the list of containers was cleared before.
        """
        if not isinstance(cont, VirtualChunkContainer):
            raise InvalidInputError(
                f"expected a VirtualChunkContainer, got a {type(cont).__qualname__}",
                kind=ErrorKind.STORAGE_CONFIG,
            )
        if self._has_no_containers and self.default_virtual_chunk_containers is None:
            self.default_virtual_chunk_containers = ()  # a cleared list has no defaults
        new_prefix = normalize_prefix(cont.url_prefix)
        others = {
            prefix: other
            for prefix, other in (self.virtual_chunk_containers or {}).items()
            if (cont.name is None or other.name != cont.name)
            and normalize_prefix(other.url_prefix) != new_prefix
        }
        self.virtual_chunk_containers = {**others, cont.url_prefix: cont}

    def clear_virtual_chunk_containers(self) -> None:
        """Remove all containers, including the defaults; merges and saves preserve this."""
        self.virtual_chunk_containers = {}
        self.default_virtual_chunk_containers = ()

    def remove_virtual_chunk_container(self, name: str) -> None:
        """Remove the container with this URL prefix or name, or else that default container.

        After a container is removed, the default container with its prefix applies. Raises
        `InvalidInputError` if there is no such container.
        """
        container = self.get_virtual_chunk_container(name)
        defaults = self.effective_default_virtual_chunk_containers
        if container is None:
            prefix = normalize_prefix(name)
            remaining = tuple(item for item in defaults if normalize_prefix(item) != prefix)
            if remaining == defaults:
                raise InvalidInputError(
                    f"there is no virtual chunk container with the URL prefix or name {name!r}",
                    kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
                )
            self.default_virtual_chunk_containers = remaining
            return
        containers = self.virtual_chunk_containers or {}
        others = {key: other for key, other in containers.items() if other is not container}
        if not others:  # an empty list alone would mean no defaults
            self.default_virtual_chunk_containers = defaults
        self.virtual_chunk_containers = others

    def usable_containers(self) -> list[VirtualChunkContainer]:
        """Return the valid containers, longest prefix first.

        The first container whose prefix matches a location is the container of that location.
        """
        usable = [c for c in (self.virtual_chunk_containers or {}).values() if c.problem is None]
        return sorted(usable, key=lambda c: (-len(c.url_prefix), c.url_prefix))
