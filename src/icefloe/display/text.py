"""Text of strangers, made safe to show."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Final

# Control and format characters, half surrogate pairs and what has no meaning yet.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"})
_WIDE: Final = frozenset({"W", "F"})


def printable(text: str) -> str:
    """Show what a terminal would obey, or XML does not allow, as its number."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if unicodedata.category(character) not in _UNSAFE
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def one_line(text: str, max_columns: int = 72) -> str:
    """Return the first line, cut to so many columns, safe to show."""
    lines = text.strip().splitlines()
    line = printable(lines[0]) if lines else ""
    if columns(line) <= max_columns:
        return line
    kept, used = [], 1
    for character in line:
        used += columns(character)
        if used > max_columns:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…"


def columns(text: str) -> int:
    """Count the columns that a text takes in a monospaced font."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(one) in _WIDE else int(not unicodedata.combining(one))
        for one in text
    )


def short_time(time: datetime) -> str:
    """Show a time in UTC, to the minute."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def counted(number: int, noun: str) -> str:
    """Say how many there are of something."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
