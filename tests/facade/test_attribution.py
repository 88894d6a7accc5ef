"""Labels that a repository's requests carry."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from icefloe import (
    Attribution,
    InvalidInputError,
    LatencyStorage,
    Repository,
    RepositoryNotFoundError,
    Storage,
    __version__,
    azure_storage,
    gcs_storage,
    http_storage,
    in_memory_storage,
    s3_storage,
)
from icefloe.storage import GcsPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

LABELS = Attribution(client="weatherlib/0.9", workload="nightly run", principal="me")
EXPECTED = f"weatherlib/0.9 icefloe/{__version__} (workload=nightly run; principal=me)"


LISTINGS = {
    "list-type=2": b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>",
    "comp=list": b"<EnumerationResults><Blobs></Blobs></EnumerationResults>",
}
"""Empty listings, by a part of the URL of the request."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """Serve nothing, and write down who asks."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("User-Agent", ""))
            listing = next((body for name, body in LISTINGS.items() if name in self.path), b"")
            self.send_response(200 if listing else 404)
            self.send_header("Content-Length", str(len(listing)))
            self.end_headers()
            self.wfile.write(listing)

        do_HEAD = do_GET  # noqa: N815 - the name that the server calls

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}", seen
    running.shutdown()
    running.server_close()


def places(url: str) -> list[Storage]:
    s3 = s3_storage(
        bucket="b",
        prefix="p",
        region="x",
        endpoint_url=url,
        allow_http=True,
        anonymous=True,
        force_path_style=True,
    )
    return [
        http_storage(f"{url}/r"),
        s3,
        LatencyStorage(s3),
        azure_storage(
            account="a",
            container="c",
            prefix="p",
            anonymous=True,
            config={"azure_storage_endpoint": url, "allow_http": "true"},
        ),
    ]


@pytest.mark.parametrize("place", range(4), ids=["http", "s3", "forwarded", "azure"])
def test_every_request_says_whose_it_is(server: tuple[str, list[str]], place: int) -> None:
    """From the first on, whatever the place."""
    url, seen = server
    with pytest.raises(RepositoryNotFoundError):
        Repository.open(places(url)[place], attribution=LABELS)
    assert set(seen) == {EXPECTED}


def test_the_place_of_a_bucket_of_google_has_the_header() -> None:
    """Its client takes headers as that of S3 does."""
    storage = gcs_storage(bucket="b", prefix="p", headers={"X": "1"}).with_user_agent(EXPECTED)
    assert isinstance(storage.place, GcsPlace)
    expected = {"X": "1", "User-Agent": EXPECTED}
    assert storage.place.headers.reading == storage.place.headers.writing == expected


def test_a_repository_remembers_them() -> None:
    """Also where nothing is sent, and after it was opened again."""
    repository = Repository.create(in_memory_storage(), attribution=LABELS)
    assert repository.attribution == repository.reopen().attribution == LABELS
    assert Repository.open(repository.storage).attribution is None


@pytest.mark.parametrize(
    "labels",
    [
        {"client": "two words"},
        {"client": "a/b/c"},
        {"client": ""},
        {"workload": "a;b"},
        {"workload": "näh"},
        {"principal": "x" * 129},
        {"principal": "a\r\nb"},
    ],
)
def test_what_a_header_cannot_hold_is_refused(labels: dict[str, str]) -> None:
    """Before any request."""
    with pytest.raises(InvalidInputError, match=next(iter(labels))):
        Attribution(**labels)
