"""The storage behind each container: a bucket or a web server, reached as the container says.

A container that lies where the repository itself lies (the same platform, endpoint and, on Azure,
account) is read with the repository's credentials unless others are given (seed `002`). They never
go anywhere else: whoever wrote the configuration of a repository must not be able to say where the
credentials of its readers are sent. Pure, no I/O: storages connect when they are first used.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from icefloe.containers.authorization import AsRepository
from icefloe.containers.locations import Location
from icefloe.errors import ErrorKind, InternalError, InvalidInputError
from icefloe.model.containers import ObjectStoreConfig, get_bucket
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
    from collections.abc import Mapping

    from icefloe.containers.authorization import Access
    from icefloe.containers.container_table import KnownContainer
    from icefloe.model.containers import AnyObjectStoreConfig, S3Options
    from icefloe.model.storage_settings import StorageSettings
    from icefloe.storage.interface import Storage

_REGION: Final = re.compile(r"[A-Za-z0-9._-]+")
"""What stands for a region in the host names of AWS; a '/' or '#' would end the host before it."""

_SAYS_NOTHING_ABOUT_THE_PLACE: Final = frozenset({"user_agent"})

_SOME_BUCKET: Final = Location("s3", "bucket", "/")


def find_repository_place(repository: Storage) -> tuple[Place | None, StorageSettings]:
    """Tell where a repository is, if that is an object store, and the settings for requests."""
    while isinstance(repository, ForwardingStorage):
        repository = repository.inner
    if isinstance(repository, ObjectStorage):
        return repository.place, repository.settings
    return None, OBJECT_STORE_DEFAULTS


def is_on_repository_platform(store: AnyObjectStoreConfig, home: Place | None) -> bool:
    """Whether requests to a store go nowhere but where those for the repository go.

    The same endpoint of the same platform, addressed alike, over connections that are no less
    secure, and at nobody's cost but as for the repository itself. What web servers and files of
    this machine hold is never the repository's own.
    """
    match store:
        case ObjectStoreConfig.Http() | ObjectStoreConfig.LocalFileSystem():
            return False
        case ObjectStoreConfig.InMemory():
            return False
    try:
        place = _make_unsigned(store, _SOME_BUCKET, home).place
    except InvalidInputError:
        return False  # options that do not fit: said when somebody reads, not when one opens
    match place, home:
        case S3Place(), S3Place():
            return (
                _same_server(place, home)
                and (place.endpoint_url is None or place.virtual_hosted == home.virtual_hosted)
                and (home.allow_http or not place.allow_http)
                and (home.requester_pays or not place.requester_pays)
            )
        case GcsPlace(), GcsPlace():
            return _says(place.config) == _says(home.config)
        case AzurePlace(), AzurePlace():
            return place.account == home.account and _says(place.config) == _says(home.config)
    return False


def open_store(
    known: KnownContainer,
    access: Access,
    *,
    home: Place | None,
    settings: StorageSettings,
    location: Location | None = None,
) -> ObjectStorage:
    """Make the storage of a remote container; its keys are those of the whole bucket or host.

    ``access`` is what the container is read with, ``home`` where the repository is, and
    ``location`` a file in it, which names the bucket where the container has many.
    """
    made = _make_unsigned(known.container.store, known.root if location is None else location, home)
    match made.place:
        case S3Place() as place:
            made = ObjectStorage(_sign_s3(place, access, home))
        case GcsPlace() as place:
            made = ObjectStorage(_sign_gcs(place, access, home))
        case AzurePlace() as place:
            made = ObjectStorage(_sign_azure(place, access, home))
    return made.with_settings(settings)


def _make_unsigned(
    store: AnyObjectStoreConfig, location: Location, home: Place | None
) -> ObjectStorage:
    """Make the storage of a container before anything is said about credentials."""
    bucket = get_bucket(store, location.authority)
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            return _in_region(new_s3(_with_scheme(options), bucket, None), home)
        case ObjectStoreConfig.Tigris(options):
            # Without a region Tigris may answer from a replica, which is enough for files that do
            # not change; for those that do there are checksums.
            weak = options.region is None
            made = new_tigris(_with_scheme(options), bucket, None, weak)
            return _in_region(_by_path(made) if options.force_path_style else made, home)
        case ObjectStoreConfig.Gcs(opts):
            # A bucket of Google is reached alike wherever it is; people say where, all the same.
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
            raise InternalError(
                f"no virtual chunks are read from a {type(other).__name__}", kind=ErrorKind.UNKNOWN
            )


def _with_scheme(options: S3Options) -> S3Options:
    """Write out an endpoint that is only a host and a port, as ``localhost:9000``."""
    endpoint = options.endpoint_url
    if endpoint is None or "://" in endpoint:
        return options
    scheme = "http" if options.allow_http else "https"
    return replace(options, endpoint_url=f"{scheme}://{endpoint}")


def _by_path(made: ObjectStorage) -> ObjectStorage:
    """Address the bucket by path, and not as part of the host."""
    place = _placed(made, S3Place)
    return ObjectStorage(replace(place, endpoint_url=endpoint_of(place), virtual_hosted=False))


def _in_region(made: ObjectStorage, home: Place | None) -> ObjectStorage:
    """Take the repository's region where a container on the same endpoint names none."""
    place = _placed(made, S3Place)
    if place.region is not None and not _REGION.fullmatch(place.region):
        raise InvalidInputError(
            f"a virtual chunk container has the region {place.region!r}, which is none: a region "
            "has letters, digits, '.', '_' and '-', as us-east-1",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    if place.region is None and isinstance(home, S3Place) and _same_server(home, place):
        place = replace(place, region=home.region)
    return ObjectStorage(place)


def _sign_s3(place: S3Place, access: Access, home: Place | None) -> S3Place:
    if isinstance(access, Credentials.S3):
        return replace(place, credentials=access.credentials)
    if isinstance(place.credentials, S3Credentials.Anonymous):  # the container is public
        return place
    own = home if isinstance(home, S3Place) and _same_server(home, place) else None
    if isinstance(access, AsRepository):
        return replace(place, credentials=_placed_at_home(own).credentials)
    # An anonymous repository says nothing about what other buckets ask for.
    if own is None or isinstance(own.credentials, S3Credentials.Anonymous):
        return place
    return replace(place, credentials=own.credentials)


def _sign_gcs(place: GcsPlace, access: Access, home: Place | None) -> GcsPlace:
    if isinstance(access, Credentials.Gcs):
        return replace(place, credentials=access.credentials)
    own = home if isinstance(home, GcsPlace) and _says(home.config) == _says(place.config) else None
    if isinstance(access, AsRepository):
        return replace(place, credentials=_placed_at_home(own).credentials)
    return replace(
        place, credentials=GcsCredentials.Anonymous() if own is None else own.credentials
    )


def _sign_azure(place: AzurePlace, access: Access, home: Place | None) -> AzurePlace:
    if isinstance(access, Credentials.Azure):
        return replace(place, credentials=access.credentials)
    own = home if isinstance(home, AzurePlace) and home.account == place.account else None
    if own is not None and _says(own.config) != _says(place.config):
        own = None
    if isinstance(access, AsRepository):
        return replace(place, credentials=_placed_at_home(own).credentials)
    return replace(
        place, credentials=AzureCredentials.Anonymous() if own is None else own.credentials
    )


P = TypeVar("P", bound=Place)


def _placed(made: ObjectStorage, kind: type[P]) -> P:
    if not isinstance(made.place, kind):
        raise InternalError(f"{made!r} is no {kind.__name__}")
    return made.place


def _placed_at_home(own: P | None) -> P:
    if own is None:
        raise InternalError("the repository's credentials were about to leave its platform")
    return own


def _says(config: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in config.items() if name not in _SAYS_NOTHING_ABOUT_THE_PLACE
    }


def _same_server(one: S3Place, other: S3Place) -> bool:
    return (endpoint_of(one) or "").lower() == (endpoint_of(other) or "").lower()


def endpoint_of(place: S3Place) -> str | None:
    """Tell the server of a place, without the bucket that can be part of its name."""
    if place.endpoint_url is None:
        return None
    scheme, _, host = place.endpoint_url.partition("://")
    if place.virtual_hosted:
        host = host.removeprefix(f"{place.bucket}.")
    return f"{scheme}://{host}".rstrip("/")
