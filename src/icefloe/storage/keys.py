"""Validation of keys, with the same rules for every storage, so that repositories are portable.

A key is a relative path of segments separated by ``/``. Keys that stores would interpret
differently (``..``, empty segments, control characters) are rejected. Pure, no I/O.
"""

from __future__ import annotations

import re
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError

MAX_KEY_BYTES: Final = 1024
"""The limit of S3, which is the lowest of all supported stores."""

_PLAIN: Final = re.compile(r"[0-9A-Za-z_-]+(?:/[0-9A-Za-z_-]+)*")

CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f]")


def is_plain_key(key: str) -> bool:
    """Return whether a key has only ASCII letters, digits, ``_``, ``-`` and ``/``, and is valid."""
    return len(key) <= MAX_KEY_BYTES and _PLAIN.fullmatch(key) is not None


def validate_key(key: str) -> None:
    """Raise `InvalidInputError` unless ``key`` is valid on every storage."""
    problem = find_key_problem(key)
    if problem is not None:
        raise InvalidInputError(
            f"{key!r} is not a valid storage key: {problem}", kind=ErrorKind.INVALID_KEY
        )


def validate_list_prefix(prefix: str) -> None:
    """Raise `InvalidInputError` unless ``prefix`` is empty or a key followed by ``/``."""
    if prefix == "":
        return
    if not prefix.endswith("/"):
        raise InvalidInputError(
            f"{prefix!r} is not a valid list prefix: it must be empty or end in '/'",
            kind=ErrorKind.BAD_PREFIX,
        )
    problem = find_key_problem(prefix[:-1])
    if problem is not None:
        raise InvalidInputError(
            f"{prefix!r} is not a valid list prefix: {problem}", kind=ErrorKind.BAD_PREFIX
        )


def find_key_problem(key: str) -> str | None:
    """Return why a string is not a valid key, or None."""
    if is_plain_key(key):
        return None
    if not key:
        return "it is empty"
    if CONTROL_CHARACTER.search(key):
        return "it contains a control character"
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        return "it cannot be encoded as UTF-8"
    if size_bytes > MAX_KEY_BYTES:
        return f"it has {size_bytes} bytes, more than the maximum of {MAX_KEY_BYTES}"
    if key.startswith("/"):
        return "it starts with '/'"
    segments = key.split("/")
    if "" in segments:
        return "it has an empty segment"
    if "." in segments or ".." in segments:
        return "it has a '.' or '..' segment"
    return None
