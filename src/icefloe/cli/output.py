"""What commands print: tables and JSON on standard output, neither folded nor steered by data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console

from icefloe.inspection import stream_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType


def print_rows(headers: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print one line for each row: there may be millions, which no table could be laid out for."""
    sys.stdout.write("\t".join(headers) + "\n")
    for row in rows:
        sys.stdout.write("\t".join(escape_unsafe(str(cell)) for cell in row) + "\n")


def print_out(renderable: RenderableType) -> None:
    """Print a table or a text of rich."""
    # A pipe has no width: what a program reads is neither folded nor padded.
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def print_json(value: object) -> None:
    """Print a value as JSON, piece by piece: what it iterates over may be long."""
    for piece in stream_json(value):
        sys.stdout.write(piece)
    sys.stdout.write("\n")


def escape_unsafe(text: str) -> str:
    """Spell out control characters: a commit message must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )
