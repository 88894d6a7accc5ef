"""The repository configuration: what is stored with a repository and applies to all who open it.

`RepositoryConfig` is a tree of sections whose fields can be assigned to. A field that is unset is
None; the value that applies then is the ``effective_`` attribute of the same name. Sections lie
over each other with `RepositoryConfig.merge`: the defaults of the storage, then what the repository
persists, then what the user passes.

A section that stands in two configurations is one object, as it is in Icechunk: use `copy` where a
change of one must not be a change of the other.

All names of the configuration can be imported from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

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
    AnyObjectStoreConfig,
    ChecksumAlgorithm,
    ObjectStoreConfig,
    S3Options,
    VirtualChunkContainer,
    normalize_prefix,
)
from icefloe.model.manifest_config import (
    AnySplitDimCondition,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDim,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
)
from icefloe.model.storage_settings import (
    IN_MEMORY_DEFAULTS,
    LOCAL_FILE_SYSTEM_DEFAULTS,
    OBJECT_STORE_DEFAULTS,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)

__all__ = [
    "IN_MEMORY_DEFAULTS",
    "LOCAL_FILE_SYSTEM_DEFAULTS",
    "OBJECT_STORE_DEFAULTS",
    "AnyObjectStoreConfig",
    "AnySplitDimCondition",
    "CachingConfig",
    "ChecksumAlgorithm",
    "CompressionAlgorithm",
    "CompressionConfig",
    "ManifestConfig",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDim",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "ObjectStoreConfig",
    "PackingConfig",
    "RepoUpdateRetryConfig",
    "RepositoryConfig",
    "S3Options",
    "StorageConcurrencySettings",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "VirtualChunkContainer",
]


class CompressionAlgorithm(Enum):
    """How metadata files are compressed."""

    Zstd = 0

    @staticmethod
    def default() -> "CompressionAlgorithm":
        """Get the algorithm that is used where none is set."""
        return CompressionAlgorithm.Zstd


@dataclass(slots=True, repr=False)
class CompressionConfig(ConfigSection):
    """How metadata files are compressed, and how hard."""

    algorithm: CompressionAlgorithm | None = None
    level: U8 | None = None

    effective_algorithm = Effective("algorithm", CompressionAlgorithm.Zstd)
    effective_level = Effective("level", 3)

    @staticmethod
    def default() -> "CompressionConfig":
        """Get a section with nothing set."""
        return CompressionConfig()


@dataclass(slots=True, repr=False)
class CachingConfig(ConfigSection):
    """How much is kept in memory; 0 keeps nothing."""

    num_snapshot_nodes: U64 | None = None
    num_chunk_refs: U64 | None = None
    num_transaction_changes: U64 | None = None
    num_bytes_attributes: U64 | None = None
    num_bytes_chunks: U64 | None = None

    effective_num_snapshot_nodes = Effective("num_snapshot_nodes", 500_000)
    effective_num_chunk_refs = Effective("num_chunk_refs", 15_000_000)
    effective_num_transaction_changes = Effective("num_transaction_changes", 0)
    effective_num_bytes_attributes = Effective("num_bytes_attributes", 0)
    effective_num_bytes_chunks = Effective("num_bytes_chunks", 0)

    @staticmethod
    def default() -> "CachingConfig":
        """Get a section with nothing set."""
        return CachingConfig()


@dataclass(slots=True, repr=False)
class PackingConfig(ConfigSection):
    """How small chunks are put together into larger objects.

    Chunks of at most ``max_chunk_bytes`` are packed, into objects of about
    ``target_object_bytes``; a ``max_chunk_bytes`` of 0 packs none, also where the repository's own
    configuration packs. Icechunk has no such section: it ignores this one, and drops it when it
    saves the configuration.
    """

    max_chunk_bytes: U64 | None = None
    target_object_bytes: NonZeroU64 | None = None

    effective_max_chunk_bytes = Effective("max_chunk_bytes", 256 * 1024)
    effective_target_object_bytes = Effective("target_object_bytes", 8 * 1024 * 1024)


DEFAULT_REPO_UPDATE_RETRIES: Final = StorageRetriesSettings(
    max_tries=100, initial_backoff_ms=50, max_backoff_ms=30_000
)


@dataclass(slots=True, repr=False)
class RepoUpdateRetryConfig(ConfigSection):
    """How often an update of the ``repo`` object is tried again after somebody else's."""

    default: StorageRetriesSettings | None = None

    effective_default = Effective("default", DEFAULT_REPO_UPDATE_RETRIES)


def _copied(containers: object) -> object:
    """Copy a mapping, so that only assignments, which are checked, change what a section holds."""
    return dict(containers) if isinstance(containers, Mapping) else containers


@dataclass(slots=True, repr=False)
class RepositoryConfig(ConfigSection):
    """The configuration of a repository.

    A chunk of at most ``inline_chunk_threshold_bytes`` bytes is stored inside its manifest; 0
    stores none there. ``virtual_chunk_containers`` maps URL prefixes to containers; None means that
    nobody said anything about containers, so that the default ones apply, and an empty mapping that
    there are none. Chunks are packed only where ``packing`` is set.
    """

    inline_chunk_threshold_bytes: U16 | None = None
    get_partial_values_concurrency: U16 | None = None
    compression: CompressionConfig | None = None
    max_concurrent_requests: U16 | None = None
    caching: CachingConfig | None = None
    storage: StorageSettings | None = None
    virtual_chunk_containers: Mapping[str, VirtualChunkContainer] | None = field(
        default=None, metadata=convert_with(_copied)
    )
    manifest: ManifestConfig | None = None
    repo_update_retries: RepoUpdateRetryConfig | None = None
    num_updates_per_repo_info_file: U16 | None = None
    max_concurrent_decodes: U16 | None = None
    previous_file: str | None = field(default=None, kw_only=True)
    packing: PackingConfig | None = field(default=None, kw_only=True, metadata=ABSENT_IF_UNSET)

    effective_inline_chunk_threshold_bytes = Effective("inline_chunk_threshold_bytes", 512)
    effective_compression = Effective("compression", CompressionConfig())
    effective_caching = Effective("caching", CachingConfig())
    effective_storage = Effective("storage", StorageSettings())
    effective_manifest = Effective("manifest", ManifestConfig())
    effective_repo_update_retries = Effective("repo_update_retries", RepoUpdateRetryConfig())
    effective_num_updates_per_repo_info_file = Effective("num_updates_per_repo_info_file", 1000)

    @property
    def effective_max_concurrent_requests(self) -> int:
        """How many requests may be under way at once, at least one: with none, all would wait."""
        return 256 if self.max_concurrent_requests is None else max(1, self.max_concurrent_requests)

    @property
    def effective_get_partial_values_concurrency(self) -> int:
        """How many keys of one call are fetched at once, at least one."""
        concurrency = self.get_partial_values_concurrency
        return 10 if concurrency is None else max(1, concurrency)

    @staticmethod
    def default() -> "RepositoryConfig":
        """Get a configuration with nothing set."""
        return RepositoryConfig()

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """Get the container with this URL prefix or this name, or None.

        Default containers are not part of a configuration, and are not found here.
        """
        containers = self.virtual_chunk_containers or {}
        # A name has no '/' and a prefix has '://': no name hides a prefix, but a bare scheme.
        named = (container for container in containers.values() if container.name == name)
        found = containers.get(name) or next(named, None)
        return found or containers.get(normalize_prefix(name))

    def set_virtual_chunk_container(self, cont: VirtualChunkContainer) -> None:
        """Add a container, or edit one.

        It takes the place of the container with the same prefix and, where it has a name, of the
        one with the same name: both are unique within a repository. With the first container the
        default ones are gone.
        """
        if not isinstance(cont, VirtualChunkContainer):
            raise InvalidInputError(
                f"a VirtualChunkContainer is needed, not a {type(cont).__qualname__}",
                kind=ErrorKind.STORAGE_CONFIG,
            )
        meant = normalize_prefix(cont.url_prefix)
        kept = {
            prefix: other
            for prefix, other in (self.virtual_chunk_containers or {}).items()
            if (cont.name is None or other.name != cont.name)
            and normalize_prefix(other.url_prefix) != meant
        }
        self.virtual_chunk_containers = {**kept, cont.url_prefix: cont}

    def clear_virtual_chunk_containers(self) -> None:
        """Say that there are no containers, not even default ones.

        That holds also when this is laid over another configuration, and when it is saved.
        """
        self.virtual_chunk_containers = {}

    def usable_containers(self) -> list[VirtualChunkContainer]:
        """Get the containers that keep the rules, the one with the longest prefix first.

        The first whose prefix a location starts with is the container of that location.
        """
        usable = [c for c in (self.virtual_chunk_containers or {}).values() if c.problem is None]
        return sorted(usable, key=lambda c: (-len(c.url_prefix), c.url_prefix))
