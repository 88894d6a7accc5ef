"""The few pieces that all HTML is made of; colours come from the page, so that dark ones fit."""

from __future__ import annotations

import functools
import html
from typing import TYPE_CHECKING, Any, Final

from icefloe.display.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Html(str):
    """Text that is HTML already; anything else is escaped."""

    __slots__ = ()


_FAINT: Final = "opacity:.65"
_CODE: Final = "background:none;color:inherit;font-size:.95em;padding:0"
_LINE: Final = "1px solid rgba(128,128,128,.35)"
_CELL: Final = "padding:1px 14px 1px 0;text-align:left;vertical-align:top;border:none"


def escaped(text: object) -> Html:
    """Make text of strangers harmless."""
    return text if isinstance(text, Html) else Html(html.escape(printable(str(text))))


def code(text: object) -> Html:
    """Show an id or a path."""
    return Html(f'<code style="{_CODE}">{escaped(text)}</code>')


def faint(text: object) -> Html:
    """Show what matters less."""
    return Html(f'<span style="{_FAINT}">{escaped(text)}</span>')


def unbroken(text: object) -> Html:
    """Show what belongs on one line."""
    return Html(f'<span style="white-space:nowrap">{escaped(text)}</span>')


def label(text: object) -> Html:
    """Show the name of a branch or a tag."""
    style = f"border:{_LINE};border-radius:4px;padding:0 5px;white-space:nowrap"
    return Html(f'<span style="{style}">{escaped(text)}</span>')


def joined(pieces: Iterable[Html], separator: str = " ") -> Html:
    """Put pieces beside each other."""
    return Html(separator.join(pieces))


def table(rows: Iterable[Sequence[object]], headers: Sequence[str] = ()) -> Html:
    """Make a table; the first column of one without headers names what the others say."""
    lines = [
        "<tr>"
        + "".join(
            f'<td style="{_CELL}{f";{_FAINT}" if column == 0 and not headers else ""}">'
            f"{escaped(cell)}</td>"
            for column, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    ]
    if headers:
        cells = "".join(
            f'<th style="{_CELL};{_FAINT};font-weight:normal">{escaped(name)}</th>'
            for name in headers
        )
        lines.insert(0, f"<tr>{cells}</tr>")
    style = "border-collapse:collapse;background:none;color:inherit;font:inherit;margin:2px 0"
    return Html(f'<table style="{style}"><tbody>{"".join(lines)}</tbody></table>')


def folded(summary: object, *content: Html) -> Html:
    """Make content that opens on a click."""
    return Html(
        f'<details style="margin:2px 0"><summary style="cursor:pointer">{escaped(summary)}'
        f"</summary>{''.join(content)}</details>"
    )


def panel(title: object, *content: Html) -> Html:
    """Make what a notebook shows of one object."""
    heading = f"border-bottom:{_LINE};padding-bottom:3px;margin-bottom:3px"
    return Html(
        f'<div style="color:inherit;line-height:1.5;max-width:60em">'
        f'<div style="{heading}"><b>{escaped(title)}</b></div>{"".join(content)}</div>'
    )


def never_raising(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """Let a ``_repr_html_`` fall back to the repr: a notebook must never fail to show a value."""

    @functools.wraps(show)
    def shown(self: Any) -> str:
        try:
            return show(self)
        except Exception:  # noqa: BLE001 - whatever it is, there is something simpler to show
            try:
                plain = repr(self)
            except Exception:  # noqa: BLE001
                plain = f"<{type(self).__name__}>"
            return f"<pre>{escaped(plain)}</pre>"

    return shown
