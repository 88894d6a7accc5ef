"""Names that branches and tags may have, and how they stand in the keys of generation v1.

On local disks Icechunk percent-encodes names with letters beyond ASCII, or with ``#``, ``%`` and
their like (seen with 1.1.21 and 2.3.0); what it does on other storages was not tried. Either
spelling is found when it is read; creating one could give a ref that Icechunk does not find, so it
is refused.
Generation v2 keeps names inside a file and takes them all.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from icefloe.errors import ErrorKind, InvalidInputError

_SAFE = "!$&'()+,-.:;=@_ "
_PLAIN = re.compile(f"[A-Za-z0-9{re.escape(_SAFE)}]*")


def require_ref_name(name: str, spec_version: int, *, new: bool = False) -> None:
    """Refuse a name that the generation cannot store, or should not if the ref is ``new``."""
    require_text(name)
    problem = None
    if not name:
        problem = "it is empty"
    elif spec_version == 1 and "/" in name:
        problem = "it has a slash, which repositories of version 1 do not allow"
    elif not name.isprintable():
        problem = "it has characters that cannot be printed"
    elif new and spec_version == 1 and not is_plain(name):
        problem = (
            f"in repositories of version 1 it may have letters without accents, digits, blanks "
            f"and {_SAFE.strip()}, because Icechunk might not find it"
        )
    if problem is not None:
        raise InvalidInputError(
            f"{name!r} is no name for a branch or a tag: {problem}",
            kind=ErrorKind.INVALID_REF_NAME,
        )


def require_text(name: object) -> None:
    """Refuse a name that is no text, before something fails that does not know what it is for."""
    if not isinstance(name, str):
        raise InvalidInputError(
            f"the name of a branch or a tag is a str, not {name!r}",
            kind=ErrorKind.INVALID_REF_NAME,
        )


def is_plain(name: str) -> bool:
    """Whether a name stands in keys as it is, on every storage."""
    return _PLAIN.fullmatch(name) is not None


def encode_ref_name(name: str) -> str:
    """Percent-encode a name, as Icechunk does on local disks."""
    return quote(name, safe=_SAFE).replace("~", "%7E")  # which Python never encodes


def decode_ref_name(stored: str) -> str:
    """Return the name that stands in a key, percent-encoded or as it is."""
    name = unquote(stored)
    return name if encode_ref_name(name) == stored else stored
