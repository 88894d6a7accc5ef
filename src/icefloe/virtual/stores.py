"""The storage behind each container: a bucket or a web server, reached as the container says.

A container without credentials of its own that lies where the repository itself lies (the same
platform, endpoint and, on Azure, account) is read with the repository's (seed `002`). They never go
anywhere else, and never to a container that the user did not authorise. Pure, no I/O: storages
connect when they are first used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from icefloe.errors import ErrorKind, InternalError
from icefloe.model.containers import ObjectStoreConfig
from icefloe.model.storage_settings import OBJECT_STORE_DEFAULTS
from icefloe.storage.constructors import azure_storage, gcs_storage, http_storage
from icefloe.storage.credentials import (
    AzureCredentials,
    Credentials,
    GcsCredentials,
    S3Credentials,
)
from icefloe.storage.factories import new_s3, new_tigris
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.object_store import ObjectStorage
from icefloe.storage.places import AzurePlace, GcsPlace, Place, S3Place

if TYPE_CHECKING:
    from icefloe.model.containers import S3Options
    from icefloe.model.storage_settings import StorageSettings
    from icefloe.storage.credentials import AnyCredential
    from icefloe.storage.interface import Storage
    from icefloe.virtual.container_table import KnownContainer


def home_of(repository: Storage) -> tuple[Place | None, StorageSettings]:
    """Tell where a repository is, if that is an object store, and the settings for requests."""
    while isinstance(repository, ForwardingStorage):
        repository = repository.inner
    if isinstance(repository, ObjectStorage):
        return repository.place, repository.settings
    return None, OBJECT_STORE_DEFAULTS


def open_store(
    known: KnownContainer,
    credential: AnyCredential | None,
    *,
    home: Place | None,
    settings: StorageSettings,
) -> ObjectStorage:
    """Make the storage of a remote container; its keys are those of the whole bucket or host.

    ``credential`` is what the user gave for it, and ``home`` where the repository is.
    """
    bucket = known.prefix.authority.rpartition("@")[2]
    match known.container.store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            made = _s3(new_s3(options, bucket, None), options, credential, home)
        case ObjectStoreConfig.Tigris(options) if options.force_path_style:
            made = _s3(new_s3(options, bucket, None), options, credential, home)
        case ObjectStoreConfig.Tigris(options):
            # Without a region Tigris may answer from a replica, which is enough for files that do
            # not change; for those that do there are checksums.
            weak = options.region is None
            made = _s3(new_tigris(options, bucket, None, weak), options, credential, home)
        case ObjectStoreConfig.Gcs(opts):
            made = _gcs(gcs_storage(bucket=bucket, prefix=None, config=opts), credential, home)
        case ObjectStoreConfig.Azure(opts):
            # abfs://container@account.dfs.core.windows.net/path
            container = known.prefix.authority.partition("@")[0]
            config = {name: value for name, value in opts.items() if name != "account"}
            blobs = azure_storage(
                account=opts.get("account"), container=container, prefix=None, config=config
            )
            made = _azure(blobs, credential, home)
        case ObjectStoreConfig.Http(opts, headers=headers):
            origin = f"{known.prefix.scheme}://{known.prefix.authority}"
            made = http_storage(origin, opts, headers)
        case other:
            raise InternalError(
                f"no virtual chunks are read from a {type(other).__name__}", kind=ErrorKind.UNKNOWN
            )
    return made.with_settings(settings)


def _s3(
    made: ObjectStorage, options: S3Options, credential: AnyCredential | None, home: Place | None
) -> ObjectStorage:
    place = _placed(made, S3Place)
    same = home if isinstance(home, S3Place) and _endpoint(home) == _endpoint(place) else None
    if same is not None and place.region is None:
        place = replace(place, region=same.region)
    if isinstance(credential, Credentials.S3):
        place = replace(place, credentials=credential.credentials)
    elif (
        same is not None
        and not options.anonymous
        # An anonymous repository says nothing about what other buckets ask for.
        and not isinstance(same.credentials, S3Credentials.Anonymous)
    ):
        place = replace(place, credentials=same.credentials)
    return ObjectStorage(place)


def _gcs(
    made: ObjectStorage, credential: AnyCredential | None, home: Place | None
) -> ObjectStorage:
    place = _placed(made, GcsPlace)
    if isinstance(credential, Credentials.Gcs):
        return ObjectStorage(replace(place, credentials=credential.credentials))
    if isinstance(home, GcsPlace) and home.config == place.config:
        return ObjectStorage(replace(place, credentials=home.credentials))
    return ObjectStorage(replace(place, credentials=GcsCredentials.Anonymous()))


def _azure(
    made: ObjectStorage, credential: AnyCredential | None, home: Place | None
) -> ObjectStorage:
    place = _placed(made, AzurePlace)
    if isinstance(credential, Credentials.Azure):
        return ObjectStorage(replace(place, credentials=credential.credentials))
    if (
        isinstance(home, AzurePlace)
        and home.account == place.account
        and home.config == place.config
    ):
        return ObjectStorage(replace(place, credentials=home.credentials))
    return ObjectStorage(replace(place, credentials=AzureCredentials.Anonymous()))


P = TypeVar("P", bound=Place)


def _placed(made: ObjectStorage, kind: type[P]) -> P:
    if not isinstance(made.place, kind):
        raise InternalError(f"{made!r} is no {kind.__name__}")
    return made.place


def _endpoint(place: S3Place) -> str | None:
    """Tell the server of a place, without the bucket that can be part of its name."""
    if place.endpoint_url is None:
        return None
    scheme, _, host = place.endpoint_url.partition("://")
    if place.virtual_hosted:
        host = host.removeprefix(f"{place.bucket}.")
    return f"{scheme}://{host}".rstrip("/").lower()
