"""Names of branches and tags, and their encoding in the keys of generation v1.

On local disks Icechunk 1.1.21 and 2.3.0 percent-encode names with non-ASCII letters or characters
such as ``#`` and ``%``; other storages were not tested. Reading accepts encoded and plain names.
Creating such a name raises, because Icechunk might not find the ref. Generation v2 stores names
inside a file and accepts all of them.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from icefloe.errors import ErrorKind, InvalidInputError

MAIN = "main"
"""The branch that every repository has."""

_SAFE = "!$&'()+,-.:;=@_ "
_PLAIN = re.compile(f"[A-Za-z0-9{re.escape(_SAFE)}]*")


def require_ref_name(name: str, *, in_key: bool = False, new: bool = False) -> None:
    """Raise if a name is invalid.

    The rules are stricter if it is part of a key (``in_key``), and for a ``new`` ref.
    """
    require_text(name)
    problem = None
    if not name:
        problem = "it is empty"
    elif in_key and "/" in name:
        problem = "slashes need a repository of generation draft or v2"
    elif not name.isprintable():
        problem = "it has unprintable characters"
    elif new and in_key and not is_plain(name):
        problem = (
            "repositories whose keys have names of branches and tags, of the generations v1 and "
            f"sequence, allow ASCII letters, digits, spaces and {_SAFE.strip()}, because other "
            "names might not be found on all storages"
        )
    if problem is not None:
        raise InvalidInputError(
            f"{name!r} is not a valid branch or tag name: {problem}",
            kind=ErrorKind.INVALID_REF_NAME,
        )


def require_text(name: object) -> None:
    """Raise if a ref name is not a string."""
    if not isinstance(name, str):
        raise InvalidInputError(
            f"a branch or tag name must be a str, not {name!r}", kind=ErrorKind.INVALID_REF_NAME
        )


def is_plain(name: str) -> bool:
    """Whether a name is the same in keys on every storage."""
    return _PLAIN.fullmatch(name) is not None


def encode_ref_name(name: str) -> str:
    """Percent-encode a name as Icechunk does on local disks."""
    return quote(name, safe=_SAFE).replace("~", "%7E")  # `quote` never encodes it


def decode_ref_name(stored: str) -> str:
    """Decode a name in a key, percent-encoded or plain."""
    name = unquote(stored)
    return name if encode_ref_name(name) == stored else stored
