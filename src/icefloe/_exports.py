# ruff: isort: skip_file
"""The public names of `icefloe`: everything that is imported here, and `icefloe._SEPARATE`.

`icefloe.__getattr__` loads this module at the first use of a name, and type checkers follow the
same imports: ``X as X`` and ``import *`` export a name (PEP 484).
"""

# ruff: noqa: F403

from icefloe.config import *
from icefloe.conflicts import *
from icefloe.credentials import (
    AnyAzureCredential as AnyAzureCredential,
    AnyAzureStaticCredential as AnyAzureStaticCredential,
    AnyCredential as AnyCredential,
    AnyGcsCredential as AnyGcsCredential,
    AnyGcsStaticCredential as AnyGcsStaticCredential,
    AnyS3Credential as AnyS3Credential,
    AzureCredentials as AzureCredentials,
    AzureRefreshableCredential as AzureRefreshableCredential,
    AzureStaticCredentials as AzureStaticCredentials,
    Credentials as Credentials,
    GcsBearerCredential as GcsBearerCredential,
    GcsCredentials as GcsCredentials,
    GcsStaticCredentials as GcsStaticCredentials,
    S3Credentials as S3Credentials,
    S3StaticCredentials as S3StaticCredentials,
    azure_anonymous_credentials as azure_anonymous_credentials,
    azure_credentials as azure_credentials,
    azure_from_env_credentials as azure_from_env_credentials,
    azure_refreshable_credentials as azure_refreshable_credentials,
    azure_static_credentials as azure_static_credentials,
    containers_credentials as containers_credentials,
    gcs_anonymous_credentials as gcs_anonymous_credentials,
    gcs_credentials as gcs_credentials,
    gcs_from_env_credentials as gcs_from_env_credentials,
    gcs_refreshable_credentials as gcs_refreshable_credentials,
    gcs_static_credentials as gcs_static_credentials,
    s3_anonymous_credentials as s3_anonymous_credentials,
    s3_credentials as s3_credentials,
    s3_from_env_credentials as s3_from_env_credentials,
    s3_refreshable_credentials as s3_refreshable_credentials,
    s3_static_credentials as s3_static_credentials,
)
from icefloe.errors import (
    AlreadyExistsError as AlreadyExistsError,
    ConflictError as ConflictError,
    ErrorKind as ErrorKind,
    FormatError as FormatError,
    IcechunkError as IcechunkError,
    IcefloeError as IcefloeError,
    InternalError as InternalError,
    InvalidInputError as InvalidInputError,
    NodeNotFoundError as NodeNotFoundError,
    NotFoundError as NotFoundError,
    ObjectNotFoundError as ObjectNotFoundError,
    OutcomeUnknownError as OutcomeUnknownError,
    PreconditionFailedError as PreconditionFailedError,
    ReadOnlyError as ReadOnlyError,
    RebaseFailedError as RebaseFailedError,
    RefNotFoundError as RefNotFoundError,
    RepositoryNotFoundError as RepositoryNotFoundError,
    SessionStateError as SessionStateError,
    SnapshotNotFoundError as SnapshotNotFoundError,
    StorageError as StorageError,
)
from icefloe.maintenance import (
    ChunkStorageStats as ChunkStorageStats,
    upgrade_icechunk_repository as upgrade_icechunk_repository,
)
from icefloe.model.containers import VirtualChunkContainer as VirtualChunkContainer
from icefloe.model.repo_info import (
    RepoAvailability as RepoAvailability,
    RepoStatus as RepoStatus,
)
from icefloe.model.virtual_chunk_spec import VirtualChunkSpec as VirtualChunkSpec
from icefloe.ops import *
from icefloe.repository import *
from icefloe.session import (
    ForkSession as ForkSession,
    Session as Session,
)
from icefloe.snapshots import *
from icefloe.storage import (
    AnyObjectStoreConfig as AnyObjectStoreConfig,
    ChecksumAlgorithm as ChecksumAlgorithm,
    LatencyStorage as LatencyStorage,
    S3Options as S3Options,
    Storage as Storage,
    StorageConcurrencySettings as StorageConcurrencySettings,
    StorageObjectInfo as StorageObjectInfo,
    StorageRetriesSettings as StorageRetriesSettings,
    StorageSettings as StorageSettings,
    StorageTimeoutSettings as StorageTimeoutSettings,
    azure_storage as azure_storage,
    azure_store as azure_store,
    gcs_storage as gcs_storage,
    gcs_store as gcs_store,
    hf_storage as hf_storage,
    http_storage as http_storage,
    http_store as http_store,
    in_memory_storage as in_memory_storage,
    local_filesystem_storage as local_filesystem_storage,
    local_filesystem_store as local_filesystem_store,
    r2_storage as r2_storage,
    redirect_storage as redirect_storage,
    s3_object_store_storage as s3_object_store_storage,
    s3_storage as s3_storage,
    s3_store as s3_store,
    storage_from_url as storage_from_url,
    tigris_storage as tigris_storage,
)
from icefloe.types import *
