"""Object storage: the interface, its backends, their constructors and credentials."""

import typing as _typing
from inspect import ismodule as _ismodule

from icefloe.model.containers import AnyObjectStoreConfig as AnyObjectStoreConfig
from icefloe.model.containers import ChecksumAlgorithm as ChecksumAlgorithm
from icefloe.model.containers import ObjectStoreConfig as ObjectStoreConfig
from icefloe.model.containers import S3Options as S3Options
from icefloe.model.storage_settings import StorageConcurrencySettings as StorageConcurrencySettings
from icefloe.model.storage_settings import StorageRetriesSettings as StorageRetriesSettings
from icefloe.model.storage_settings import StorageSettings as StorageSettings
from icefloe.model.storage_settings import StorageTimeoutSettings as StorageTimeoutSettings
from icefloe.storage import factories as factories  # assigns the constructors of Storage
from icefloe.storage.constructors import azure_storage as azure_storage
from icefloe.storage.constructors import gcs_storage as gcs_storage
from icefloe.storage.constructors import http_storage as http_storage
from icefloe.storage.constructors import in_memory_storage as in_memory_storage
from icefloe.storage.constructors import local_filesystem_storage as local_filesystem_storage
from icefloe.storage.constructors import r2_storage as r2_storage
from icefloe.storage.constructors import s3_object_store_storage as s3_object_store_storage
from icefloe.storage.constructors import s3_storage as s3_storage
from icefloe.storage.constructors import storage_from_url as storage_from_url
from icefloe.storage.constructors import tigris_storage as tigris_storage
from icefloe.storage.credentials import *  # noqa: F403
from icefloe.storage.hugging_face import hf_storage as hf_storage
from icefloe.storage.interface import Create as Create
from icefloe.storage.interface import Fetched as Fetched
from icefloe.storage.interface import Fresh as Fresh
from icefloe.storage.interface import ObjectInfo as ObjectInfo
from icefloe.storage.interface import Overwrite as Overwrite
from icefloe.storage.interface import PutMode as PutMode
from icefloe.storage.interface import Storage as Storage
from icefloe.storage.interface import StorageObjectInfo as StorageObjectInfo
from icefloe.storage.interface import Update as Update
from icefloe.storage.interface import UpdateIfMatch as UpdateIfMatch
from icefloe.storage.interface import Version as Version
from icefloe.storage.latency import LatencyStorage as LatencyStorage
from icefloe.storage.local import LocalStorage as LocalStorage
from icefloe.storage.memory import MemoryStorage as MemoryStorage
from icefloe.storage.object_store import HttpStorage as HttpStorage
from icefloe.storage.object_store import ObjectStorage as ObjectStorage
from icefloe.storage.places import AzurePlace as AzurePlace
from icefloe.storage.places import GcsPlace as GcsPlace
from icefloe.storage.places import Headers as Headers
from icefloe.storage.places import HttpPlace as HttpPlace
from icefloe.storage.places import Place as Place
from icefloe.storage.places import S3Place as S3Place
from icefloe.storage.redirect import redirect_storage as redirect_storage
from icefloe.storage.store_configs import azure_store as azure_store
from icefloe.storage.store_configs import gcs_store as gcs_store
from icefloe.storage.store_configs import http_store as http_store
from icefloe.storage.store_configs import local_filesystem_store as local_filesystem_store
from icefloe.storage.store_configs import s3_store as s3_store
from icefloe.types import ChunkType as ChunkType

# Type checkers read the imports; at run time, submodules are not public names.
if not _typing.TYPE_CHECKING:
    __all__ = [name for name in dir() if name[0] != "_" and not _ismodule(globals()[name])]
