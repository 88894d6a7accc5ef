"""What the user allowed: which containers may be read, and with which credentials.

A repository that came from somebody else could point at any file and any bucket that its reader
can reach. So nothing is read from a container that the user did not name when opening the
repository, whatever credentials are at hand. Pure, no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.containers import ObjectStoreConfig
from icefloe.storage.credentials import AnyCredential, Credentials

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.containers import AnyObjectStoreConfig, VirtualChunkContainer
    from icefloe.virtual.container_table import ContainerTable, VirtualFile

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


def authorized_containers(
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
        known = table.named(key)
        if known is None:
            raise InvalidInputError(
                f"authorize_virtual_chunk_access names {key!r}, which is the URL prefix or name of "
                f"no virtual chunk container; there are: {table.listed()}",
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


def unauthorized(file: VirtualFile) -> InvalidInputError:
    """Say that the container of a file was not opened, and how it is."""
    container = file.known.container
    return InvalidInputError(
        f"{file.shown}: a virtual chunk in the container {file.known.shown}, which the repository "
        "was not opened to read from; if you trust it, open the repository with "
        f"authorize_virtual_chunk_access={{{container.url_prefix!r}: {example_for(container)}}}",
        kind=ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
    )


def example_for(container: VirtualChunkContainer) -> str:
    """Write a credential that opens a container, as a user would."""
    return _example(container.store)


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
