"""Storages behind an HTTP URL that redirects to a repository.

For example, ``https://data.example.org/ocean`` redirects to
``s3://bucket/prefix?region=eu-west-1``. The target is untrusted: it is opened without credentials,
and never on the local file system.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urljoin

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.constructors import (
    gcs_storage,
    http_storage,
    r2_storage,
    s3_storage,
    tigris_storage,
)
from icefloe.storage.urls import redact_url, split_url

if TYPE_CHECKING:
    from icefloe.storage.object_store import ObjectStorage

MAX_REDIRECTS: Final = 10
"""Maximum number of redirects between HTTP URLs, before the one to the storage."""

_TIMEOUT_S: Final = 30
_REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})


def redirect_storage(base_url: str) -> ObjectStorage:
    """Follow the redirects of an HTTP URL and make the storage at their target.

    Sends the requests immediately, at most `MAX_REDIRECTS` + 1. The storage keeps the target, not
    ``base_url``.
    """
    if not _is_http_url(base_url):
        raise InvalidInputError(
            f"{redact_url(base_url)!r} is not an HTTP URL: it must start with http:// or https://, "
            "without a user or password",
            kind=ErrorKind.CANNOT_PARSE_URL,
        )
    url = base_url
    for _ in range(MAX_REDIRECTS + 1):
        url = _fetch_target(url)
        if not _is_http_url(url):
            return storage_from_redirect(url)
    raise _redirect_error(f"{redact_url(base_url)}: more than {MAX_REDIRECTS} redirects")


def storage_from_redirect(url: str) -> ObjectStorage:
    """Make the storage at the target of a redirect, with anonymous credentials."""
    try:
        return _open_target(url)
    except InvalidInputError as error:
        # The server sent an invalid target; the argument of the caller is valid.
        raise _redirect_error(f"the target of a redirect cannot be opened: {error}") from error


def _open_target(url: str) -> ObjectStorage:
    parts = split_url(url)
    prefix = parts.path.strip("/")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    region = query.get("region")
    common: dict[str, Any] = {"bucket": parts.netloc, "prefix": prefix, "anonymous": True}
    match parts.scheme:
        case "s3":
            if region is None:
                raise _redirect_error(f"{redact_url(url)}: a redirect to S3 needs ?region=")
            return s3_storage(**common, region=region)
        case "gs" | "gcs":
            return gcs_storage(**common)
        case "r2":
            return r2_storage(**common, region=region, account_id=query.get("account_id"))
        case "tigris":
            # Tigris needs a region for consistent writes; without one, the storage is read-only.
            return tigris_storage(**common, region=region, use_weak_consistency=region is None)
        case "http+icechunk" | "http+ic" | "https+icechunk" | "https+ic":
            scheme = parts.scheme.partition("+")[0]
            return http_storage(f"{scheme}://{parts.netloc}{parts.path}")
        case _:
            raise _redirect_error(f"{redact_url(url)}: redirects to this scheme are not supported")


def _is_http_url(url: str) -> bool:
    parts = split_url(url)
    return parts.scheme in {"http", "https"} and "@" not in parts.netloc


def _fetch_target(url: str) -> str:
    location = _fetch_location(url)
    # The ValueError contains the URL, so it must not become the context of the new error.
    with suppress(ValueError):
        target = urljoin(url, location)
        split_url(target)
        return target
    raise _redirect_error(f"{redact_url(url)}: invalid redirect to {redact_url(location)!r}")


def _fetch_location(url: str) -> str:
    # Here, because these imports take 5 % of the time to import icefloe.
    from http.client import HTTPException  # noqa: PLC0415
    from urllib import request  # noqa: PLC0415
    from urllib.error import HTTPError  # noqa: PLC0415

    # Without a handler of redirects, because urllib cannot open the last target: it is not HTTP. A
    # redirect raises an HTTPError, which has the headers.
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    redacted = redact_url(url)
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as response:
            raise _redirect_error(f"{redacted}: returned {response.status} instead of a redirect")
    except HTTPError as error:
        with error:
            location = error.headers.get("Location")
            if error.code in _REDIRECT_STATUSES and location:
                return str(location)
            raise _redirect_error(
                f"{redacted}: returned {error.code} instead of a redirect"
            ) from error
    except OSError as error:
        raise StorageError(f"{redacted}: request failed: {error}", kind=ErrorKind.IO) from error
    except (HTTPException, ValueError) as error:
        error_type = type(error).__name__
    # The error may contain the URL: report only its type, and raise outside the handler.
    raise _redirect_error(
        f"{redacted}: neither a redirect nor a valid HTTP response ({error_type})"
    )


def _redirect_error(message: str) -> StorageError:
    return StorageError(message, kind=ErrorKind.BAD_REDIRECT)
