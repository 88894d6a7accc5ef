"""A proxy that injects faults into requests to a server."""

from __future__ import annotations

import http.client
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, ClassVar

from support.web_servers import LOOPBACK, LoopbackServer, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Fault(Enum):
    """A fault of one request."""

    LOSE_RESPONSE = auto()  # the server executes it, the client gets no response
    LOSE_REQUEST = auto()  # the server does not get it
    UNAVAILABLE = auto()  # responds 503, the server does not get it
    UNAVAILABLE_AFTER = auto()  # the server executes it, the client gets 503
    HALF_BODY = auto()  # the connection breaks in the middle of the response


@dataclass(slots=True)
class FaultyProxy:
    """An HTTP proxy in front of one server, with the faults to inject.

    Attributes
    ----------
    faults
        Faults of the next requests, by method.
    always
        Fault of every request after ``faults`` are used up, by method.
    before_answer
        Called after the server executed a request with a fault.
    seen
        The methods of all requests, in order.
    """

    url: str = ""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    always: dict[str, Fault] = field(default_factory=dict)
    before_answer: Callable[[], object] = lambda: None
    seen: list[str] = field(default_factory=list)

    def next_fault(self, method: str) -> Fault | None:
        self.seen.append(method)
        waiting = self.faults.get(method)
        return waiting.pop(0) if waiting else self.always.get(method)


@contextmanager
def faulty_proxy(upstream_url: str) -> Iterator[FaultyProxy]:
    """Run a proxy that forwards to ``upstream_url`` (``http://host:port``)."""
    plan = FaultyProxy()

    class Handler(_ProxyHandler):
        upstream = upstream_url.removeprefix("http://")
        proxy = plan

    with serve(LoopbackServer((LOOPBACK, 0), Handler)) as url:
        plan.url = url
        yield plan


class _ProxyHandler(BaseHTTPRequestHandler):
    upstream: ClassVar[str]
    proxy: ClassVar[FaultyProxy]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Do not log."""

    def _relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        fault = self.proxy.next_fault(self.command)
        if fault is Fault.LOSE_REQUEST:
            self._hang_up()
            return
        if fault is Fault.UNAVAILABLE:
            self._answer(503, {}, b"")
            return
        status, headers, answer = self._forward(body)
        if fault is not None:
            self.proxy.before_answer()
        match fault:
            case Fault.LOSE_RESPONSE:
                self._hang_up()
            case Fault.UNAVAILABLE_AFTER:
                self._answer(503, {}, b"")
            case Fault.HALF_BODY:
                self._answer(status, headers, answer, sent=len(answer) // 2)
                self._hang_up()
            case _:
                self._answer(status, headers, answer)

    do_GET = _relay  # noqa: N815 - names of the standard library
    do_HEAD = _relay  # noqa: N815
    do_PUT = _relay  # noqa: N815
    do_POST = _relay  # noqa: N815
    do_DELETE = _relay  # noqa: N815

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=30)
        try:
            # Keep the Host header of the client: the signature covers it.
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            response = connection.getresponse()
            headers = {k.lower(): v for k, v in response.getheaders()}
            return response.status, headers, response.read()
        finally:
            connection.close()

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, *, sent: int | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        length = headers.get("content-length", str(len(body)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        self.wfile.write(body[:sent])

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
