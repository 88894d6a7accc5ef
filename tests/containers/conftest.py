"""Places that hold files of others: a folder, a web server, S3, Google's and Azure's stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.storage import s3_storage
from support.conditional_web_server import WebFiles, conditional_web_server
from support.servers import AzureServer, S3Server, ServerUnavailableError, azurite, seaweedfs

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = b"0123456789" * 10
"""What the file of a virtual chunk holds, wherever it is."""

TOKENS = {"some-bucket": "token-of-a", "some-other-bucket": "token-of-b"}
"""The credentials of two buckets of the Google-like server."""


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with seaweedfs() as server:
        s3_storage(
            bucket=server.bucket,
            prefix=None,
            endpoint_url=server.endpoint_url,
            allow_http=True,
            access_key_id=server.access_key_id,
            secret_access_key=server.secret_access_key,
        ).put("folder/bar.nc", FILE)
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[WebFiles]:
    """Serve two buckets of one project, which ask for different credentials."""
    files = {"/some-bucket/virtual-a": FILE, "/some-other-bucket/virtual-b": FILE[::-1]}
    with conditional_web_server(files, tokens=TOKENS) as web:
        yield web


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
def aws(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Let the S3 server be what AWS is: what a store without an endpoint is reached at."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    return s3_server
