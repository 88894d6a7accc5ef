"""A commit graph as text, one line for each commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from icefloe.display.text import escape_unsafe, format_first_line, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.display.commit_graph import CommitGraph, Row

_SHORT_ID_LENGTH: Final = 8
# ANSI colours that every terminal has, legible on black and on white.
_COLOURS: Final = (32, 35, 36, 34, 33, 31)


def render_graph_text(graph: CommitGraph, *, plain: bool = False) -> str:
    """Draw commits top to bottom; without colours if ``plain``."""
    lines = zip(graph.rows, draw_lanes(graph, plain=plain), strict=True)
    return "\n".join(f"{lanes}{_describe(row, plain=plain)}".rstrip() for row, (lanes, _) in lines)


def draw_lanes(graph: CommitGraph, *, plain: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the lanes beside each row, and beside more lines of text about its commit."""
    for row in graph.rows:
        yield (
            _draw_row(row, graph.num_lanes, plain=plain),
            _draw_gap(row, graph.num_lanes, plain=plain),
        )


def _draw_row(row: Row, num_lanes: int, *, plain: bool) -> str:
    # Joining lanes are right of the commit; a horizontal line to the rightmost crosses those
    # between.
    rightmost_join = max(row.joining, default=row.lane)
    cells = []
    for lane in range(num_lanes):
        is_crossed = row.lane < lane < rightmost_join
        if lane == row.lane:
            mark, line = "●", row.line
        elif lane in row.joining:
            mark, line = ("┴" if is_crossed else "╯"), row.joining[lane]
        elif lane in row.passing:
            mark, line = ("┼" if is_crossed else "│"), row.passing[lane]
        else:
            mark, line = ("─" if is_crossed else " "), row.line
        gap = "─" if row.lane <= lane < rightmost_join else " "
        cells.append(_apply_colour(mark, line, plain=plain) + gap)
    return "".join(cells)


def _draw_gap(row: Row, num_lanes: int, *, plain: bool) -> str:
    lines = {lane: line for lane, line in row.passing.items() if lane not in row.joining}
    if row.continues:
        lines[row.lane] = row.line
    return "".join(
        f"{_apply_colour('│', lines[lane], plain=plain)} " if lane in lines else "  "
        for lane in range(num_lanes)
    )


def _describe(row: Row, *, plain: bool) -> str:
    commit = row.commit
    names = [_apply_colour(escape_unsafe(name), row.line, plain=plain) for name in commit.branches]
    names += [f"tag: {escape_unsafe(name)}" for name in commit.tags]
    refs = f" ({', '.join(names)})" if names else ""
    details = f"{commit.id[:_SHORT_ID_LENGTH]} {format_time(commit.written_at)}{refs}"
    return f"{details} {format_first_line(commit.message)}"


def _apply_colour(text: str, line: int, *, plain: bool) -> str:
    if plain or not text.strip():
        return text
    return f"\x1b[{_COLOURS[line % len(_COLOURS)]}m{text}\x1b[0m"
