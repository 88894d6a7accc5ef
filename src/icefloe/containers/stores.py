"""Makes the storage of a container: a bucket or a web server.

A container on the repository's own platform (same platform, endpoint and, on Azure, account) is
read with the repository's credentials unless the user passed others. These credentials are never
sent elsewhere: the configuration of a repository must not control where the credentials of its
readers are sent. Pure, no I/O: storages connect on first use.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

from icefloe.containers.authorization import AsRepository
from icefloe.containers.locations import Location
from icefloe.errors import ErrorKind, InternalError, InvalidInputError
from icefloe.model.containers import ObjectStoreConfig, get_bucket
from icefloe.model.storage_settings import OBJECT_STORE_DEFAULTS
from icefloe.storage.constructors import azure_storage, gcs_storage, http_storage
from icefloe.storage.credentials import AzureCredentials, Credentials, GcsCredentials, S3Credentials
from icefloe.storage.factories import new_s3, new_tigris
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.object_store import ContainerHttpStorage, ObjectStorage
from icefloe.storage.places import AzurePlace, GcsPlace, HttpPlace, Place, S3Place

if TYPE_CHECKING:
    from icefloe.containers.authorization import Access
    from icefloe.containers.container_table import VirtualFile
    from icefloe.model.containers import AnyObjectStoreConfig, S3Options
    from icefloe.model.storage_settings import StorageSettings
    from icefloe.storage.interface import Storage

_REGION: Final = re.compile(r"[A-Za-z0-9._-]+")
"""Valid regions: the region becomes part of a host name, which a '/' or '#' would end."""

_IGNORED_OPTION: Final = "user_agent"

_S3_KINDS: Final = ObjectStoreConfig.S3, ObjectStoreConfig.S3Compatible, ObjectStoreConfig.Tigris

_EXAMPLE_BUCKET: Final = Location("s3", "bucket", "/")


def find_repository_place(repository: Storage) -> tuple[Place | None, StorageSettings]:
    """Return the place (None without an object store) and request settings of a repository."""
    while isinstance(repository, ForwardingStorage):
        repository = repository.inner
    if isinstance(repository, ObjectStorage):
        return repository.place, repository.settings
    return None, OBJECT_STORE_DEFAULTS


def is_on_repository_platform(store: AnyObjectStoreConfig, home: Place | None) -> bool:
    """Return whether a store is on the platform of the repository.

    It must have the same endpoint and URL style, must not allow HTTP or requester-pays unless the
    repository does, and must not be a web server or the local file system.
    """
    match home:
        case S3Place():
            kinds: tuple[type, ...] = _S3_KINDS
        case GcsPlace():
            kinds = (ObjectStoreConfig.Gcs,)
        case AzurePlace():
            kinds = (ObjectStoreConfig.Azure,)
        case _:
            return False
    if not isinstance(store, kinds):
        return False
    try:
        place = _make_unsigned(store, _EXAMPLE_BUCKET, home).place
    except InvalidInputError:
        return False  # invalid options raise when a chunk is read, not when opening
    match place, home:
        case S3Place(), S3Place():
            return (
                _is_same_server(place, home)
                and (place.endpoint_url is None or place.virtual_hosted == home.virtual_hosted)
                and (home.allow_http or not place.allow_http)
                and (home.requester_pays or not place.requester_pays)
            )
        case GcsPlace(), GcsPlace():
            return _have_same_options(place, home)
        case AzurePlace(), AzurePlace():
            return place.account == home.account and _have_same_options(place, home)
    return False


def open_store(
    file: VirtualFile, access: Access, *, home: Place | None, settings: StorageSettings
) -> ObjectStorage:
    """Make the storage of the bucket or host of a file; ``home`` is the place of the repository."""
    storage = _make_unsigned(file.container.config.store, file.location, home)
    match storage.place:
        case S3Place() as place:
            storage = ObjectStorage(_sign_s3(place, access, home))
        case GcsPlace() as place:
            storage = ObjectStorage(_sign_gcs(place, access, home))
        case AzurePlace() as place:
            storage = ObjectStorage(_sign_azure(place, access, home))
        case HttpPlace() as place:
            root = file.container.root
            prefix = f"{root.scheme}://{root.authority}{quote(root.path)}"
            storage = ContainerHttpStorage(replace(place, redirects_below=prefix))
    return storage.with_settings(settings)


def _make_unsigned(
    store: AnyObjectStoreConfig, location: Location, home: Place | None
) -> ObjectStorage:
    """Make the storage of a bucket or host without credentials."""
    bucket = get_bucket(store, location.authority)
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            return _set_region(new_s3(_add_scheme(options), bucket, None), home)
        case ObjectStoreConfig.Tigris(options):
            # Without a region Tigris may read from a replica: checksums detect modified files.
            is_weak = options.region is None
            storage = new_tigris(_add_scheme(options), bucket, None, is_weak)
            storage = _use_path_style(storage) if options.force_path_style else storage
            return _set_region(storage, home)
        case ObjectStoreConfig.Gcs(opts):
            # GCS requests do not depend on the region, but users may set it.
            config = {name: value for name, value in opts.items() if name != "region"}
            return gcs_storage(bucket=bucket, prefix=None, config=config)
        case ObjectStoreConfig.Azure(opts):
            account = opts.get("account")
            if account is None and isinstance(home, AzurePlace):
                account = home.account
            config = {name: value for name, value in opts.items() if name != "account"}
            return azure_storage(account=account, container=bucket, prefix=None, config=config)
        case ObjectStoreConfig.Http(opts, headers=headers):
            return http_storage(f"{location.scheme}://{location.authority}", opts, headers)
        case other:
            raise InternalError(f"virtual chunks are not supported in a {type(other).__name__}")


def _add_scheme(options: S3Options) -> S3Options:
    """Add the scheme to an endpoint without one, such as ``localhost:9000``."""
    endpoint = options.endpoint_url
    if endpoint is None or "://" in endpoint:
        return options
    scheme = "http" if options.allow_http else "https"
    return replace(options, endpoint_url=f"{scheme}://{endpoint}")


def _use_path_style(storage: ObjectStorage) -> ObjectStorage:
    """Use path-style URLs: the bucket is in the path instead of the host name."""
    place = _require_s3(storage)
    return ObjectStorage(replace(place, endpoint_url=get_endpoint(place), virtual_hosted=False))


def _set_region(storage: ObjectStorage, home: Place | None) -> ObjectStorage:
    """Use the repository's region if a container on the same endpoint has no region."""
    place = _require_s3(storage)
    if place.region is not None and not _REGION.fullmatch(place.region):
        raise InvalidInputError(
            f"a virtual chunk container has the invalid region {place.region!r}: a region consists "
            "of letters, digits, '.', '_' and '-', such as us-east-1",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    if place.region is None and isinstance(home, S3Place) and _is_same_server(home, place):
        place = replace(place, region=home.region)
    return ObjectStorage(place)


def _sign_s3(place: S3Place, access: Access, home: Place | None) -> S3Place:
    if isinstance(access, Credentials.S3):
        return replace(place, credentials=access.credentials)
    if isinstance(place.credentials, S3Credentials.Anonymous):  # the container is public
        return place
    repository = home if isinstance(home, S3Place) and _is_same_server(home, place) else None
    if isinstance(access, AsRepository):
        return replace(place, credentials=_require_same_platform(repository).credentials)
    # Anonymous access to the repository does not imply that other buckets are public.
    if repository is None or isinstance(repository.credentials, S3Credentials.Anonymous):
        return place
    return replace(place, credentials=repository.credentials)


def _sign_gcs(place: GcsPlace, access: Access, home: Place | None) -> GcsPlace:
    if isinstance(access, Credentials.Gcs):
        return replace(place, credentials=access.credentials)
    repository = home if isinstance(home, GcsPlace) and _have_same_options(home, place) else None
    if isinstance(access, AsRepository):
        return replace(place, credentials=_require_same_platform(repository).credentials)
    credentials = GcsCredentials.Anonymous() if repository is None else repository.credentials
    return replace(place, credentials=credentials)


def _sign_azure(place: AzurePlace, access: Access, home: Place | None) -> AzurePlace:
    if isinstance(access, Credentials.Azure):
        return replace(place, credentials=access.credentials)
    repository = home if isinstance(home, AzurePlace) and home.account == place.account else None
    if repository is not None and not _have_same_options(repository, place):
        repository = None
    if isinstance(access, AsRepository):
        return replace(place, credentials=_require_same_platform(repository).credentials)
    credentials = AzureCredentials.Anonymous() if repository is None else repository.credentials
    return replace(place, credentials=credentials)


P = TypeVar("P", bound=Place)


def _require_s3(storage: ObjectStorage) -> S3Place:
    if not isinstance(storage.place, S3Place):
        raise InternalError(f"expected an S3 storage, got {storage!r}")
    return storage.place


def _require_same_platform(repository: P | None) -> P:
    if repository is None:
        raise InternalError("the repository's credentials must not be sent to another platform")
    return repository


def _have_same_options(place: GcsPlace | AzurePlace, other: GcsPlace | AzurePlace) -> bool:
    return {**place.config, _IGNORED_OPTION: ""} == {**other.config, _IGNORED_OPTION: ""}


def _is_same_server(place: S3Place, other: S3Place) -> bool:
    return (get_endpoint(place) or "").lower() == (get_endpoint(other) or "").lower()


def get_endpoint(place: S3Place) -> str | None:
    """Return the endpoint of a place without the bucket in the host name."""
    if place.endpoint_url is None:
        return None
    scheme, _, host = place.endpoint_url.partition("://")
    if place.virtual_hosted:
        host = host.removeprefix(f"{place.bucket}.")
    return f"{scheme}://{host}".rstrip("/")
