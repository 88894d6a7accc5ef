"""Storages behind a stable web address, which redirects to a repository.

An address such as ``https://data.example.org/ocean`` redirects to, say,
``s3://bucket/prefix?region=eu-west-1``. The target is not trusted with credentials: it is opened
anonymously, and never on the local file system.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import suppress
from http.client import HTTPException
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
_TIMEOUT_S: Final = 30
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


def redirect_storage(base_url: str) -> ObjectStorage:
    """Follow the redirects of a web address and make the storage at their target.

    Sends at most 11 requests immediately; the storage itself keeps only the target.
    """
    if not _is_web_address(base_url):
        raise InvalidInputError(
            f"{redact_url(base_url)!r} is not a web address: it must start with http:// or "
            "https://, without a user or password",
            kind=ErrorKind.CANNOT_PARSE_URL,
        )
    url = base_url
    for _ in range(MAX_REDIRECTS + 1):
        url = _target(url)
        if not _is_web_address(url):
            return storage_from_redirect(url)
    raise _redirect_error(
        f"{redact_url(base_url)}: more than {MAX_REDIRECTS} redirects without a repository"
    )


def storage_from_redirect(url: str) -> ObjectStorage:
    """Make the storage at the target of a redirect, with anonymous credentials."""
    try:
        return _open_target(url)
    except InvalidInputError as error:
        # The server's error, not the caller's.
        raise _redirect_error(f"the target of a redirect cannot be opened: {error}") from error


def _open_target(url: str) -> ObjectStorage:
    parts = split_url(url)
    prefix = parts.path.strip("/")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    region = query.get("region")
    place: dict[str, Any] = {"bucket": parts.netloc, "prefix": prefix, "anonymous": True}
    match parts.scheme:
        case "s3":
            if region is None:
                raise _redirect_error(f"{redact_url(url)}: a redirect to S3 needs ?region=")
            return s3_storage(**place, region=region)
        case "gs" | "gcs":
            return gcs_storage(**place)
        case "r2":
            return r2_storage(**place, region=region, account_id=query.get("account_id"))
        case "tigris":
            return tigris_storage(**place, region=region, use_weak_consistency=region is None)
        case "http+icechunk" | "http+ic" | "https+icechunk" | "https+ic":
            plain = parts.scheme.partition("+")[0]
            return http_storage(f"{plain}://{parts.netloc}{parts.path}")
        case _:
            raise _redirect_error(f"{redact_url(url)}: unsupported target of a redirect")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to the caller: the last target is not a web address."""

    def http_error_302(self, *_: object, **__: object) -> None:
        # Unhandled, so that it reaches the caller as an error with its headers.
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _is_web_address(url: str) -> bool:
    parts = split_url(url)
    return parts.scheme in {"http", "https"} and "@" not in parts.netloc


def _target(url: str) -> str:
    location = _location(url)
    # The error of the standard library quotes the URL, so it must not become the context.
    with suppress(ValueError):
        target = urljoin(url, location)
        split_url(target)
        return target
    raise _redirect_error(f"{redact_url(url)}: redirects to no URL: {redact_url(location)!r}")


def _location(url: str) -> str:
    opener = urllib.request.build_opener(_NoRedirects)
    shown = redact_url(url)
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as response:
            raise _redirect_error(f"{shown}: returned {response.status} instead of a redirect")
    except urllib.error.HTTPError as error:
        with error:
            location = error.headers.get("Location")
            if error.code in _REDIRECTS and location:
                return str(location)
            raise _redirect_error(
                f"{shown}: returned {error.code} instead of a redirect"
            ) from error
    except OSError as error:
        raise StorageError(f"{shown}: request failed: {error}", kind=ErrorKind.IO) from error
    except (HTTPException, ValueError) as error:
        problem = type(error).__name__
    # Without the text and the cause, which quote the URL.
    raise _redirect_error(f"{shown}: neither a redirect nor a valid HTTP response ({problem})")


def _redirect_error(message: str) -> StorageError:
    return StorageError(message, kind=ErrorKind.BAD_REDIRECT)
