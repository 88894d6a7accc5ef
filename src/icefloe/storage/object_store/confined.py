"""The files of a virtual chunk container on a web server.

The writers of a repository configure its containers, and web servers are untrusted: redirects
must stay below the prefix of the container, which the user authorized.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import cached_property, lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

from icefloe import __version__
from icefloe.errors import (
    AbsentOrDeniedError,
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    PermissionDeniedError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.model.byte_range import Bounded
from icefloe.storage.backoff import compute_backoff_s
from icefloe.storage.interface import Fetched, ObjectInfo, Version, is_same_version
from icefloe.storage.keys import validate_key
from icefloe.storage.object_store.errors import RangeUnsatisfiableError
from icefloe.storage.object_store.storage import HttpStorage
from icefloe.storage.places import HttpPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from obstore import GetOptions

    from icefloe.model.byte_range import ByteRange
    from icefloe.model.storage_settings import StorageSettings
    from icefloe.storage.read_condition import ReadCondition
    from icefloe.storage.web_client import WebClient, WebContent, WebOptions

T = TypeVar("T")

_MAX_THREADS: Final = 64
_RETRY_TIMEOUT_S: Final = 180
_PATH_CHARACTERS: Final = "/!$&'()*+,;=:@"
_DURATION: Final = re.compile(r"(\d{1,9}) *(ms|s|m)?")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, None: 1}
_IGNORED_OPTION: Final = re.compile(
    "allow_http|default_content_type|randomize_addresses|http|pool_"
)
"""Options of obstore that tune connections, or that the URL decides."""


class ContainerHttpStorage(HttpStorage):
    """Reads files below a URL prefix of a web server; follows no redirect that leaves it.

    A server that ignores ranges is read up to the end of the range.
    """

    def get_if_changed(
        self, key: str, version: Version, *, max_bytes: int | None = None
    ) -> Fetched | None:
        """Fetch an object, and compare its version."""
        fetched = self.get(key, max_bytes=max_bytes)
        return None if is_same_version(fetched.info.version, version) else fetched

    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        """Fetch several ranges with one request each, concurrently."""
        get = partial(self.get, key)
        return [fetched.data for fetched in _get_threads(os.getpid()).map(get, ranges)]

    def get_bytes(self, key: str, start: int, length: int) -> bytes | memoryview:
        """Fetch a range of bytes."""
        return self.get(key, Bounded(start, start + length)).data

    async def get_bytes_async(self, key: str, start: int, length: int) -> bytes | memoryview:
        """`get_bytes` in a thread."""
        return (await _run(partial(self.get, key, Bounded(start, start + length)))).data

    async def get_if_async(self, key: str, span: Bounded, condition: ReadCondition) -> Fetched:
        """`get_if` in a thread."""
        return await _run(partial(self.get_if, key, span, condition))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Raise `StorageError`."""
        raise StorageError(
            f"{self._get_url(prefix)}: a virtual chunk container on a web server cannot list files",
            kind=ErrorKind.UNIMPLEMENTED,
        )

    def head(self, key: str) -> ObjectInfo:
        """Fetch the size and version of a file."""
        validate_key(key)
        content = self._send(lambda: self._web.head(self._make_request_url(key)))
        self._require_success(key, content.status)
        return _make_info(key, content)

    def _fetch(
        self,
        key: str,
        options: GetOptions | None,
        byte_range: ByteRange | None,
        max_bytes: int | None,
    ) -> Fetched:
        url, headers = self._make_request_url(key), _make_headers(options or {})
        content = self._send(lambda: self._web.get(url, headers, byte_range, max_bytes))
        self._require_success(key, content.status)
        return Fetched(content.data, _make_info(key, content))

    @cached_property
    def _web(self) -> WebClient:
        # Here, because these imports take 5 % of the time to import icefloe.
        from icefloe.storage.web_client import WebClient  # noqa: PLC0415

        place = self.place
        assert isinstance(place, HttpPlace)  # noqa: S101 - for type checkers
        return WebClient(
            place.redirects_below or place.base_url, _make_options(place, self.settings)
        )

    def _make_request_url(self, key: str) -> str:
        return f"{self.url}/{quote(key, safe=_PATH_CHARACTERS)}"

    def _send(self, request: Callable[[], WebContent]) -> WebContent:
        """Send a request, and again if it fails in a way that may not recur."""
        from icefloe.storage.web_client import TransientError  # noqa: PLC0415

        retries = self.settings.effective_retries
        timeout_ms = self.settings.effective_timeouts.operation_timeout_ms
        timeout_s = _RETRY_TIMEOUT_S if timeout_ms is None else timeout_ms / 1000
        initial_s = retries.effective_initial_backoff_ms / 1000
        max_s = retries.effective_max_backoff_ms / 1000
        started_at = time.monotonic()
        for failures in count(1):
            try:
                content = request()
            except TransientError as error:
                failure = str(error)
            else:
                if content.status < 500 and content.status != 429:
                    break
                failure = f"{self.url}: the server responded with status {content.status}"
            if failures >= retries.effective_max_tries or time.monotonic() - started_at > timeout_s:
                raise StorageError(failure, kind=ErrorKind.OBJECT_STORE)
            time.sleep(compute_backoff_s(failures, initial_s, max_s))
        return content

    def _require_success(self, key: str, status: int) -> None:
        where = self._get_url(key)
        match status:
            case 200 | 206:
                return
            case 404 | 410:
                raise ObjectNotFoundError(f"{where}: no such object")
            case 401 | 403:
                kind = AbsentOrDeniedError if status == 403 else PermissionDeniedError
                raise kind(
                    f"{where}: no permission to read it: the server responded with status "
                    f"{status}; check the headers of the container"
                )
            case 412:
                raise PreconditionFailedError(f"{where}: the precondition does not hold")
            case 416:
                raise RangeUnsatisfiableError(f"{where}: the file ends before the range")
            case _:
                raise StorageError(
                    f"{where}: read failed: the server responded with status {status}",
                    kind=ErrorKind.OBJECT_STORE,
                )


@lru_cache(maxsize=1)
def _get_threads(pid: int) -> ThreadPoolExecutor:  # noqa: ARG001 - threads do not survive a fork
    return ThreadPoolExecutor(_MAX_THREADS, "icefloe-http")


async def _run(function: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_get_threads(os.getpid()), function)


def _make_options(place: HttpPlace, settings: StorageSettings) -> WebOptions:
    """Return the options of the client of a place; raises `InvalidInputError` if unsupported."""
    from icefloe.storage.web_client import WebOptions  # noqa: PLC0415

    timeouts = settings.effective_timeouts
    options = WebOptions({"User-Agent": f"icefloe/{__version__}", **place.headers})
    for name, value in place.options.items():
        text = str(value)
        match name:
            case "user_agent":
                options = replace(options, headers={**options.headers, "User-Agent": text})
            case "root_certificate":
                options = replace(options, root_certificate=text)
            case "allow_invalid_certificates":
                options = replace(options, verify=text.lower() not in {"1", "true"})
            case "timeout":
                options = replace(options, total_timeout_s=_parse_seconds(place, name, text))
            case "connect_timeout":
                options = replace(options, connect_timeout_s=_parse_seconds(place, name, text))
            case "read_timeout":
                options = replace(options, read_timeout_s=_parse_seconds(place, name, text))
            case _ if not _IGNORED_OPTION.match(name):
                raise InvalidInputError(
                    f"{place.url}: invalid options: virtual chunk containers on web servers do not "
                    f"support the option {name!r}; for a proxy, set HTTPS_PROXY",
                    kind=ErrorKind.STORAGE_CONFIG,
                )
    if (timeout_ms := timeouts.connect_timeout_ms) is not None:
        options = replace(options, connect_timeout_s=timeout_ms / 1000)
    if (timeout_ms := timeouts.read_timeout_ms) is not None:
        options = replace(options, read_timeout_s=timeout_ms / 1000)
    if (timeout_ms := timeouts.operation_attempt_timeout_ms) is not None:
        options = replace(options, total_timeout_s=timeout_ms / 1000)
    return options


def _parse_seconds(place: HttpPlace, name: str, text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidInputError(
            f"{place.url}: invalid options: expected a duration like '30s' for {name!r}, "
            f"got {text!r}",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    return int(match[1]) * _SECONDS[match[2]]


def _make_headers(options: GetOptions) -> dict[str, str]:
    headers = {}
    match options.get("range"):
        case (start, end):
            headers["Range"] = f"bytes={start}-{end - 1}"
        case {"offset": start}:
            headers["Range"] = f"bytes={start}-"
        case {"suffix": length}:
            headers["Range"] = f"bytes=-{length}"
    if (etag := options.get("if_match")) is not None:
        headers["If-Match"] = etag
    if (time_limit := options.get("if_unmodified_since")) is not None:
        headers["If-Unmodified-Since"] = format_datetime(time_limit.astimezone(UTC), usegmt=True)
    return headers


def _make_info(key: str, content: WebContent) -> ObjectInfo:
    modified_at = datetime.fromtimestamp(0, UTC)  # as obstore, if the server sends no time
    with suppress(ValueError, OverflowError):
        modified_at = parsedate_to_datetime(content.headers.get("last-modified", ""))
        modified_at = modified_at.astimezone(UTC)
    version = Version(etag=content.headers.get("etag"), generation=None)
    return ObjectInfo(key, content.size_bytes, modified_at, version)
