"""Places that hold files of others: a folder, a web server, an S3 server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from servers import S3Server, seaweedfs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with seaweedfs() as server:
        yield server
