"""Configuration, under the name that Icechunk has for it; it is `icefloe.model.config`."""

from icefloe.compat.logs import initialize_logs, set_logs_filter, shutdown_telemetry
from icefloe.model.attribution import Attribution
from icefloe.model.config import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    ObjectStoreConfig,
    PackingConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
)
from icefloe.model.repo_info import FeatureFlag

__all__ = [
    "Attribution",
    "CachingConfig",
    "CompressionAlgorithm",
    "CompressionConfig",
    "FeatureFlag",
    "ManifestConfig",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "ObjectStoreConfig",
    "PackingConfig",
    "RepoUpdateRetryConfig",
    "RepositoryConfig",
    "initialize_logs",
    "set_logs_filter",
    "shutdown_telemetry",
]
