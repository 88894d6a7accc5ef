"""Authorization of containers: which may be read, and with which credentials.

An untrusted repository could refer to any file and any server that its reader can access.
Therefore only containers that the user authorized when opening the repository are read, whatever
credentials are available. The only exception: containers on the repository's own platform may be
read with the repository's credentials. Pure, no I/O.
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
from icefloe.url_secrets import mask_url, masked_repr

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.containers.container_table import ContainerTable, VirtualFile
    from icefloe.model.containers import AnyObjectStoreConfig, VirtualChunkContainer


@dataclass(frozen=True, slots=True)
class AsRepository:
    """Access with the repository's credentials, to a container on the repository's own platform."""


Access: TypeAlias = AnyCredential | AsRepository | None
"""Access to an authorized container; None if the user authorized it without credentials."""


@masked_repr
@dataclass(frozen=True, slots=True)
class ContainerAccess:
    """A container, and whether this repository object can read its virtual chunks.

    Attributes
    ----------
    is_default
        Whether it is a default container, and not in the configuration.
    is_authorized
        Whether it can be read: the user authorized it, or it is on the repository's own platform.
    uses_repository_credentials
        Whether it is read with the repository's own credentials: the user passed no others.
    authorization
        Python expression of the ``authorize_virtual_chunk_access`` argument that authorizes it.
    """

    container: VirtualChunkContainer
    is_default: bool
    is_authorized: bool
    uses_repository_credentials: bool
    authorization: str


_LOCAL = Credentials.LocalFileSystemAccess
_CREDENTIALS: Final[Mapping[type, tuple[type, str]]] = {
    ObjectStoreConfig.S3: (Credentials.S3, "Credentials.S3(S3Credentials.FromEnv())"),
    ObjectStoreConfig.S3Compatible: (Credentials.S3, "Credentials.S3(S3Credentials.FromEnv())"),
    ObjectStoreConfig.Tigris: (Credentials.S3, "Credentials.S3(S3Credentials.FromEnv())"),
    ObjectStoreConfig.Gcs: (Credentials.Gcs, "Credentials.Gcs(GcsCredentials.FromEnv())"),
    ObjectStoreConfig.Azure: (Credentials.Azure, "Credentials.Azure(AzureCredentials.FromEnv())"),
    ObjectStoreConfig.Http: (Credentials.HttpAccess, "Credentials.HttpAccess()"),
    ObjectStoreConfig.LocalFileSystem: (_LOCAL, "Credentials.LocalFileSystemAccess()"),
}
"""The credential type of each kind of store, and an example expression."""


def resolve_access(
    table: ContainerTable, credentials: Mapping[str, AnyCredential | None]
) -> dict[str, AnyCredential | None]:
    """Return the credentials of each authorized container by URL prefix.

    Keys that match no container are ignored, as in Icechunk: the mapping may be for several
    repositories. Raises `InvalidInputError` if two keys match the same container, or a credential
    does not match the store.
    """
    authorized: dict[str, AnyCredential | None] = {}
    for key, credential in credentials.items():
        container = table.find_by_name(key)
        if container is None:
            continue
        config = container.config
        if config.url_prefix in authorized:
            problem = f"names the container {container.label} twice"
            raise _credentials_error(f"authorize_virtual_chunk_access {problem}")
        expected, example = _CREDENTIALS[type(config.store)]
        if credential is not None and not isinstance(credential, expected):
            raise _credentials_error(
                f"the credential for {container.label} is {_format_type(credential)}, but its "
                f"store, {type(config.store).__name__}, needs one such as {example}"
            )
        authorized[config.url_prefix] = credential
    return authorized


def _credentials_error(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind=ErrorKind.INVALID_CREDENTIALS)


def unauthorized_error(file: VirtualFile) -> InvalidInputError:
    """Return the error for a file in a container that is not authorized."""
    config = file.container.config
    return InvalidInputError(
        f"{file.label}: the virtual chunk container {file.container.label}, which points to "
        f"{_format_target(config)}, is not authorized; if you trust it, open the repository "
        f"with authorize_virtual_chunk_access={format_authorization(config)}",
        kind=ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
    )


def format_authorization(container: VirtualChunkContainer) -> str:
    """Return the Python expression that authorizes a container, without secrets in its prefix."""
    key = mask_url(container.url_prefix)
    if key != container.url_prefix and container.name is not None:
        key = container.name
    return f"{{{key!r}: {_format_example(container.store)}}}"


def warn_about_missing_credentials(credentials: Mapping[str, AnyCredential | None] | None) -> None:
    """Warn, as Icechunk does, if a container is authorized without credentials."""
    for key in [key for key, credential in (credentials or {}).items() if credential is None]:
        warnings.warn(
            f"None in authorize_virtual_chunk_access, for the container {redact_url(key)!r}, is "
            "deprecated: it may use credentials from your environment; pass one of "
            "Credentials.S3(S3Credentials.FromEnv()), Credentials.S3(S3Credentials.Anonymous()), "
            "Credentials.LocalFileSystemAccess() or Credentials.HttpAccess()",
            DeprecationWarning,
            stacklevel=_count_package_frames(),
        )


def _count_package_frames() -> int:
    """Return the ``stacklevel`` at which a warning points to the code of the caller."""
    package, count = str(Path(__file__).parents[1]), 1
    frame = sys._getframe(1)  # noqa: SLF001 - the module warnings uses it too
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, count = frame.f_back, count + 1
    return count


def _format_target(container: VirtualChunkContainer) -> str:
    store, target = container.store, container.target_prefix
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            endpoint = options.endpoint_url
        case ObjectStoreConfig.Tigris(options):
            endpoint = options.endpoint_url
        case ObjectStoreConfig.LocalFileSystem():
            return "local files" + ("" if target is None else f" below {target}")
        case ObjectStoreConfig.Http():
            return redact_url(container.url_prefix if target is None else target)
        case _:
            endpoint = None
    platform = type(store).__name__
    if endpoint is not None:
        platform += f" at {redact_url(endpoint)}"
    return platform if target is None else f"{redact_url(target)} on {platform}"


def _format_example(store: AnyObjectStoreConfig) -> str:
    s3_stores = ObjectStoreConfig.S3, ObjectStoreConfig.S3Compatible
    if isinstance(store, s3_stores) and store.options.anonymous:
        return "Credentials.S3(S3Credentials.Anonymous())"
    return _CREDENTIALS[type(store)][1]


def _format_type(credential: object) -> str:
    # Only the type: the repr of an unknown object may contain a secret.
    if isinstance(credential, type):
        return f"the class {credential.__qualname__}, without ()"
    return f"a {type(credential).__qualname__}"
