"""Storages that a web address points to: one HTTP redirect tells where a repository is.

A stable address such as ``https://data.example.org/ocean`` answers with a redirect to, say,
``s3://bucket/prefix?region=eu-west-1``. The answer is not trusted with credentials: what it names
is opened anonymously, and never on this machine's file system.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Final
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
    from email.message import Message
    from typing import IO

    from icefloe.storage.object_store import ObjectStorage

MAX_REDIRECTS: Final = 10
_TIMEOUT_S: Final = 30
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


def redirect_storage(base_url: str) -> ObjectStorage:
    """Ask a web address where the repository is, and make the storage that it names.

    Requests go out now, at most ten and one; the storage knows only where they led.
    """
    if not _is_web_address(base_url):
        raise InvalidInputError(
            f"{redact_url(base_url)!r} is no web address: it must start with http:// or "
            "https://, without a user or password",
            kind=ErrorKind.CANNOT_PARSE_URL,
        )
    url = base_url
    for _ in range(MAX_REDIRECTS + 1):
        url = _target(url)
        if not _is_web_address(url):
            return storage_from_redirect(url)
    raise _bad(
        f"{redact_url(base_url)}: more than {MAX_REDIRECTS} redirects, and none names a repository"
    )


def storage_from_redirect(url: str) -> ObjectStorage:
    """Make the storage that the target of a redirect names, with anonymous credentials."""
    try:
        return _open_target(url)
    except InvalidInputError as error:
        # What is wrong comes from the server, and not from the caller.
        raise _bad(f"the target of a redirect cannot be opened: {error}") from error


def _open_target(url: str) -> ObjectStorage:
    parts = split_url(url)
    prefix = parts.path.strip("/")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    match parts.scheme:
        case "s3":
            if "region" not in query:
                raise _bad(f"{redact_url(url)}: a redirect to S3 must say ?region=")
            return s3_storage(
                bucket=parts.netloc, prefix=prefix, region=query["region"], anonymous=True
            )
        case "gs" | "gcs":
            return gcs_storage(bucket=parts.netloc, prefix=prefix, anonymous=True)
        case "r2":
            return r2_storage(
                bucket=parts.netloc,
                prefix=prefix,
                region=query.get("region"),
                account_id=query.get("account_id"),
                anonymous=True,
            )
        case "tigris":
            return tigris_storage(
                bucket=parts.netloc,
                prefix=prefix,
                region=query.get("region"),
                use_weak_consistency="region" not in query,
                anonymous=True,
            )
        case "http+icechunk" | "http+ic" | "https+icechunk" | "https+ic":
            plain = parts.scheme.partition("+")[0]
            return http_storage(f"{plain}://{parts.netloc}{parts.path}")
        case _:
            raise _bad(f"{redact_url(url)}: a redirect here names no place that can be opened")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to the caller: their last target is no web address."""

    def http_error_302(
        self,
        req: urllib.request.Request,  # noqa: ARG002 - the signature of the standard library
        fp: IO[bytes],  # noqa: ARG002
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: Message,  # noqa: ARG002
    ) -> None:
        # Unhandled, so that the caller gets it as an error with its headers.
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _is_web_address(url: str) -> bool:
    parts = split_url(url)
    return parts.scheme in {"http", "https"} and "@" not in parts.netloc


def _target(url: str) -> str:
    location = _location(url)
    # The text of the standard library's error quotes the URL, so it must not become the context.
    with suppress(ValueError):
        target = urljoin(url, location)
        split_url(target)
        return target
    raise _bad(f"{redact_url(url)}: redirects to what is no URL: {redact_url(location)!r}")


def _location(url: str) -> str:
    opener = urllib.request.build_opener(_NoRedirects)
    shown = redact_url(url)
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as response:
            raise _bad(f"{shown}: answered {response.status} instead of a redirect")
    except urllib.error.HTTPError as error:
        with error:
            location = error.headers.get("Location")
            if error.code in _REDIRECTS and location:
                return str(location)
            raise _bad(f"{shown}: answered {error.code} instead of a redirect") from error
    except OSError as error:
        raise StorageError(f"{shown}: could not be asked: {error}", kind=ErrorKind.IO) from error
    except (HTTPException, ValueError) as error:
        problem = type(error).__name__
    # No text and no cause: what is wrong with a URL is told by quoting it.
    raise _bad(f"{shown}: neither a redirect nor any answer of a web server ({problem})")


def _bad(message: str) -> StorageError:
    return StorageError(message, kind=ErrorKind.BAD_REDIRECT)
