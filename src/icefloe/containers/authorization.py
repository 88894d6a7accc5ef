"""What the user allowed: which containers may be read, and with which credentials.

A repository that came from somebody else could point at any file and any server that its reader
can reach. So nothing is read from a container that the user did not name when opening the
repository, whatever credentials are at hand. The one exception is the seed's (`002`, Credentials):
who opens a repository on a remote platform with credentials for that platform may read what lies
on the same endpoint with the same credentials. Pure, no I/O.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.containers import ObjectStoreConfig
from icefloe.storage.credentials import AnyCredential, Credentials
from icefloe.storage.urls import redact_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.containers.container_table import ContainerTable, VirtualFile
    from icefloe.model.containers import AnyObjectStoreConfig, VirtualChunkContainer


@dataclass(frozen=True, slots=True)
class AsRepository:
    """Access to a container on the repository's own platform, with the repository's credentials."""


Access: TypeAlias = AnyCredential | AsRepository | None
"""What a container is read with; None where the user opened it without saying how."""


@dataclass(frozen=True, slots=True)
class ContainerAccess:
    """A container, and whether virtual chunks in it can be read as the repository is open now.

    Attributes
    ----------
    container
        The container.
    is_default
        Whether it is there only because the configuration says nothing about containers.
    is_authorized
        Whether chunks are read from it: the user authorised it, or it is on the repository's own
        platform.
    uses_repository_credentials
        Whether the repository's own credentials are used, because the user gave no others.
    authorization
        What to pass as ``authorize_virtual_chunk_access`` to read from it, as text.
    """

    container: VirtualChunkContainer
    is_default: bool
    is_authorized: bool
    uses_repository_credentials: bool
    authorization: str


_CREDENTIALS: Final[Mapping[type, tuple[type, str]]] = {
    ObjectStoreConfig.S3: (Credentials.S3, "Credentials.S3(S3Credentials.FromEnv())"),
    ObjectStoreConfig.S3Compatible: (Credentials.S3, "Credentials.S3(S3Credentials.FromEnv())"),
    ObjectStoreConfig.Tigris: (Credentials.S3, "Credentials.S3(S3Credentials.FromEnv())"),
    ObjectStoreConfig.Gcs: (Credentials.Gcs, "Credentials.Gcs(GcsCredentials.FromEnv())"),
    ObjectStoreConfig.Azure: (Credentials.Azure, "Credentials.Azure(AzureCredentials.FromEnv())"),
    ObjectStoreConfig.Http: (Credentials.HttpAccess, "Credentials.HttpAccess()"),
    ObjectStoreConfig.LocalFileSystem: (
        Credentials.LocalFileSystemAccess,
        "Credentials.LocalFileSystemAccess()",
    ),
}
"""What opens each kind of store, and how that is written."""


def resolve_access(
    table: ContainerTable, credentials: Mapping[str, AnyCredential | None]
) -> dict[str, AnyCredential | None]:
    """Tell the credentials of each container that the user opened, by its URL prefix.

    Raises
    ------
    InvalidInputError
        Where a key names no container, two name the same, or a credential does not fit the store.
    """
    authorized: dict[str, AnyCredential | None] = {}
    for key, credential in credentials.items():
        known = table.find_by_name(key)
        if known is None:
            raise InvalidInputError(
                f"authorize_virtual_chunk_access names {key!r}, which is the URL prefix or name of "
                f"no virtual chunk container; there are: {table.format_known()}",
                kind=ErrorKind.INVALID_CREDENTIALS,
            )
        container = known.container
        if container.url_prefix in authorized:
            raise InvalidInputError(
                f"authorize_virtual_chunk_access names the container {known.shown} twice",
                kind=ErrorKind.INVALID_CREDENTIALS,
            )
        wanted, example = _CREDENTIALS[type(container.store)]
        if credential is not None and not isinstance(credential, wanted):
            raise InvalidInputError(
                f"the credential for {known.shown} is {_kind_of(credential)}, and its store, "
                f"{type(container.store).__name__}, needs another, as {example}",
                kind=ErrorKind.INVALID_CREDENTIALS,
            )
        authorized[container.url_prefix] = credential
    return authorized


def unauthorized_error(file: VirtualFile) -> InvalidInputError:
    """Say that the container of a file was not opened, and how it is."""
    container = file.known.container
    return InvalidInputError(
        f"{file.shown}: a virtual chunk in the container {file.known.shown}, which leads to "
        f"{_leads_to(container)}, and which the repository was not opened to read from; if you "
        "trust it, open the repository with "
        f"authorize_virtual_chunk_access={format_authorization(container)}",
        kind=ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
    )


def format_authorization(container: VirtualChunkContainer) -> str:
    """Write what authorises a container, as a user would."""
    return f"{{{container.url_prefix!r}: {_example(container.store)}}}"


def warn_about_untyped_access(credentials: Mapping[str, AnyCredential | None] | None) -> None:
    """Warn, as Icechunk does, where a container is opened without saying with what."""
    for key in (key for key, credential in (credentials or {}).items() if credential is None):
        warnings.warn(
            f"None in authorize_virtual_chunk_access, for the container {redact_url(key)!r}, is "
            "deprecated: it may take credentials from your environment; say what is meant, as "
            "Credentials.S3(S3Credentials.FromEnv()), Credentials.S3(S3Credentials.Anonymous()), "
            "Credentials.LocalFileSystemAccess() or Credentials.HttpAccess()",
            DeprecationWarning,
            stacklevel=_frames_of_this_package(),
        )


def _frames_of_this_package() -> int:
    """Count frames up to the caller's code, at whose line the warning belongs."""
    package, count = str(Path(__file__).parents[1]), 1
    frame = sys._getframe(1)  # noqa: SLF001 - what the module warnings counts, too
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, count = frame.f_back, count + 1
    return count


def _leads_to(container: VirtualChunkContainer) -> str:
    store, target = container.store, container.target_prefix
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            endpoint = options.endpoint_url
        case ObjectStoreConfig.Tigris(options):
            endpoint = options.endpoint_url
        case ObjectStoreConfig.LocalFileSystem():
            return "files of this machine" + ("" if target is None else f" below {target}")
        case ObjectStoreConfig.Http():
            return redact_url(container.url_prefix if target is None else target)
        case _:
            endpoint = None
    shown = type(store).__name__
    if endpoint is not None:
        shown += f" at {redact_url(endpoint)}"
    return shown if target is None else f"{redact_url(target)} on {shown}"


def _example(store: AnyObjectStoreConfig) -> str:
    if isinstance(store, ObjectStoreConfig.S3 | ObjectStoreConfig.S3Compatible) and (
        store.options.anonymous
    ):
        return "Credentials.S3(S3Credentials.Anonymous())"
    return _CREDENTIALS[type(store)][1]


def _kind_of(credential: object) -> str:
    # Only the type: the repr of somebody else's object may show what it holds.
    if isinstance(credential, type):
        return f"the class {credential.__qualname__}, without ()"
    return f"a {type(credential).__qualname__}"
