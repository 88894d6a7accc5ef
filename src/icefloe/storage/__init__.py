"""Storage of objects: one interface, its backends, their constructors and credentials."""

from icefloe.model.containers import (
    AnyObjectStoreConfig,
    ChecksumAlgorithm,
    ObjectStoreConfig,
    S3Options,
)
from icefloe.model.storage_settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.storage import credentials
from icefloe.storage import factories as factories  # assigns the constructors of Storage
from icefloe.storage.constructors import (
    azure_storage,
    gcs_storage,
    http_storage,
    in_memory_storage,
    local_filesystem_storage,
    r2_storage,
    s3_object_store_storage,
    s3_storage,
    storage_from_url,
    tigris_storage,
)
from icefloe.storage.credentials import *  # noqa: F403
from icefloe.storage.hugging_face import hf_storage
from icefloe.storage.interface import (
    Create,
    Fetched,
    Fresh,
    ObjectInfo,
    Overwrite,
    PutMode,
    Storage,
    StorageObjectInfo,
    UpdateIfMatch,
    Version,
)
from icefloe.storage.latency import LatencyStorage
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.object_store import HttpStorage, ObjectStorage
from icefloe.storage.places import AzurePlace, GcsPlace, Headers, HttpPlace, Place, S3Place
from icefloe.storage.redirect import redirect_storage
from icefloe.storage.store_configs import (
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.types import ChunkType

__all__ = [
    "AnyObjectStoreConfig",
    "AzurePlace",
    "ChecksumAlgorithm",
    "ChunkType",
    "Create",
    "Fetched",
    "Fresh",
    "GcsPlace",
    "Headers",
    "HttpPlace",
    "HttpStorage",
    "LatencyStorage",
    "LocalStorage",
    "MemoryStorage",
    "ObjectInfo",
    "ObjectStorage",
    "ObjectStoreConfig",
    "Overwrite",
    "Place",
    "PutMode",
    "S3Options",
    "S3Place",
    "Storage",
    "StorageConcurrencySettings",
    "StorageObjectInfo",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "UpdateIfMatch",
    "Version",
    "azure_storage",
    "azure_store",
    "gcs_storage",
    "gcs_store",
    "hf_storage",
    "http_storage",
    "http_store",
    "in_memory_storage",
    "local_filesystem_storage",
    "local_filesystem_store",
    "r2_storage",
    "redirect_storage",
    "s3_object_store_storage",
    "s3_storage",
    "s3_store",
    "storage_from_url",
    "tigris_storage",
]
__all__ += credentials.__all__
