"""A commit graph as SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from icefloe.display.text import count_columns, escape_unsafe, format_first_line, format_time

if TYPE_CHECKING:
    from icefloe.display.commit_graph import Commit, CommitGraph, Row

_MAX_ROWS: Final = 500
_SHORT_ID: Final = 8
_ROW: Final = 26
_LANE: Final = 18
_MARGIN: Final = 14
_RADIUS: Final = 5
_CHARACTER: Final = 7.9
# A notebook may embed the SVG as an image, which does not inherit the colours of the page: the grey
# is legible on white and on black, and white text is legible on the other colours.
_GREY: Final = "#767676"
_COLOURS: Final = ("#2f7d4f", "#8a4fbf", "#1a76b5", "#b3541e", "#a3376b", "#4b5bb8")
_PLAIN: Final = "currentColor"
_TAG: Final = "#5c6670"


def render_graph_svg(graph: CommitGraph, *, plain: bool = False) -> str:
    """Draw the newest commits, top to bottom; in one colour if ``plain``."""
    rows = graph.rows[:_MAX_ROWS]
    left = _MARGIN * 2 + (graph.num_lanes - 1) * _LANE + 6
    texts: list[str] = []
    right = float(left)
    for number, row in enumerate(rows):
        text, end = _draw_row_text(row, number, left, plain=plain)
        texts.append(text)
        right = max(right, end)
    lines = _draw_lines(rows, plain=plain)
    dots = [
        f'<circle cx="{_get_x(row.lane)}" cy="{_get_y(number)}" r="{_RADIUS}" '
        f'fill="{_choose_colour(row.line, plain=plain)}"/>'
        for number, row in enumerate(rows)
    ]
    height = _MARGIN * 2 + max(len(rows) - 1, 0) * _ROW
    if len(graph.rows) > len(rows):
        more = f"and {len(graph.rows) - len(rows):,} older commits"
        texts.append(_draw_text(left, height + 8, _choose_grey(plain=plain), more))
        height += _ROW
    width = round(right + _MARGIN)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="ui-monospace,Menlo,Consolas,monospace" '
        f'font-size="13" role="img"><title>{len(graph.rows)} commits</title>\n'
        + "\n".join([*lines, *dots, *texts])
        + "\n</svg>"
    )


def _draw_lines(rows: tuple[Row, ...], *, plain: bool) -> list[str]:
    """Draw the lines between rows, and the curves where they join."""
    paths = []
    for number, row in enumerate(rows):
        top, bottom = _get_y(number), _get_y(number + 1)
        if number + 1 < len(rows):
            continuing = dict(row.passing)
            if row.continues:
                continuing[row.lane] = row.line
            joining = rows[number + 1].joining
            for lane, line in continuing.items():
                x = _get_x(lane)
                if lane in joining:
                    half = _ROW / 2
                    target = _get_x(rows[number + 1].lane)
                    path = f"M{x} {top}C{x} {top + half} {target} {bottom - half} {target} {bottom}"
                else:
                    path = f"M{x} {top}V{bottom}"
                paths.append(
                    f'<path d="{path}" fill="none" stroke="{_choose_colour(line, plain=plain)}" '
                    'stroke-width="2"/>'
                )
    return paths


def _draw_row_text(row: Row, number: int, left: float, *, plain: bool) -> tuple[str, float]:
    commit, baseline = row.commit, _get_y(number) + 4.5
    head = f"{commit.id[:_SHORT_ID]} {format_time(commit.written_at)}"
    pieces = [_draw_text(left, baseline, _choose_grey(plain=plain), head)]
    x = left + (count_columns(head) + 1) * _CHARACTER
    for name, colour in _list_labels(commit, _choose_colour(row.line, plain=plain), plain=plain):
        text = format_first_line(name, 40)
        width = count_columns(text) * _CHARACTER + 10
        outline = f'fill="none" stroke="{colour}"' if plain else f'fill="{colour}"'
        position = f'x="{x:g}" y="{_get_y(number) - 9}"'
        pieces.append(f'<rect {position} width="{width:g}" height="18" rx="4" {outline}/>')
        pieces.append(_draw_text(x + 5, baseline, _PLAIN if plain else "#fff", text))
        x += width + 6
    message = format_first_line(commit.message)
    pieces.append(
        _draw_text(
            x, baseline, _choose_grey(plain=plain), message, title=escape_unsafe(commit.message)
        )
    )
    return "\n".join(pieces), x + count_columns(message) * _CHARACTER


def _list_labels(commit: Commit, colour: str, *, plain: bool) -> list[tuple[str, str]]:
    tags = [(f"tag: {name}", _PLAIN if plain else _TAG) for name in commit.tags]
    return [*((name, colour) for name in commit.branches), *tags]


def _draw_text(x: float, y: float, colour: str, text: str, *, title: str | None = None) -> str:
    tip = f"<title>{escape(title)}</title>" if title and title != text else ""
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}">{tip}{escape(text)}</text>'


def _get_x(lane: int) -> int:
    return _MARGIN + lane * _LANE


def _get_y(number: int) -> int:
    return _MARGIN + number * _ROW


def _choose_grey(*, plain: bool) -> str:
    return _PLAIN if plain else _GREY


def _choose_colour(line: int, *, plain: bool) -> str:
    return _PLAIN if plain else _COLOURS[line % len(_COLOURS)]
