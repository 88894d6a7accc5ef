"""Small web servers in threads, bound to 127.0.0.1 only: files with ranges, and redirects."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOOPBACK = "127.0.0.1"


class LoopbackServer(ThreadingHTTPServer):
    """A web server in threads of this process."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: tests close connections on purpose."""


@contextmanager
def serve(server: ThreadingHTTPServer) -> Iterator[str]:
    """Run a server until the end of the block and yield its URL."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def web_server(folder: Path, *, with_ranges: bool = True) -> Iterator[str]:
    """Serve the files of a folder over HTTP, with or without range requests; yield the URL."""

    class Handler(_RangeHandler if with_ranges else _QuietHandler):  # type: ignore[misc]
        root = folder

    with serve(LoopbackServer((LOOPBACK, 0), Handler)) as url:
        yield url


class _QuietHandler(SimpleHTTPRequestHandler):
    root: ClassVar[Path]
    protocol_version = "HTTP/1.1"

    def translate_path(self, path: str) -> str:
        self.directory = str(self.root)
        return super().translate_path(path)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Do not log."""


class _RangeHandler(_QuietHandler):
    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        requested = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if requested is None or not path.is_file():
            super().do_GET()
            return
        data = path.read_bytes()
        first, last = requested.groups()
        start = int(first) if first else max(0, len(data) - int(last))
        end = min(len(data), int(last) + 1) if first and last else len(data)
        if start >= end:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
        self.end_headers()
        self.wfile.write(data[start:end])


@contextmanager
def redirecting_server(targets: dict[str, str]) -> Iterator[str]:
    """Serve redirects from paths to locations; yield the URL."""

    class Handler(_QuietHandler):
        root = Path("/nonexistent")

        def do_GET(self) -> None:
            target = targets.get(self.path)
            self.send_response(404 if target is None else 302)
            if target is not None:
                self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serve(LoopbackServer((LOOPBACK, 0), Handler)) as url:
        yield url


_BLOCK = bytes(1 << 20)


@dataclass(slots=True)
class EndlessServer:
    """A server whose responses do not end, and how many bytes of bodies it could send."""

    url: str = ""
    num_bytes: int = 0


@contextmanager
def endless_server(heads: Mapping[str, str]) -> Iterator[EndlessServer]:
    """Serve status and header lines by path, each followed by up to 256 MiB of zeros.

    The body is chunked if the head says so.
    """
    state = EndlessServer()

    class Handler(_QuietHandler):
        root = Path("/nonexistent")

        def do_GET(self) -> None:
            self.close_connection = True
            head = heads[self.path]
            block = b"100000\r\n" + _BLOCK + b"\r\n" if "chunked" in head else _BLOCK
            self.wfile.write("\r\n".join([f"HTTP/1.1 {head}", "", ""]).encode())
            with suppress(OSError):
                for _ in range(256):
                    self.wfile.write(block)
                    state.num_bytes += len(_BLOCK)

    with serve(LoopbackServer((LOOPBACK, 0), Handler)) as url:
        state.url = url
        yield state
