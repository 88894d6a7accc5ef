"""Splitting of URLs, and redaction of the secrets in them.

A URL can contain a password before its host and a signature in its query. Constructors reject both,
because messages and logs contain the URL of a storage. Messages redact all other URLs with this
module. Pure, no I/O.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_HIDDEN: Final = "..."

# A URL that does not match is redacted completely: a password may contain delimiters of URLs, as
# AWS keys contain slashes.
_REDACTABLE: Final = re.compile(
    r"""(?P<scheme>[a-z][a-z0-9+.-]*://)?+
        (?:[^/?\#]*@)?
        (?P<address>(?:[^/?\#@:\[\]]*|\[[0-9a-f:.]*\])(?::[0-9]*)?(?:/[^?\#@]*)?)
        (?:[?\#].*)?""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

_HOST: Final = re.compile(r"(?:[^@:\[\]]*|\[[0-9a-f:.]*\])(?::[0-9]*)?", re.IGNORECASE)
_SIGNATURE: Final = re.compile(
    r"[?&#][^/]*(?:sig|signature|token|credential|auth|password|pwd|secret|key)=", re.IGNORECASE
)

# A URL inside another one is percent-encoded.
_QUERY: Final = re.compile(r"(?:\?|%3F)[^\s,\"']*", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"(?<=://)[^\s/,\"'@]*@")


def redact_url(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    match = _REDACTABLE.fullmatch(url)
    if match is None:
        scheme = _SCHEME.match(url)
        return (scheme.group() if scheme else "") + _HIDDEN
    return (match["scheme"] or "") + _QUERY.sub(_HIDDEN, match["address"])


def redact_urls(text: str) -> str:
    """Remove users, passwords and queries from the URLs in an untrusted text."""
    return _USER_INFO.sub(f"{_HIDDEN}@", _QUERY.sub(f"?{_HIDDEN}", text))


def split_url(url: str) -> SplitResult:
    """Split a URL; raises `InvalidInputError` if it has no valid host."""
    with suppress(ValueError):  # it contains the URL, so it must not become the context
        return urlsplit(url)
    raise InvalidInputError(
        f"{redact_url(url)!r} is not a valid URL: it has no valid host",
        kind=ErrorKind.CANNOT_PARSE_URL,
    )


def require_no_secrets(parts: SplitResult, advice: str) -> None:
    """Raise `InvalidInputError` if a URL has a user, a password, a query or a fragment.

    ``advice`` ends the message and names the alternative.
    """
    if "@" in parts.netloc:
        problem = "a user or password in the URL would appear in messages"
    elif parts.query or parts.fragment:
        problem = "a query or fragment is not supported"
    else:
        return
    raise InvalidInputError(
        f"{redact_url(parts.geturl())}: {problem}; {advice}", kind=ErrorKind.STORAGE_CONFIG
    )


def require_shareable(url: str) -> None:
    """Raise `InvalidInputError` if the URL or glob pattern of a file contains a secret.

    File names are stored in references and records, which every user of the repository can read.
    Other queries are allowed: no request contains a query, and ``?`` may be part of a pattern.
    """
    scheme, separator, address = url.partition("://")
    if not separator or scheme.lower() == "file":
        return
    host = re.split("[/?#]", address, maxsplit=1)[0]
    if scheme.lower() in {"abfs", "abfss", "az", "azure"} and ":" not in host:
        host = host.rpartition("@")[2]  # container@account.…
    if _HOST.fullmatch(host) is None:
        problem = "a user or password"
    elif _SIGNATURE.search(address):
        problem = "a signature or token"
    else:
        return
    raise InvalidInputError(
        f"{redact_url(url)}: the URL contains {problem}, which would be stored in the repository; "
        "remove it, and pass credentials through the environment or a virtual chunk container",
        kind=ErrorKind.CANNOT_PARSE_URL,
    )
