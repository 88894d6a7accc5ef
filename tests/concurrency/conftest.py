"""Places where several processes can meet."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.storage import Storage, local_filesystem_storage, s3_storage

if TYPE_CHECKING:
    from pathlib import Path

    from support.servers import S3Server


@dataclass(frozen=True)
class Place:
    """The location of a repository, as passed to another process."""

    name: str
    storage: Storage

    @property
    def is_s3(self) -> bool:
        """Whether it is on the S3 server."""
        return self.name.startswith("{")


@pytest.fixture
def s3_place(s3_server: S3Server) -> Place:
    """Make an empty prefix of the S3 server."""
    arguments: dict[str, Any] = {
        "bucket": s3_server.bucket,
        "prefix": f"race/{uuid.uuid4()}",
        "endpoint_url": s3_server.endpoint_url,
        "allow_http": True,
        "force_path_style": True,
        "region": "us-east-1",
        "access_key_id": s3_server.access_key_id,
        "secret_access_key": s3_server.secret_access_key,
    }
    return Place(json.dumps(arguments), s3_storage(**arguments))


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Make an empty place, on the disk or on the S3 server."""
    if request.param == "s3":
        found: Place = request.getfixturevalue("s3_place")
        return found
    root = str(tmp_path / "repository")
    return Place(root, local_filesystem_storage(root))
