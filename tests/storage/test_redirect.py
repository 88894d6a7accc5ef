"""HTTP URLs that redirect to a repository."""

from __future__ import annotations

import threading
import traceback
from contextlib import contextmanager
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage import (
    GcsCredentials,
    GcsPlace,
    HttpStorage,
    LocalStorage,
    S3Credentials,
    S3Place,
    redirect_storage,
)
from icefloe.storage.redirect import storage_from_redirect
from support.web_servers import redirecting_server, web_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SECRET = "hush-hush"


def redirect_to(location: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n".encode("latin-1")


@contextmanager
def scripted_server(answer: bytes) -> Iterator[str]:
    """Respond to every connection with these bytes."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_redirects_are_followed(tmp_path: Path) -> None:
    """Several HTTP redirects lead to a storage that reads the repository."""
    LocalStorage(tmp_path / "repository").put("repo", b"x")
    with web_server(tmp_path) as files:
        target = files.replace("http://", "http+icechunk://") + "/repository"
        with redirecting_server({"/ocean": "/moved", "/moved": target}) as url:
            storage = redirect_storage(f"{url}/ocean")
    assert isinstance(storage, HttpStorage)
    assert storage.url == f"{files}/repository"


def test_every_scheme_is_opened_anonymously() -> None:
    """The target of a redirect is opened without credentials of this process."""
    s3 = storage_from_redirect("s3://bucket/a/b?region=eu-west-1").place
    assert isinstance(s3, S3Place)
    assert (s3.bucket, s3.prefix, s3.region) == ("bucket", "a/b", "eu-west-1")
    assert s3.credentials == S3Credentials.Anonymous()
    gcs = storage_from_redirect("gs://bucket/a").place
    assert isinstance(gcs, GcsPlace)
    assert gcs.credentials == GcsCredentials.Anonymous()
    r2 = storage_from_redirect("r2://bucket/a?account_id=acc").place
    assert isinstance(r2, S3Place)
    assert r2.endpoint_url == "https://acc.r2.cloudflarestorage.com"
    tigris = storage_from_redirect("tigris://bucket/a?region=fra")
    assert not tigris.read_only
    assert storage_from_redirect("tigris://bucket/a").read_only
    assert storage_from_redirect("https+ic://example.org/x").url == "https://example.org/x"


def test_invalid_redirects_raise() -> None:
    """Loops, pages, missing pages, missing regions and local files raise."""
    targets = {
        "/loop": "/loop",
        "/file": "file:///etc/passwd",
        "/no-region": "s3://bucket/a",
    }
    with redirecting_server(targets) as url:
        for path in ("/loop", "/file", "/no-region", "/nothing"):
            with pytest.raises(StorageError) as raised:
                redirect_storage(url + path)
            assert raised.value.kind is ErrorKind.BAD_REDIRECT
    with pytest.raises(InvalidInputError):
        redirect_storage("s3://bucket/a")
    with pytest.raises(StorageError, match="request failed"):
        redirect_storage("http://127.0.0.1:1/x")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 520 Web Server Returned an Unknown Error\r\n\r\n",
        b"HTTP/1.1 302 Found\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 -5\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        redirect_to("http://[bad"),
        redirect_to("http://\xe9.\xe9/\xe9"),
        redirect_to("http://h:port/x"),
        redirect_to(f"http://h/a b?sig={SECRET}"),
        redirect_to(f"http://me:{SECRET}@127.0.0.1/x"),
        redirect_to(f"ftp://me:{SECRET}@h/x?sig={SECRET}"),
        redirect_to(f"s3://KEY:{SECRET}@bucket/x?region={SECRET}"),
        redirect_to(f"s3://KEY:{SECRET}@bucket/x?other={SECRET}"),
        redirect_to(f"https+ic://me:{SECRET}@h/x"),
        redirect_to(f"https+ic://[{SECRET}/x"),
        redirect_to("s3:///x?region=eu"),
        redirect_to("gs://bucket/a//b"),
        redirect_to("r2://bucket/a"),
    ],
)
def test_invalid_responses_raise_errors_of_icefloe(answer: bytes) -> None:
    """Every invalid response raises an icefloe error without secrets of the URL."""
    with scripted_server(answer) as url, pytest.raises(StorageError) as raised:
        redirect_storage(f"{url}/x?sig={SECRET}")
    assert raised.value.kind is ErrorKind.BAD_REDIRECT
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_urls_with_secrets_are_not_requested() -> None:
    """A user and password in the URL raise before any request, and are not in the error."""
    for address in (f"https://me:{SECRET}@h/x", f"ftp://h/x?sig={SECRET}", f"https://[{SECRET}"):
        with pytest.raises(InvalidInputError) as raised:
            redirect_storage(address)
        assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_a_url_that_does_not_redirect(tmp_path: Path) -> None:
    """A page instead of a redirect raises."""
    (tmp_path / "page").write_text("hello")
    with web_server(tmp_path) as url, pytest.raises(StorageError, match="instead of a redirect"):
        redirect_storage(f"{url}/page")
