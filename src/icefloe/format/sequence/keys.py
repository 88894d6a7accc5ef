"""Keys of the reference files of the generation ``sequence`` (``docs/format/sequence.md``).

A branch is a series of numbered files. Their names count down, so that the newest is the first in a
listing. `generation` has the keys of the immutable files.
"""

from __future__ import annotations

from typing import Final

from icefloe.errors import FormatError, InvalidInputError

REFS: Final = "r/"

MAX_NUMBER: Final = (1 << 40) - 1
"""The largest sequence number of a branch file."""

_SUFFIX: Final = ".json"
_NUM_DIGITS: Final = 8
_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}


def format_branch_prefix(branch: str) -> str:
    """Return the prefix of the keys of a branch."""
    return f"{REFS}{branch}/"


def format_branch_key(branch: str, number: int) -> str:
    """Return the key of the branch file with a sequence number."""
    if not 0 <= number <= MAX_NUMBER:
        raise InvalidInputError(
            f"branch {branch!r} cannot have a file with the number {number}: the maximum is "
            f"{MAX_NUMBER}"
        )
    countdown = MAX_NUMBER - number
    digits = [_DIGITS[countdown >> shift & 31] for shift in range(5 * (_NUM_DIGITS - 1), -1, -5)]
    return f"{format_branch_prefix(branch)}{''.join(digits)}{_SUFFIX}"


def format_tag_key(tag: str) -> str:
    """Return the key of a tag."""
    return f"{REFS}{tag}{_SUFFIX}"


def parse_branch_key(key: str) -> tuple[str, int] | None:
    """Return the branch and the number of a branch file; None for keys that are not in a branch.

    Raises `FormatError` for a key in a branch that `format_branch_key` does not return, because
    readers would disagree on what it means: two names could have the same number, or another order
    in a listing than their numbers.
    """
    branch, slash, name = key.removeprefix(REFS).partition("/")
    if not key.startswith(REFS) or not slash:
        return None
    digits = name.removesuffix(_SUFFIX)
    if (
        not name.endswith(_SUFFIX)
        or len(digits) != _NUM_DIGITS
        or not all(digit in _VALUES for digit in digits)
    ):
        raise FormatError(
            f"not the name of a branch file: expected {_NUM_DIGITS} upper-case digits of Crockford "
            f"base 32, and {_SUFFIX}",
            file=key,
        )
    countdown = 0
    for digit in digits:
        countdown = countdown << 5 | _VALUES[digit]
    return branch, MAX_NUMBER - countdown


def parse_tag_key(key: str) -> str | None:
    """Return the name of the tag with this key, or None."""
    name = key.removeprefix(REFS).removesuffix(_SUFFIX)
    return name if name and "/" not in name and key == format_tag_key(name) else None
