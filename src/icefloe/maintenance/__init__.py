"""Maintenance of a repository: garbage collection, statistics, dependencies, upgrades."""

from icefloe.maintenance.garbage_collection import collect_garbage as collect_garbage
from icefloe.maintenance.limits import ReadLimits as ReadLimits
from icefloe.maintenance.statistics import ChunkStorageStats as ChunkStorageStats
from icefloe.maintenance.statistics import measure_chunks as measure_chunks
from icefloe.maintenance.sweep import DeleteLimits as DeleteLimits
from icefloe.maintenance.sweep import GCSummary as GCSummary
from icefloe.maintenance.upgrade import upgrade_icechunk_repository as upgrade_icechunk_repository
