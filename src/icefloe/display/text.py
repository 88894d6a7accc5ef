"""Formatting of times, counts and untrusted text for display."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Final

from icefloe.url_secrets import mask_urls

# Control and format characters, surrogates, unassigned code points, line and paragraph separators.
_UNSAFE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"})
# Values of east_asian_width (wide, fullwidth) for characters that take two columns.
_TWO_COLUMN_WIDTHS: Final = frozenset({"W", "F"})


def escape_unsafe(text: str) -> str:
    """Mask secrets in URLs, and escape characters that control a terminal or that XML forbids."""
    text = mask_urls(text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if unicodedata.category(character) not in _UNSAFE_CATEGORIES
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def format_first_line(text: str, max_columns: int = 72) -> str:
    """Return the first line that is not blank, escaped and truncated to ``max_columns``."""
    lines = text.strip().splitlines()
    line = escape_unsafe(lines[0]) if lines else ""
    if count_columns(line) <= max_columns:
        return line
    prefix, num_columns = "", 1  # the ellipsis takes one column
    for character in line:
        num_columns += count_columns(character)
        if num_columns > max_columns:
            break
        prefix += character
    return prefix.rstrip() + "…"


def count_columns(text: str) -> int:
    """Return the number of terminal columns that printable text takes."""
    if text.isascii():
        return len(text)
    return sum(
        2
        if unicodedata.east_asian_width(character) in _TWO_COLUMN_WIDTHS
        else int(not unicodedata.combining(character))
        for character in text
    )


def format_time(time: datetime) -> str:
    """Format a time to the minute, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def format_count(count: int, noun: str) -> str:
    """Format a count of things; ``noun`` is singular, and its plural ends in ``s``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
