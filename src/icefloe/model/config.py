"""The repository configuration: what is stored with a repository and applies to all who open it.

`RepositoryConfig` is a tree of frozen sections. A field that is unset is None; the value that
applies then is the ``effective_`` attribute of the same name. Sections lie over each other with
`RepositoryConfig.merge`: the defaults of the storage, then what the repository persists, then what
the user passes.

All names of the configuration can be imported from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from icefloe.model.config_section import U8, U16, U64, ConfigSection, Effective
from icefloe.model.containers import (
    AnyObjectStoreConfig,
    ChecksumAlgorithm,
    ObjectStoreConfig,
    S3Options,
    VirtualChunkContainer,
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


DEFAULT_REPO_UPDATE_RETRIES: Final = StorageRetriesSettings(
    max_tries=100, initial_backoff_ms=50, max_backoff_ms=30_000
)


@dataclass(frozen=True, slots=True)
class RepoUpdateRetryConfig(ConfigSection):
    """How often an update of the ``repo`` object is tried again after somebody else's."""

    default: StorageRetriesSettings | None = None

    effective_default = Effective("default", DEFAULT_REPO_UPDATE_RETRIES)


@dataclass(frozen=True, slots=True)
class RepositoryConfig(ConfigSection):
    """The configuration of a repository.

    A chunk of at most ``inline_chunk_threshold_bytes`` bytes is stored inside its manifest; 0
    stores none there. `virtual_chunk_containers` maps URL prefixes to containers.
    """

    inline_chunk_threshold_bytes: U16 | None = None
    get_partial_values_concurrency: U16 | None = None
    compression: CompressionConfig | None = None
    max_concurrent_requests: U16 | None = None
    caching: CachingConfig | None = None
    storage: StorageSettings | None = None
    virtual_chunk_containers: Mapping[str, VirtualChunkContainer] | None = None
    manifest: ManifestConfig | None = None
    repo_update_retries: RepoUpdateRetryConfig | None = None
    num_updates_per_repo_info_file: U16 | None = None
    max_concurrent_decodes: U16 | None = None
    previous_file: str | None = None

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

    def get_virtual_chunk_container(self, url_prefix: str) -> VirtualChunkContainer | None:
        """Get the container of a URL prefix, or None."""
        return (self.virtual_chunk_containers or {}).get(url_prefix)

    def with_virtual_chunk_container(self, container: VirtualChunkContainer) -> "RepositoryConfig":
        """Get a configuration with this container added.

        It takes the place of the container with the same prefix and, where it has a name, of the
        one with the same name: names are unique within a repository.
        """
        kept = {
            prefix: other
            for prefix, other in (self.virtual_chunk_containers or {}).items()
            if container.name is None or other.name != container.name
        }
        return replace(self, virtual_chunk_containers={**kept, container.url_prefix: container})

    def without_virtual_chunk_containers(self) -> "RepositoryConfig":
        """Get a configuration that says there are no containers, also when laid over another."""
        return replace(self, virtual_chunk_containers={})

    def usable_containers(self) -> list[VirtualChunkContainer]:
        """Get the containers that keep the rules, the one with the longest prefix first.

        The first whose prefix a location starts with is the container of that location.
        """
        usable = [c for c in (self.virtual_chunk_containers or {}).values() if c.problem is None]
        return sorted(usable, key=lambda c: (-len(c.url_prefix), c.url_prefix))
