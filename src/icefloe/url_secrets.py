"""Finds users, passwords and signatures in URLs, and masks them in text. Pure, no I/O.

Other writers can save URLs with secrets. Errors, reprs, HTML and commands show them masked; the
functions that return references return them as they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_MASK: Final = "..."
_AZURE_SCHEMES: Final = frozenset({"abfs", "abfss", "az", "azure"})
_WEB_SCHEMES: Final = frozenset({"http", "https"})
_HOST: Final = re.compile(r"(?:[^@:\[\]]*|\[[0-9a-f:.]*\])(?::[0-9]*)?", re.IGNORECASE)
_SECRET_PARAMETER: Final = re.compile(
    r"[?&#][^/]*(?:sig|signature|token|credential|auth|password|pwd|secret|key)=", re.IGNORECASE
)
# Without the punctuation after a URL in a sentence.
_URL: Final = re.compile(r"""[a-z][a-z0-9+.-]*://[^\s"'<>]*[^\s"'<>:;,.)}]""", re.IGNORECASE)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

T = TypeVar("T")


def find_secret(url: str) -> str | None:
    """Return what kind of secret a URL contains, None if none; file URLs have no secrets."""
    scheme, separator, address = url.partition("://")
    if not separator or scheme.lower() == "file":
        return None
    host = _get_host(address)
    if scheme.lower() in _AZURE_SCHEMES and ":" not in host:
        host = host.rpartition("@")[2]  # in container@account.…, the container is not a user
    # A password may contain slashes, as AWS keys do; what precedes them is then no valid port.
    is_web = scheme.lower() in _WEB_SCHEMES
    may_have_port = "@" not in address or (is_web and not host.endswith(":"))
    if _HOST.fullmatch(host) is None or (":" in host and not may_have_port):
        return "a user or password"
    if _SECRET_PARAMETER.search(address):
        return "a signature or token"
    return None


def mask_url(url: str) -> str:
    """Replace the user, password and query of a URL, if it contains a secret."""
    problem = find_secret(url)
    if problem is None:
        return url
    scheme, _, address = url.partition("://")
    if problem == "a user or password":
        address = f"{_MASK}@{address.rpartition('@')[2]}" if "@" in address else _MASK
    if _SECRET_PARAMETER.search(address):
        address = f"{re.split('[?#]', address, maxsplit=1)[0]}?{_MASK}"
    return f"{scheme}://{address}"


def mask_urls(text: str) -> str:
    """Mask the secrets of all URLs in a text."""
    if "://" not in text:
        return text
    if not re.search(r"\s", text) and _SCHEME.match(text):
        return mask_url(text)  # a password may contain any character
    return _URL.sub(lambda match: mask_url(match.group()), text)


def masked_repr(cls: type[T]) -> type[T]:
    """Decorate a class to mask URLs in its repr."""
    make_repr: Callable[[Any], str] = cls.__repr__
    cls.__repr__ = lambda self: mask_urls(make_repr(self))  # type: ignore[method-assign]
    return cls


def _get_host(address: str) -> str:
    return re.split("[/?#]", address, maxsplit=1)[0]
