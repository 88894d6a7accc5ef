"""Output of commands: tables and JSON on stdout, errors on stderr.

Control characters in data are escaped, and lines are not wrapped in pipes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from icefloe.cli.option_hints import suggest_options
from icefloe.display import escape_unsafe
from icefloe.inspection import stream_json

if TYPE_CHECKING:
    from collections.abc import Iterable


def print_rows(headers: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print tab-separated rows one by one, because a `rich` table holds all rows in memory."""
    sys.stdout.write("\t".join(headers) + "\n")
    for row in rows:
        sys.stdout.write("\t".join(escape_unsafe(str(cell)) for cell in row) + "\n")


def make_table(*columns: str) -> Table:
    """Return an empty table without borders."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(escape_unsafe(column)))
    return table


def print_renderable(renderable: RenderableType) -> None:
    """Print a table, tree or text of `rich`; in a pipe, without wrapping or padding lines."""
    _print(renderable)


def print_line(line: Text) -> None:
    """Print one line, truncated to the width of the terminal."""
    _print(line, no_wrap=True, overflow="ellipsis")


def _print(renderable: RenderableType, **options: Any) -> None:
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as captured:
        console.print(renderable, **options)
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def print_json(value: object) -> None:
    """Print a value as JSON, incrementally, because iterators in it may be long."""
    for piece in stream_json(value):
        sys.stdout.write(piece)
    sys.stdout.write("\n")


def print_error(message: str) -> None:
    """Print an error to stderr, with Python arguments translated to options."""
    lines = "\n".join(map(escape_unsafe, suggest_options(message).split("\n")))
    Console(stderr=True).print(
        f"[bold red]error:[/] {escape(lines)}", soft_wrap=True, highlight=False
    )


def print_result(message: str, *, dry_run: bool) -> None:
    """Print what a command did or, in a dry run, would do."""
    prefix = "dry run: " if dry_run else ""
    sys.stdout.write(f"{prefix}{escape_unsafe(message)}\n")


def print_note(message: str) -> None:
    """Print a remark about the output to stderr."""
    Console(stderr=True).print(Text(message, "dim"), soft_wrap=True, highlight=False)
