"""Splitting of URLs, and redaction of the secrets in them.

A URL can contain a password before its host and a signature in its query. Constructors of storages
reject both, because messages and logs contain the URL of a storage. All other URLs in messages are
redacted by this module. Pure, no I/O.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.url_secrets import find_secret

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_REDACTED: Final = "..."

# Of a URL that does not match, only the scheme is shown: a password may contain delimiters of URLs,
# as AWS keys contain slashes.
_REDACTABLE: Final = re.compile(
    r"""(?P<scheme>[a-z][a-z0-9+.-]*://)?+
        (?:[^/?\#]*@)?
        (?P<address>(?:[^/?\#@:\[\]]*|\[[0-9a-f:.]*\])(?::[0-9]*)?(?:/[^?\#@]*)?)
        (?:[?\#].*)?""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

# The query of a URL inside another URL is percent-encoded. `<?xml` begins a response.
_QUERY: Final = re.compile(r"(?:(?<!<)\?(?!>)|%3F)[^\s,\"']*", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"(?<=://)[^\s/,\"'@]*@")


def redact_url(url: str) -> str:
    """Return a URL without user, password, query and fragment; only the scheme if in doubt."""
    match = _REDACTABLE.fullmatch(url)
    if match is None:
        scheme = _SCHEME.match(url)
        return (scheme.group() if scheme else "") + _REDACTED
    return (match["scheme"] or "") + _QUERY.sub(_REDACTED, match["address"])


def redact_urls(text: str) -> str:
    """Redact users, passwords and queries of the URLs in an untrusted text."""
    return _USER_INFO.sub(f"{_REDACTED}@", _QUERY.sub(f"?{_REDACTED}", text))


def split_url(url: str) -> SplitResult:
    """Split a URL; raise `InvalidInputError` if it has no valid host."""
    # The message of the ValueError contains the URL: raise outside of its handler, so that it does
    # not become the context of our error.
    with suppress(ValueError):
        return urlsplit(url)
    raise InvalidInputError(
        f"{redact_url(url)!r} is not a valid URL: it has no valid host",
        kind=ErrorKind.CANNOT_PARSE_URL,
    )


def require_no_secrets(parts: SplitResult, advice: str) -> None:
    """Raise `InvalidInputError` if a URL has a user, a password, a query or a fragment.

    ``advice`` is the end of the message, which says where credentials belong instead.
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
    Any other ``?`` is allowed: it is part of the path or of a pattern, as no request has a query.
    """
    problem = find_secret(url)
    if problem is None:
        return
    raise InvalidInputError(
        f"{redact_url(url)}: the URL contains {problem}, which would be stored in the repository; "
        "remove it, and pass credentials through the environment or a virtual chunk container",
        kind=ErrorKind.CANNOT_PARSE_URL,
    )
