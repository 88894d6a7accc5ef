"""Settings of storages: concurrency, retries, timeouts, conditional requests, storage classes.

The defaults of unset fields depend on the kind of storage, as in Icechunk.
"""

from dataclasses import dataclass
from typing import Final

from icefloe.model.config_section import U32, U64, ConfigSection, Effective, NonZeroU16, NonZeroU64


@dataclass(slots=True, repr=False)
class StorageConcurrencySettings(ConfigSection):
    """Concurrent requests for parts of a large object."""

    max_concurrent_requests_for_object: NonZeroU16 | None = None
    ideal_concurrent_request_size: NonZeroU64 | None = None

    effective_max_concurrent_requests_for_object = Effective(18)
    effective_ideal_concurrent_request_size = Effective(12 * 1024 * 1024)


@dataclass(slots=True, repr=False)
class StorageRetriesSettings(ConfigSection):
    """The number of attempts of a request, and the backoff between them."""

    max_tries: NonZeroU16 | None = None
    initial_backoff_ms: U32 | None = None
    max_backoff_ms: U32 | None = None

    effective_max_tries = Effective(10)
    effective_initial_backoff_ms = Effective(100)
    effective_max_backoff_ms = Effective(3 * 60 * 1000)


@dataclass(slots=True, repr=False)
class StorageTimeoutSettings(ConfigSection):
    """Timeouts of requests; the client library has the defaults."""

    connect_timeout_ms: U32 | None = None
    read_timeout_ms: U32 | None = None
    operation_timeout_ms: U32 | None = None
    operation_attempt_timeout_ms: U32 | None = None


@dataclass(slots=True, repr=False)
class StorageSettings(ConfigSection):
    """All settings of a storage.

    The ``unsafe_use_`` switches are for stores without conditional requests or object metadata;
    without conditional requests, concurrent writers can overwrite each other's commits.
    """

    concurrency: StorageConcurrencySettings | None = None
    retries: StorageRetriesSettings | None = None
    unsafe_use_conditional_create: bool | None = None
    unsafe_use_conditional_update: bool | None = None
    unsafe_use_metadata: bool | None = None
    storage_class: str | None = None
    metadata_storage_class: str | None = None
    chunks_storage_class: str | None = None
    minimum_size_for_multipart_upload: U64 | None = None
    timeouts: StorageTimeoutSettings | None = None

    effective_concurrency = Effective(StorageConcurrencySettings())
    effective_retries = Effective(StorageRetriesSettings())
    effective_timeouts = Effective(StorageTimeoutSettings())
    effective_unsafe_use_conditional_create = Effective(True)
    effective_unsafe_use_conditional_update = Effective(True)
    effective_unsafe_use_metadata = Effective(True)
    effective_minimum_size_for_multipart_upload = Effective(100 * 1024 * 1024)

    @property
    def effective_metadata_storage_class(self) -> str | None:
        """The storage class of metadata files; None means the default of the bucket."""
        if self.metadata_storage_class is None:
            return self.storage_class
        return self.metadata_storage_class

    @property
    def effective_chunks_storage_class(self) -> str | None:
        """The storage class of chunks; None means the default of the bucket."""
        return (
            self.storage_class if self.chunks_storage_class is None else self.chunks_storage_class
        )


OBJECT_STORE_DEFAULTS: Final = StorageSettings()

IN_MEMORY_DEFAULTS: Final = StorageSettings(
    concurrency=StorageConcurrencySettings(
        max_concurrent_requests_for_object=5, ideal_concurrent_request_size=1
    ),
    retries=StorageRetriesSettings(max_tries=1, initial_backoff_ms=0, max_backoff_ms=0),
)

LOCAL_FILE_SYSTEM_DEFAULTS: Final = StorageSettings(
    concurrency=StorageConcurrencySettings(
        max_concurrent_requests_for_object=5, ideal_concurrent_request_size=4096
    ),
    retries=StorageRetriesSettings(max_tries=1, initial_backoff_ms=0, max_backoff_ms=0),
    unsafe_use_conditional_update=False,
    unsafe_use_metadata=False,
)
"""Icechunk's defaults, without conditional updates."""
