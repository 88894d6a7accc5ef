"""Web addresses that say where a repository is."""

from __future__ import annotations

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
from web_servers import redirecting_server, web_server

if TYPE_CHECKING:
    from pathlib import Path


def test_redirects_are_followed_to_the_place(tmp_path: Path) -> None:
    """Hops over web addresses end at a storage that reads the repository."""
    LocalStorage(tmp_path / "repository").put("repo", b"x")
    with web_server(tmp_path) as files:
        target = files.replace("http://", "http+icechunk://") + "/repository"
        with redirecting_server({"/ocean": "/moved", "/moved": target}) as url:
            storage = redirect_storage(f"{url}/ocean")
    assert isinstance(storage, HttpStorage)
    assert storage.url == f"{files}/repository"


def test_every_scheme_is_opened_anonymously() -> None:
    """Where a redirect leads, no credential of this process goes along."""
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


def test_redirects_that_lead_nowhere_are_errors() -> None:
    """Loops, plain answers, missing pages, missing regions and local files are refused."""
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
    with pytest.raises(StorageError, match="could not be asked"):
        redirect_storage("http://127.0.0.1:1/x")


def test_an_address_that_does_not_redirect(tmp_path: Path) -> None:
    """A page is not a repository."""
    (tmp_path / "page").write_text("hello")
    with web_server(tmp_path) as url, pytest.raises(StorageError, match="instead of a redirect"):
        redirect_storage(f"{url}/page")
