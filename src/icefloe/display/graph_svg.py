"""A commit graph as SVG."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from icefloe.display.text import count_columns, escape_unsafe, format_first_line, format_time

if TYPE_CHECKING:
    from icefloe.display.commit_graph import Commit, CommitGraph, Row

_MAX_ROWS: Final = 500
_SHORT_ID_LENGTH: Final = 8
_ROW_HEIGHT: Final = 26
_LANE_WIDTH: Final = 18
_MARGIN: Final = 14
_RADIUS: Final = 5
_CHARACTER_WIDTH: Final = 7.9
# A notebook may embed the SVG as an image, which does not inherit the colours of the page: the grey
# is legible on white and on black, and white text is legible on the other colours.
_GREY: Final = "#767676"
_COLOURS: Final = ("#2f7d4f", "#8a4fbf", "#1a76b5", "#b3541e", "#a3376b", "#4b5bb8")
_PLAIN_COLOUR: Final = "currentColor"
_TAG_COLOUR: Final = "#5c6670"


def render_graph_svg(graph: CommitGraph, *, plain: bool = False) -> str:
    """Draw the newest commits, top to bottom; in one colour if ``plain``."""
    rows = graph.rows[:_MAX_ROWS]
    left = _MARGIN * 2 + (graph.num_lanes - 1) * _LANE_WIDTH + 6
    texts: list[str] = []
    right = float(left)
    for number, row in enumerate(rows):
        text, end = _draw_row_text(row, number, left, plain=plain)
        texts.append(text)
        right = max(right, end)
    paths = _draw_lines(rows, plain=plain)
    dots = [
        f'<circle cx="{_get_x(row.lane)}" cy="{_get_y(number)}" r="{_RADIUS}" '
        f'fill="{_choose_colour(row.line, plain=plain)}"/>'
        for number, row in enumerate(rows)
    ]
    height = _MARGIN * 2 + max(len(rows) - 1, 0) * _ROW_HEIGHT
    if len(graph.rows) > len(rows):
        more = f"and {len(graph.rows) - len(rows):,} older commits"
        texts.append(_draw_text(left, height + 8, _choose_text_colour(plain=plain), more))
        height += _ROW_HEIGHT
    width = round(right + _MARGIN)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="ui-monospace,Menlo,Consolas,monospace" '
        f'font-size="13" role="img"><title>{len(graph.rows)} commits</title>\n'
        + "\n".join([*paths, *dots, *texts])
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
            for lane, line_number in continuing.items():
                x, colour = _get_x(lane), _choose_colour(line_number, plain=plain)
                if lane in joining:
                    half = _ROW_HEIGHT / 2
                    target = _get_x(rows[number + 1].lane)
                    path = f"M{x} {top}C{x} {top + half} {target} {bottom - half} {target} {bottom}"
                else:
                    path = f"M{x} {top}V{bottom}"
                paths.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return paths


def _draw_row_text(row: Row, number: int, left: float, *, plain: bool) -> tuple[str, float]:
    """Draw the text of a row; return it and the x where it ends."""
    commit, baseline = row.commit, _get_y(number) + 4.5
    head = f"{commit.id[:_SHORT_ID_LENGTH]} {format_time(commit.written_at)}"
    text_colour = _choose_text_colour(plain=plain)
    pieces = [_draw_text(left, baseline, text_colour, head)]
    x = left + (count_columns(head) + 1) * _CHARACTER_WIDTH
    for name, colour in _list_labels(commit, _choose_colour(row.line, plain=plain), plain=plain):
        text = format_first_line(name, 40)
        width = count_columns(text) * _CHARACTER_WIDTH + 10
        style = f'fill="none" stroke="{colour}"' if plain else f'fill="{colour}"'
        position = f'x="{x:g}" y="{_get_y(number) - 9}"'
        pieces.append(f'<rect {position} width="{width:g}" height="18" rx="4" {style}/>')
        pieces.append(_draw_text(x + 5, baseline, _PLAIN_COLOUR if plain else "#fff", text))
        x += width + 6
    message, title = format_first_line(commit.message), escape_unsafe(commit.message)
    pieces.append(_draw_text(x, baseline, text_colour, message, title=title))
    return "\n".join(pieces), x + count_columns(message) * _CHARACTER_WIDTH


def _list_labels(commit: Commit, colour: str, *, plain: bool) -> list[tuple[str, str]]:
    tags = [(f"tag: {name}", _PLAIN_COLOUR if plain else _TAG_COLOUR) for name in commit.tags]
    return [*((name, colour) for name in commit.branches), *tags]


def _draw_text(x: float, y: float, colour: str, text: str, *, title: str | None = None) -> str:
    tip = f"<title>{escape(title, quote=False)}</title>" if title and title != text else ""
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}">{tip}{escape(text, quote=False)}</text>'


def _get_x(lane: int) -> int:
    return _MARGIN + lane * _LANE_WIDTH


def _get_y(number: int) -> int:
    return _MARGIN + number * _ROW_HEIGHT


def _choose_text_colour(*, plain: bool) -> str:
    return _PLAIN_COLOUR if plain else _GREY


def _choose_colour(line_number: int, *, plain: bool) -> str:
    return _PLAIN_COLOUR if plain else _COLOURS[line_number % len(_COLOURS)]
