"""Fixtures for every kind of storage; servers start once per session."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from icefloe.storage import (
    ObjectStorage,
    Storage,
    azure_storage,
    in_memory_storage,
    local_filesystem_storage,
    s3_storage,
)
from icefloe.storage.split_root import SplitRootStorage
from support.servers import AzureServer, ServerUnavailableError, azurite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.servers import S3Server


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    try:
        running = azurite()
        server = running.__enter__()
    except ServerUnavailableError as error:
        pytest.skip(f"AZURE IS NOT TESTED ON THIS MACHINE: {error}")
    yield server
    running.__exit__(None, None, None)


@pytest.fixture
def s3(s3_server: S3Server) -> ObjectStorage:
    """Make an empty prefix of the S3 server."""
    return s3_storage(
        bucket=s3_server.bucket,
        prefix=f"conformance/{uuid.uuid4()}",
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        region="us-east-1",
        access_key_id=s3_server.access_key_id,
        secret_access_key=s3_server.secret_access_key,
    )


@pytest.fixture
def azure(azure_server: AzureServer) -> ObjectStorage:
    """Make an empty prefix of the Azure server."""
    return azure_storage(
        account=azure_server.account,
        container=azure_server.container,
        prefix=f"conformance/{uuid.uuid4()}",
        access_key=azure_server.access_key,
        config={"endpoint": azure_server.endpoint_url, "allow_http": "true"},
    )


@pytest.fixture
def split(s3_server: S3Server) -> Storage:
    """Make two empty prefixes of the S3 server, one of them for some keys of the tests."""
    state, data = (
        s3_storage(
            bucket=s3_server.bucket,
            prefix=f"conformance/{uuid.uuid4()}",
            endpoint_url=s3_server.endpoint_url,
            allow_http=True,
            region="us-east-1",
            access_key_id=s3_server.access_key_id,
            secret_access_key=s3_server.secret_access_key,
        )
        for _ in range(2)
    )
    keys = ("a/b", "chunks/A", "chunks/R", "counter", "refs/V", "repo", "snapshots/A")
    return SplitRootStorage(state, data, frozenset(keys))


@pytest.fixture(params=["memory", "local", "s3", "azure", "split"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Make an empty storage of each writable kind."""
    match request.param:
        case "memory":
            return in_memory_storage()
        case "local":
            return local_filesystem_storage(tmp_path / "repository")
        case name:
            found: Storage = request.getfixturevalue(name)
            return found
