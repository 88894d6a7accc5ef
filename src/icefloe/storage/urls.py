"""URLs that people and servers give: taken apart, and shown without the secrets in them.

A URL can hold a password before its host and a signature in its query. Both are refused where a
storage is made, because its URL is shown everywhere; the messages that say so, like all others,
show URLs only by way of this module. Pure, no I/O.
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

# What does not match is hidden whole: a password may hold the very characters that end its part of
# the URL, as the keys of AWS hold slashes.
_SHOWN: Final = re.compile(
    r"""(?P<scheme>[a-z][a-z0-9+.-]*://)?+
        (?:[^/?\#]*@)?
        (?P<place>(?:[^/?\#@:\[\]]*|\[[0-9a-f:.]*\])(?::[0-9]*)?(?:/[^?\#@]*)?)
        (?:[?\#].*)?""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

_HOST: Final = re.compile(r"(?:[^@:\[\]]*|\[[0-9a-f:.]*\])(?::[0-9]*)?", re.IGNORECASE)
_SIGNATURE: Final = re.compile(
    r"[?&#][^/]*(?:sig|signature|token|credential|auth|password|pwd|secret|key)=", re.IGNORECASE
)

# An error that quotes a URL inside of another one quotes it encoded.
_QUERY: Final = re.compile(r"(?:\?|%3F)[^\s,\"']*", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"(?<=://)[^\s/,\"'@]*@")


def redact_url(url: str) -> str:
    """Show where a URL leads, without user, password, query and fragment."""
    shown = _SHOWN.fullmatch(url)
    if shown is None:
        scheme = _SCHEME.match(url)
        return (scheme.group() if scheme else "") + _HIDDEN
    return (shown["scheme"] or "") + _QUERY.sub(_HIDDEN, shown["place"])


def redact_urls(text: str) -> str:
    """Take users, passwords and queries out of the URLs in a text of somebody else's."""
    return _USER_INFO.sub(f"{_HIDDEN}@", _QUERY.sub(f"?{_HIDDEN}", text))


def split_url(url: str) -> SplitResult:
    """Take a URL apart; raises `InvalidInputError` where that cannot be done."""
    with suppress(ValueError):  # whose text quotes the URL, so it must not become the context
        return urlsplit(url)
    raise InvalidInputError(
        f"{redact_url(url)!r} is no URL: its host cannot be made out",
        kind=ErrorKind.CANNOT_PARSE_URL,
    )


def require_no_secrets(parts: SplitResult, advice: str) -> None:
    """Raise `InvalidInputError` where a URL has a user, a password, a query or a fragment.

    ``advice`` says where what they mean can be given instead.
    """
    if "@" in parts.netloc:
        problem = "a user or a password in a URL would be shown"
    elif parts.query or parts.fragment:
        problem = "a query or a fragment is not understood here"
    else:
        return
    raise InvalidInputError(
        f"{redact_url(parts.geturl())}: {problem}; {advice}", kind=ErrorKind.STORAGE_CONFIG
    )


def require_shareable(url: str) -> None:
    """Raise `InvalidInputError` where the URL of a file, or a pattern of them, holds a secret.

    The names of files stay in references and in records, for all who may read the repository. No
    request is made with a query, and an innocent one does no harm; ``?`` may be of a pattern, too.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() == "file":
        return
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    if scheme.lower() in {"abfs", "abfss", "az", "azure"} and ":" not in host:
        host = host.rpartition("@")[2]  # container@account.…
    if _HOST.fullmatch(host) is None:
        problem = "a user or a password"
    elif _SIGNATURE.search(rest):
        problem = "a signature or a token"
    else:
        return
    raise InvalidInputError(
        f"{redact_url(url)}: the name of this file has {problem} in it, and would stay in the "
        "repository for all to see; name it without, and give credentials in the environment, or "
        "headers and credentials to a virtual chunk container for it",
        kind=ErrorKind.CANNOT_PARSE_URL,
    )
