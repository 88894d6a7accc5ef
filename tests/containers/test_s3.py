"""Virtual chunks in a real S3 server: conditions, and containers with credentials of their own."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from typing import TYPE_CHECKING

import pytest

from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.errors import ErrorKind, StorageError
from icefloe.model.chunk_payload import ETag, LastModified, VirtualChunkRef
from icefloe.model.containers import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.model.storage_settings import StorageRetriesSettings, StorageSettings
from icefloe.storage import (
    Credentials,
    ObjectStorage,
    in_memory_storage,
    s3_static_credentials,
    s3_storage,
    s3_store,
)

if TYPE_CHECKING:
    from icefloe.model.containers import AnyObjectStoreConfig
    from icefloe.storage import AnyCredential
    from support.servers import S3Server

CONTENT = b"0123456789" * 100
NAMES = ("plain.nc", "a b.nc", "100%.nc", "q?x#y.nc", "ü+~.nc")


def store_of(server: S3Server) -> AnyObjectStoreConfig:
    return s3_store(
        region="us-east-1",
        endpoint_url=server.endpoint_url,
        allow_http=True,
        s3_compatible=True,
        force_path_style=True,
    )


def writer(server: S3Server) -> AnyCredential:
    return Credentials.S3(
        s3_static_credentials(
            access_key_id=server.access_key_id, secret_access_key=server.secret_access_key
        )
    )


def reader(server: S3Server) -> AnyCredential:
    return Credentials.S3(
        s3_static_credentials(
            access_key_id=server.reader_access_key_id,
            secret_access_key=server.reader_secret_access_key,
        )
    )


@pytest.fixture
def archive(s3_server: S3Server) -> ObjectStorage:
    """Make a folder of files in the bucket; the retries are few, so that refusals come soon."""
    storage = s3_storage(
        bucket=s3_server.bucket,
        prefix=f"archive/{uuid.uuid4()}",
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        region="us-east-1",
        access_key_id=s3_server.access_key_id,
        secret_access_key=s3_server.secret_access_key,
    ).with_settings(StorageSettings(retries=StorageRetriesSettings(max_tries=2)))
    for name in NAMES:
        storage.put(name, CONTENT)
    return storage


def get_error(chunks: VirtualChunks, ref: VirtualChunkRef) -> StorageError:
    with pytest.raises(StorageError) as first:
        chunks.fetch(ref, 0, ref.length)
    with pytest.raises(StorageError) as second:
        asyncio.run(chunks.fetch_async(ref, 0, ref.length))
    assert first.value.kind is second.value.kind
    return first.value


def test_reading(s3_server: S3Server, archive: ObjectStorage) -> None:
    """Any name that percent-encoding can write, here and in a copy that went through a pickle."""
    prefix = f"{archive.url}/"
    container = VirtualChunkContainer(prefix, store_of(s3_server), name="archive")
    chunks = VirtualChunks([container], {"archive": reader(s3_server)}, in_memory_storage())
    for copy in (chunks, pickle.loads(pickle.dumps(chunks))):  # noqa: S301
        for name in ("plain.nc", "a%20b.nc", "100%25.nc", "q%3Fx%23y.nc", "ü+~.nc"):
            for location in (f"{prefix}{name}", f"vcc://archive/{name}"):
                ref = VirtualChunkRef(location, 5, 20)
                assert bytes(copy.fetch(ref, 3, 4)) == CONTENT[8:12]
                assert bytes(asyncio.run(copy.fetch_async(ref, 3, 4))) == CONTENT[8:12]
        assert not copy.is_low_latency(ref)


def test_conditions(s3_server: S3Server, archive: ObjectStorage) -> None:
    """The server confirms what the reference says, until the file changes."""
    url = f"{archive.url}/plain.nc"
    container = VirtualChunkContainer(f"{archive.url}/", store_of(s3_server))
    access = {f"{archive.url}/": reader(s3_server)}
    chunks = VirtualChunks([container], access, in_memory_storage())
    info = archive.head("plain.nc")
    etag, seconds = str(info.version.etag), int(info.last_modified.timestamp())
    good = (ETag(etag), ETag(etag.strip('"')), LastModified(seconds), LastModified(seconds + 60))
    for checksum in good:
        ref = VirtualChunkRef(url, 0, 10, checksum)
        assert bytes(chunks.fetch(ref, 0, 10)) == CONTENT[:10]
        assert bytes(asyncio.run(chunks.fetch_async(ref, 0, 10))) == CONTENT[:10]
    error = get_error(chunks, VirtualChunkRef(url, 0, 10, LastModified(seconds - 60)))
    assert error.kind is ErrorKind.VIRTUAL_CHUNK_MODIFIED
    archive.put("plain.nc", CONTENT[::-1])
    error = get_error(chunks, VirtualChunkRef(url, 0, 10, ETag(etag)))
    assert error.kind is ErrorKind.VIRTUAL_CHUNK_MODIFIED
    assert url in error.message
    assert etag.strip('"') in error.message
    assert str(archive.head("plain.nc").version.etag).strip('"') in error.message


def test_short_and_missing_files(s3_server: S3Server, archive: ObjectStorage) -> None:
    """The file is named; no answer is taken for a part of one."""
    container = VirtualChunkContainer(f"{archive.url}/", store_of(s3_server))
    access = {f"{archive.url}/": writer(s3_server)}
    chunks = VirtualChunks([container], access, archive)
    for offset, length in ((995, 6), (1000, 1)):
        error = get_error(chunks, VirtualChunkRef(f"{archive.url}/plain.nc", offset, length))
        assert error.kind is ErrorKind.INVALID_OBJECT_SIZE
        assert "plain.nc" in error.message
    error = get_error(chunks, VirtualChunkRef(f"{archive.url}/missing.nc", 0, 1))
    assert error.kind is ErrorKind.VIRTUAL_CHUNK_FETCH
    assert "missing.nc" in error.message


def test_each_container_has_its_credentials(s3_server: S3Server, archive: ObjectStorage) -> None:
    """Two sets at once, of which one is wrong, and the repository's own for a third container."""
    archive.put("one/x", b"one")
    archive.put("two/x", b"two")
    archive.put("three/x", b"three")
    wrong = Credentials.S3(
        s3_static_credentials(
            access_key_id=s3_server.reader_access_key_id, secret_access_key="wrong-and-secret"
        )
    )
    names = ("one", "two", "three")
    chunks = VirtualChunks(
        [
            VirtualChunkContainer(f"{archive.url}/{name}/", store_of(s3_server), name=name)
            for name in names
        ],
        {"one": reader(s3_server), "two": wrong, "three": None},
        archive,
    )
    assert bytes(chunks.fetch(VirtualChunkRef("vcc://one/x", 0, 3), 0, 3)) == b"one"
    assert bytes(chunks.fetch(VirtualChunkRef("vcc://three/x", 0, 5), 0, 5)) == b"three"
    error = get_error(chunks, VirtualChunkRef("vcc://two/x", 0, 3))
    assert error.kind is ErrorKind.VIRTUAL_CHUNK_FETCH
    assert "credentials" in error.message
    assert "wrong-and-secret" not in error.message


def test_a_scheme_of_another_name(s3_server: S3Server, archive: ObjectStorage) -> None:
    """The container and not the scheme says which server a location is on."""
    options = S3Options(
        region="us-east-1",
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        force_path_style=True,
    )
    prefix = f"tigris://{s3_server.bucket}/"
    chunks = VirtualChunks(
        [VirtualChunkContainer(prefix, ObjectStoreConfig.Tigris(options))],
        {prefix: reader(s3_server)},
        in_memory_storage(),
    )
    location = archive.url.replace("s3://", "tigris://") + "/plain.nc"
    assert bytes(chunks.fetch(VirtualChunkRef(location, 0, 10), 0, 10)) == CONTENT[:10]
