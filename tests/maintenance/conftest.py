"""Both generations, and the real Icechunk in its own process."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.storage import LocalStorage, s3_storage
from support import SUPPORT, warm_python

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage import Storage
    from support.servers import S3Server

Operation = tuple[str, dict[str, Any]]
Icechunk = Callable[..., list[Any]]

SCRIPT = SUPPORT / "icechunk_maintenance.py"


@pytest.fixture(params=["icechunk1-v1", "icechunk2-v1", "icechunk2-v2"])
def icechunk_and_version(request: pytest.FixtureRequest) -> tuple[Icechunk, int]:
    """Return a function that runs operations with Icechunk, and a format version it supports."""
    which, _, version = request.param.partition("-v")
    return _runner(request.getfixturevalue(which)), int(version)


@pytest.fixture
def run_icechunk2(icechunk2: Path) -> Icechunk:
    """Return a function that runs operations with Icechunk 2.x."""
    return _runner(icechunk2)


@pytest.fixture
def run_icechunk1(icechunk1: Path) -> Icechunk:
    """Return a function that runs operations with Icechunk 1.x."""
    return _runner(icechunk1)


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Return an empty storage, on a local disk or in an S3 service."""
    if request.param == "local":
        return LocalStorage(tmp_path / "repository")
    server: S3Server = request.getfixturevalue("s3_server")
    return s3_storage(
        bucket=server.bucket,
        prefix=f"maintenance/{uuid.uuid4()}",
        endpoint_url=server.endpoint_url,
        allow_http=True,
        region="us-east-1",
        access_key_id=server.access_key_id,
        secret_access_key=server.secret_access_key,
    )


def _runner(python: Path) -> Icechunk:
    def run(root: Path, *operations: Operation) -> list[Any]:
        done = warm_python.run(python, SCRIPT, root, json.dumps(operations, default=str))
        assert done.returncode == 0, f"Icechunk failed:\n{done.stderr[-4000:]}"
        answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
        return answers

    return run
