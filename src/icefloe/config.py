# ruff: isort: skip_file
"""Configuration, under Icechunk's name for the module."""

from icefloe.compat.logs import (
    initialize_logs as initialize_logs,
    set_logs_filter as set_logs_filter,
    shutdown_telemetry as shutdown_telemetry,
)
from icefloe.model.attribution import Attribution as Attribution
from icefloe.model.config import (
    CachingConfig as CachingConfig,
    CompressionAlgorithm as CompressionAlgorithm,
    CompressionConfig as CompressionConfig,
    PackingConfig as PackingConfig,
    RepositoryConfig as RepositoryConfig,
    RepoUpdateRetryConfig as RepoUpdateRetryConfig,
)
from icefloe.model.containers import ObjectStoreConfig as ObjectStoreConfig
from icefloe.model.manifest_config import (
    ManifestConfig as ManifestConfig,
    ManifestPreloadCondition as ManifestPreloadCondition,
    ManifestPreloadConfig as ManifestPreloadConfig,
    ManifestSplitCondition as ManifestSplitCondition,
    ManifestSplitDimCondition as ManifestSplitDimCondition,
    ManifestSplittingConfig as ManifestSplittingConfig,
    ManifestSplitValues as ManifestSplitValues,
    ManifestVirtualChunkLocationCompressionConfig as ManifestVirtualChunkLocationCompressionConfig,
    SplitSizesDict as SplitSizesDict,
)
from icefloe.model.repo_info import FeatureFlag as FeatureFlag
