"""Maintenance of a repository: garbage collection, statistics, dependents, upgrades."""

from icefloe.maintenance.garbage_collection import collect_garbage
from icefloe.maintenance.limits import ReadLimits
from icefloe.maintenance.statistics import ChunkStorageStats, measure_chunks
from icefloe.maintenance.sweep import DeleteLimits, GCSummary
from icefloe.maintenance.upgrade import upgrade_icechunk_repository

__all__ = [
    "ChunkStorageStats",
    "DeleteLimits",
    "GCSummary",
    "ReadLimits",
    "collect_garbage",
    "measure_chunks",
    "upgrade_icechunk_repository",
]
