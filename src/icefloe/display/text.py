"""Escaping and formatting of untrusted text."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Final

# Control and format characters, lone surrogates, unassigned code points and line separators.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"})
_WIDE: Final = frozenset({"W", "F"})


def escape_unsafe(text: str) -> str:
    """Escape characters that control a terminal or that XML forbids."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if unicodedata.category(character) not in _UNSAFE
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def format_first_line(text: str, max_columns: int = 72) -> str:
    """Return the first line, escaped and truncated to ``max_columns``."""
    lines = text.strip().splitlines()
    line = escape_unsafe(lines[0]) if lines else ""
    if count_columns(line) <= max_columns:
        return line
    prefix, num_columns = "", 1
    for character in line:
        num_columns += count_columns(character)
        if num_columns > max_columns:
            break
        prefix += character
    return prefix.rstrip() + "…"


def count_columns(text: str) -> int:
    """Return the width of a text in a monospaced font."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(char) in _WIDE else int(not unicodedata.combining(char))
        for char in text
    )


def format_time(time: datetime) -> str:
    """Format a time in UTC, to the minute."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun in singular or plural."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
