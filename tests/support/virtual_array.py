"""An array of bytes whose chunks lie elsewhere: made in a repository, read back through Zarr."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
import zarr

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage import (
    AnyCredential,
    Credentials,
    ObjectStorage,
    S3Credentials,
    S3StaticCredentials,
    s3_storage,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import icefloe
    from support.servers import S3Server

CHUNK_BYTES = 10


def write_refs(
    repository: icefloe.Repository, name: str, locations: list[str], **how: Any
) -> icefloe.Repository:
    """Commit an array whose chunks are the bytes 5 to 15 of files; returns the repository."""
    session = repository.writable_session("main")
    zarr.create_array(
        session.store,
        name=name,
        shape=(CHUNK_BYTES * len(locations),),
        chunks=(CHUNK_BYTES,),
        dtype="u1",
        compressors=None,
        filters=None,
    )
    for number, location in enumerate(locations):
        session.store.set_virtual_ref(
            f"{name}/c/{number}", location, offset=5, length=CHUNK_BYTES, **how
        )
    session.commit(f"{name} is elsewhere")
    return repository


def read(repository: icefloe.Repository, name: str) -> bytes:
    """Read the whole array, as a user does."""
    store = repository.readonly_session("main").store
    return bytes(zarr.open_array(store, path=name, mode="r")[:])  # type: ignore[arg-type]


def refusal(repository: icefloe.Repository, name: str) -> str:
    """Read from a container that was not authorized; returns the message of the error."""
    with pytest.raises(InvalidInputError) as raised:
        read(repository, name)
    assert raised.value.kind is ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
    return raised.value.message


def home_in_s3(server: S3Server, **how: Any) -> ObjectStorage:
    """Make an empty place for a repository, with the credentials that may write."""
    return s3_storage(
        bucket=server.bucket,
        prefix=f"repositories/{uuid.uuid4()}",
        access_key_id=server.access_key_id,
        secret_access_key=server.secret_access_key,
        **how,
    )


def reader_keys(server: S3Server) -> S3StaticCredentials:
    """Return the credentials that may read and not write."""
    return S3StaticCredentials(server.reader_access_key_id, server.reader_secret_access_key)


def as_reader(server: S3Server) -> AnyCredential:
    return Credentials.S3(S3Credentials.Static(reader_keys(server)))


def containers_of(config: icefloe.RepositoryConfig | None) -> Mapping[str, object] | None:
    """Tell what a configuration says about containers."""
    return None if config is None else config.virtual_chunk_containers
