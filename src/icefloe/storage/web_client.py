"""An HTTP client that controls redirects and the size of responses, for virtual chunks.

The client of obstore follows all redirects, and sends the headers of a container along. This one
follows a redirect only if its target is below a URL prefix. It reads no more than a response may
contain, and rejects responses whose length and range contradict each other. Connections are kept.
"""

from __future__ import annotations

import os
import re
import select
import ssl
import time
from base64 import b64encode
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from icefloe.errors import ErrorKind, StorageError
from icefloe.model.byte_range import Bounded, resolve
from icefloe.storage.urls import redact_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from http.client import HTTPResponse

    from icefloe.model.byte_range import ByteRange

MAX_REDIRECTS: Final = 10

_MAX_IDLE_CONNECTIONS: Final = 32
_BLOCK_BYTES: Final = 1 << 18
_REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_DIGITS: Final = re.compile(r"\d{1,19}")


class TransientError(Exception):
    """The request may succeed if it is repeated."""


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Headers of every request, timeouts and trusted certificates."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout_s: float = 5
    read_timeout_s: float = 60
    total_timeout_s: float = 300
    verify: bool = True
    root_certificate: str | None = None


@dataclass(frozen=True, slots=True)
class WebContent:
    """A response: its status and headers, and the requested part of the object, if successful."""

    status: int
    headers: Mapping[str, str]
    data: bytes = b""
    size_bytes: int = 0


class _Address(NamedTuple):
    """The server and the decoded path of a URL."""

    scheme: str
    host: str | None
    port: int | None
    path: str


class _Proxy(NamedTuple):
    host: str
    port: int
    headers: dict[str, str]


class WebClient:
    """Requests files below ``prefix``, the percent-encoded URL of a folder or file; thread-safe."""

    def __init__(self, prefix: str, options: WebOptions) -> None:
        self._prefix: Final = _parse(prefix)
        self._prefix_text: Final = prefix
        self._options: Final = options
        self._idle: deque[HTTPConnection] = deque()
        self._pid = os.getpid()

    def __del__(self) -> None:
        for connection in self._idle:
            connection.close()

    def head(self, url: str) -> WebContent:
        """Fetch the headers of a file."""
        with self._open("HEAD", url, {}) as response:
            headers = _get_headers(response)
            if response.status != 200:
                return WebContent(response.status, headers)
            return WebContent(200, headers, b"", _get_length(response, url))

    def get(
        self,
        url: str,
        headers: Mapping[str, str],
        byte_range: ByteRange | None,
        max_bytes: int | None = None,
    ) -> WebContent:
        """Fetch a range of a file; ``headers`` request it, and may have conditions.

        Stops at the end of the range if the server sends more, such as the complete file. Raises
        `TransientError` if the connection fails.
        """
        deadline = time.monotonic() + self._options.total_timeout_s
        with self._open("GET", url, headers) as response:
            if response.status not in {200, 206}:
                return WebContent(response.status, _get_headers(response))
            sent, size_bytes = _get_sent_range(response, url)
            wanted = resolve(byte_range, size_bytes)
            if response.status == 206 and (sent.start, sent.end) != (wanted.start, wanted.end):
                raise _contradiction(
                    url,
                    f"requested bytes {wanted.start} to {wanted.end}, "
                    f"got bytes {sent.start} to {sent.end}",
                )
            num_bytes = wanted.end - wanted.start
            if max_bytes is not None and num_bytes > max_bytes:
                raise StorageError(
                    f"{redact_url(url)}: {num_bytes} bytes exceed the maximum of {max_bytes}",
                    kind=ErrorKind.INVALID_OBJECT_SIZE,
                )
            # What precedes the range is dropped block by block.
            for _ in _read_blocks(response, url, wanted.start - sent.start, deadline):
                pass
            data = b"".join(_read_blocks(response, url, num_bytes, deadline))
            if response.length is None and wanted.end == sent.end and response.read1(1):
                raise _contradiction(url, f"more than the announced {num_bytes} bytes were sent")
            return WebContent(response.status, _get_headers(response), data, size_bytes)

    @contextmanager
    def _open(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[HTTPResponse]:
        """Send a request and follow its redirects; yields the last response."""
        target = url
        for _ in range(MAX_REDIRECTS + 1):
            with self._send(method, target, headers) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECT_STATUSES or location is None:
                    yield response
                    return
            target = self._require_below_prefix(target, location)
        raise _redirect_error(f"{redact_url(url)}: more than {MAX_REDIRECTS} redirects")

    def _require_below_prefix(self, url: str, location: str) -> str:
        with suppress(ValueError):
            target = urljoin(url, location)
            if _is_below(_parse(target), self._prefix):
                return quote(target, safe="%/:?#[]@!$&'()*+,;=~")
        raise _redirect_error(
            f"{redact_url(url)}: the server redirects to {redact_url(location)!r}, which is not "
            f"below {redact_url(self._prefix_text)!r}; if you trust the target, add a virtual "
            "chunk container for it, and refer to the files there"
        )

    @contextmanager
    def _send(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[HTTPResponse]:
        parts = urlsplit(url)
        # In lower case: headers of the container must not repeat those of the request.
        merged = {**self._options.headers, **headers}
        lowered = {name.lower(): value for name, value in merged.items()}
        target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        connection: HTTPConnection | None = None
        try:
            proxy = _find_proxy(parts)
            connection = None if proxy else self._take()
            if connection is None:
                connection = self._connect(parts, proxy)
            if proxy is not None and parts.scheme == "http":
                target = parts._replace(fragment="").geturl()
                lowered |= proxy.headers
            connection.request(method, target, headers=lowered)
            response = connection.getresponse()
            yield response
            is_reusable = response.length == 0 and not response.will_close and proxy is None
            response.close()
            if is_reusable and len(self._idle) < _MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                connection = None
        except ssl.SSLCertVerificationError as error:
            raise StorageError(
                f"{redact_url(url)}: the certificate of the server is not valid: "
                f"{error.verify_message}",
                kind=ErrorKind.OBJECT_STORE,
            ) from None
        except (OSError, HTTPException) as error:
            # Only the type of protocol errors: their text is that of the server.
            problem = error if isinstance(error, OSError) else type(error).__name__
            raise TransientError(f"{redact_url(url)}: the request failed: {problem}") from None
        finally:
            if connection is not None:
                connection.close()

    def _connect(self, parts: SplitResult, proxy: _Proxy | None) -> HTTPConnection:
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
        address = (host, port) if proxy is None else (proxy.host, proxy.port)
        timeout_s = self._options.connect_timeout_s
        if parts.scheme == "http":
            connection = HTTPConnection(*address, timeout=timeout_s)
        else:
            connection = HTTPSConnection(*address, timeout=timeout_s, context=self._tls)
            if proxy is not None:
                connection.set_tunnel(host, port, proxy.headers)
        connection.connect()
        connection.sock.settimeout(self._options.read_timeout_s)
        return connection

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self._options.root_certificate)
        if not self._options.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def _take(self) -> HTTPConnection | None:
        """Return a kept connection that the server has not closed; all are to one server."""
        if self._pid != os.getpid():  # a forked process must not use those of its parent
            self._idle, self._pid = deque(), os.getpid()
        with suppress(IndexError):  # without a lock, which another thread could hold during a fork
            while True:
                connection = self._idle.pop()
                if not _is_closed(connection):
                    return connection
                connection.close()
        return None


def _find_proxy(parts: SplitResult) -> _Proxy | None:
    """Return the proxy that the environment names for a URL."""
    url = getproxies().get(parts.scheme)
    if url is None or proxy_bypass(parts.netloc):
        return None
    proxy = urlsplit(url if "://" in url else f"http://{url}")
    headers = {}
    if proxy.username is not None:
        user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["proxy-authorization"] = f"Basic {b64encode(user.encode()).decode()}"
    return _Proxy(proxy.hostname or "", proxy.port or _DEFAULT_PORTS["http"], headers)


def _is_closed(connection: HTTPConnection) -> bool:
    """Whether a connection without a pending response is readable: closed, or out of step."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _parse(url: str) -> _Address:
    """Parse a URL; raises `ValueError` if it is invalid."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.scheme not in _DEFAULT_PORTS:
        raise ValueError
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    return _Address(parts.scheme, parts.hostname, port, unquote(parts.path))


def _is_below(address: _Address, prefix: _Address) -> bool:
    # Servers may resolve dot segments, decode slashes and accept backslashes.
    segments = address.path.replace("\\", "/").split("/")
    return (
        address[:3] == prefix[:3]
        and not {".", ".."}.intersection(segments)
        and (
            address.path == prefix.path
            or address.path.startswith(f"{prefix.path.removesuffix('/')}/")
        )
    )


def _get_sent_range(response: HTTPResponse, url: str) -> tuple[Bounded, int]:
    """Return the range that a response contains, and the size of the complete file."""
    if response.status == 200:
        size_bytes = _get_length(response, url)
        return Bounded(0, size_bytes), size_bytes
    text = ", ".join(dict.fromkeys(response.headers.get_all("Content-Range", [])))
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        raise _contradiction(url, f"status 206 with the Content-Range {text!r}")
    first, last, size_bytes = map(int, match.groups())
    if not first <= last < size_bytes:
        raise _contradiction(url, f"the Content-Range {text!r}")
    if "Content-Length" in response.headers:
        num_bytes = _get_length(response, url)
        if num_bytes != last + 1 - first:
            raise _contradiction(url, f"{num_bytes} bytes with the Content-Range {text!r}")
    return Bounded(first, last + 1), size_bytes


def _get_length(response: HTTPResponse, url: str) -> int:
    lengths = {text.strip() for text in response.headers.get_all("Content-Length", [])}
    if len(lengths) != 1 or not _DIGITS.fullmatch(text := lengths.pop()):
        raise _contradiction(url, "no valid Content-Length")
    return int(text)


def _get_headers(response: HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _read_blocks(
    response: HTTPResponse, url: str, num_bytes: int, deadline: float
) -> Iterator[bytes]:
    """Read exactly ``num_bytes``; memory is only allocated for bytes that arrive."""
    remaining = num_bytes
    while remaining:
        block = response.read1(min(remaining, _BLOCK_BYTES))
        if not block:
            raise TransientError(
                f"{redact_url(url)}: the server returned fewer bytes than requested"
            )
        if time.monotonic() > deadline:
            raise TimeoutError("the response takes too long")
        remaining -= len(block)
        yield block


def _contradiction(url: str, problem: str) -> StorageError:
    return StorageError(
        f"{redact_url(url)}: the response of the server is not valid: {problem}",
        kind=ErrorKind.OBJECT_STORE,
    )


def _redirect_error(message: str) -> StorageError:
    return StorageError(message, kind=ErrorKind.BAD_REDIRECT)
