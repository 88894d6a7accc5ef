"""A web server with ranges, entity tags and conditions, which writes down what it was asked."""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import unquote

from support.web_servers import LOOPBACK, LoopbackServer, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CHANGED_AT = "Mon, 01 Jan 2024 00:00:10 GMT"
CHANGED_AT_SECONDS = 1_704_067_210


@dataclass
class WebFiles:
    """What the server offers, what it was asked for, and the bodies it sent with which status."""

    files: dict[str, bytes]
    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    num_connections: int = 0


def etag_of(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()[:16]}"'


@contextmanager
def conditional_web_server(
    files: dict[str, bytes],
    *,
    checks: bool = True,
    tells: bool = True,
    tokens: Mapping[str, str] | None = None,
    redirects: Mapping[str, str] | None = None,
) -> Iterator[WebFiles]:
    """Serve files, by path.

    With ``/bucket/key`` as the paths it is what the client of Google Cloud Storage reads from.

    Parameters
    ----------
    files
        By path, percent-decoded.
    checks
        Whether the server keeps to conditions, or ignores them as many do.
    tells
        Whether it tells entity tags and times.
    tokens
        The bearer token that each bucket, the first segment of a path, asks for.
    redirects
        Targets of redirects, by path.
    """
    offered = WebFiles(files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            offered.num_connections += 1
            super().setup()

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            offered.asked.append({"path": self.path, "method": self.command, **self.headers})
            data = files.get(unquote(self.path))
            target = (redirects or {}).get(self.path)
            if target is not None:
                self._answer(302, {"Location": target}, b"")
                return
            token = (tokens or {}).get(unquote(self.path).split("/")[1])
            if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
                self._answer(401, {}, b"")
            elif data is None:
                self._answer(404, {}, b"")
            elif checks and self.headers.get("If-None-Match") == etag_of(data):
                self._answer(304, {"ETag": etag_of(data)}, b"")
            elif checks and not self._condition_holds(data):
                self._answer(412, {}, b"")
            else:
                self._send(data)

        def _condition_holds(self, data: bytes) -> bool:
            tag = self.headers.get("If-Match")
            since = self.headers.get("If-Unmodified-Since")
            if tag is not None and tag != etag_of(data):
                return False
            return since is None or parsedate_to_datetime(since) >= parsedate_to_datetime(
                CHANGED_AT
            )

        def _send(self, data: bytes) -> None:
            headers = {"ETag": etag_of(data), "Last-Modified": CHANGED_AT} if tells else {}
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if asked is None:
                self._answer(200, headers, data)
                return
            start, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
            if start >= end:
                self._answer(416, {"Content-Range": f"bytes */{len(data)}"}, b"")
                return
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            self._answer(206, headers, data[start:end])

        def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
            offered.answers.append((status, data))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 304:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with serve(LoopbackServer((LOOPBACK, 0), Handler)) as url:
        offered.url = url
        yield offered
