"""What the tests of the Zarr store share."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from typing import TYPE_CHECKING

import pytest

from icefloe.storage import (
    ObjectStorage,
    Storage,
    in_memory_storage,
    local_filesystem_storage,
    s3_storage,
)

if TYPE_CHECKING:
    from pathlib import Path

    from support.servers import S3Server


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines, as Zarr's are, each in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Make each storage that needs no server, empty."""
    if request.param == "memory":
        return in_memory_storage()
    return local_filesystem_storage(tmp_path / "repository")


@pytest.fixture
def s3(s3_server: S3Server) -> ObjectStorage:
    """Make an empty prefix of an S3 server."""
    return s3_storage(
        bucket=s3_server.bucket,
        prefix=f"store/{uuid.uuid4()}",
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        region="us-east-1",
        access_key_id=s3_server.access_key_id,
        secret_access_key=s3_server.secret_access_key,
    )
