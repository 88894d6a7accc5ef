"""Summary, text and HTML of a `Diff`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from icefloe.display import html
from icefloe.display.chunk_map import draw_chunk_map
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


def summarize_diff(diff: Diff) -> str:
    """Count the changes."""
    counts = [format_count(len(getattr(diff, name)), noun) for name, noun in _find_sections(diff)]
    if diff.updated_chunks:
        chunks = sum(map(len, diff.updated_chunks.values()))
        arrays = format_count(len(diff.updated_chunks), "array")
        counts.append(f"{format_count(chunks, 'updated chunk')} in {arrays}")
    if diff.moved_nodes:
        counts.append(format_count(len(diff.moved_nodes), "moved node"))
    return ", ".join(counts) or "nothing changed"


def render_diff_text(diff: Diff) -> str:
    """List the changes; of each array, only the first chunks."""
    lines: list[str] = []
    for name, noun in _find_sections(diff):
        lines += [
            f"{noun.capitalize()}s:",
            *(f"    {escape_unsafe(path)}" for path in sorted(getattr(diff, name))),
        ]
    if diff.updated_chunks:
        lines.append("Updated chunks:")
        for path, chunks in sorted(diff.updated_chunks.items()):
            lines.append(f"    {escape_unsafe(path)}: {_format_chunks(chunks)}")
    if diff.moved_nodes:
        lines.append("Moved nodes:")
        lines += [
            f"    {escape_unsafe(before)} -> {escape_unsafe(after)}"
            for before, after in diff.moved_nodes
        ]
    return "\n".join(lines) or "Nothing changed"


def render_diff_html(diff: Diff) -> str:
    """Format the changes, one row for each kind."""
    rows: list[tuple[object, object]] = []
    for name, noun in _find_sections(diff):
        paths = sorted(getattr(diff, name))
        rows.append(
            (f"{noun}s", _format_list([html.code(path) for path in paths[:_MAX_PATHS]], len(paths)))
        )
    if diff.updated_chunks:
        arrays = [
            html.Html(
                f"{html.code(path)} {html.faint(_format_chunks(chunks))}<br/>"
                f"{draw_chunk_map(chunks)}"
            )
            for path, chunks in islice(sorted(diff.updated_chunks.items()), _MAX_PATHS)
        ]
        rows.append(("updated chunks", _format_list(arrays, len(diff.updated_chunks), "<br>")))
    if diff.moved_nodes:
        moves = [
            html.Html(f"{html.code(before)} → {html.code(after)}")
            for before, after in diff.moved_nodes[:_MAX_PATHS]
        ]
        rows.append(("moved nodes", _format_list(moves, len(diff.moved_nodes), "<br>")))
    return html.panel(f"Diff: {summarize_diff(diff)}", *([html.table(rows)] if rows else []))


def _find_sections(diff: Diff) -> Iterator[tuple[str, str]]:
    return ((name, noun) for name, noun in _SECTIONS if getattr(diff, name))


def _format_list(items: Sequence[html.Html], total: int, separator: str = " ") -> html.Html:
    pieces = html.join(items, separator)
    if total > len(items):
        pieces = html.Html(f"{pieces}{separator}{html.faint(f'and {total - len(items):,} more')}")
    return html.details(format_count(total, "node"), pieces) if total > _MAX_CHUNKS else pieces


def _format_chunks(chunks: Sequence[Sequence[int]]) -> str:
    text = " ".join(str(list(chunk)).replace(" ", "") for chunk in chunks[:_MAX_CHUNKS])
    more = len(chunks) - _MAX_CHUNKS
    return f"{text} and {more:,} more" if more > 0 else text
