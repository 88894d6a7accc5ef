"""A `Diff` as one line, as text and as HTML."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from icefloe.display.html import Html, code, faint, fold, join_html, panel, table
from icefloe.display.text import escape_unsafe, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.snapshots import Diff

_MAX_CHUNKS: Final = 10
_MAX_PATHS: Final = 50

_SECTIONS: Final = (
    ("new_groups", "new group"),
    ("new_arrays", "new array"),
    ("deleted_groups", "deleted group"),
    ("deleted_arrays", "deleted array"),
    ("updated_groups", "updated group"),
    ("updated_arrays", "updated array"),
)


def diff_summary(diff: Diff) -> str:
    """Count the changes."""
    counts = [format_count(len(getattr(diff, name)), noun) for name, noun in _nonempty(diff)]
    if diff.updated_chunks:
        chunks = sum(map(len, diff.updated_chunks.values()))
        arrays = format_count(len(diff.updated_chunks), "array")
        counts.append(f"{format_count(chunks, 'updated chunk')} in {arrays}")
    if diff.moved_nodes:
        counts.append(format_count(len(diff.moved_nodes), "moved node"))
    return ", ".join(counts) or "nothing changed"


def diff_text(diff: Diff) -> str:
    """List the changes; of many chunks only the first."""
    lines: list[str] = []
    for name, noun in _nonempty(diff):
        lines += [
            f"{noun.capitalize()}s:",
            *(f"    {escape_unsafe(path)}" for path in sorted(getattr(diff, name))),
        ]
    if diff.updated_chunks:
        lines.append("Updated chunks:")
        for path, chunks in sorted(diff.updated_chunks.items()):
            lines.append(f"    {escape_unsafe(path)}: {_chunks(chunks)}")
    if diff.moved_nodes:
        lines.append("Moved nodes:")
        lines += [
            f"    {escape_unsafe(before)} -> {escape_unsafe(after)}"
            for before, after in diff.moved_nodes
        ]
    return "\n".join(lines) or "Nothing changed"


def diff_html(diff: Diff) -> str:
    """Show the changes, one row for each kind."""
    rows: list[tuple[object, object]] = []
    for name, noun in _nonempty(diff):
        paths = sorted(getattr(diff, name))
        rows.append(
            (f"{noun}s", _list_html([code(path) for path in paths[:_MAX_PATHS]], len(paths)))
        )
    if diff.updated_chunks:
        shown = [
            Html(f"{code(path)} {faint(_chunks(chunks))}")
            for path, chunks in islice(sorted(diff.updated_chunks.items()), _MAX_PATHS)
        ]
        rows.append(("updated chunks", _list_html(shown, len(diff.updated_chunks), "<br>")))
    if diff.moved_nodes:
        moves = [
            Html(f"{code(before)} → {code(after)}")
            for before, after in diff.moved_nodes[:_MAX_PATHS]
        ]
        rows.append(("moved nodes", _list_html(moves, len(diff.moved_nodes), "<br>")))
    return panel(f"Diff: {diff_summary(diff)}", *([table(rows)] if rows else []))


def _nonempty(diff: Diff) -> Iterator[tuple[str, str]]:
    return ((name, noun) for name, noun in _SECTIONS if getattr(diff, name))


def _list_html(shown: Sequence[Html], total: int, separator: str = " ") -> Html:
    pieces = join_html(shown, separator)
    if total > len(shown):
        pieces = Html(f"{pieces}{separator}{faint(f'and {total - len(shown):,} more')}")
    return fold(format_count(total, "node"), pieces) if total > _MAX_CHUNKS else pieces


def _chunks(chunks: Sequence[Sequence[int]]) -> str:
    shown = " ".join(str(list(chunk)).replace(" ", "") for chunk in chunks[:_MAX_CHUNKS])
    more = len(chunks) - _MAX_CHUNKS
    return f"{shown} and {more:,} more" if more > 0 else shown
