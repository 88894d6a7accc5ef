"""HTML elements, one function each. Colours are inherited from the page, which may be dark."""

from __future__ import annotations

import functools
import html
from typing import TYPE_CHECKING, Any, Final

from icefloe.display.text import escape_unsafe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Html(str):
    """A string that is HTML: `escape` does not escape it again."""

    __slots__ = ()


_FAINT: Final = "opacity:.65"
_CODE: Final = "background:none;color:inherit;font-size:.95em;padding:0"
_LINE: Final = "1px solid rgba(128,128,128,.35)"
_CELL: Final = "padding:1px 14px 1px 0;text-align:left;vertical-align:top;border:none"


def escape(text: object) -> Html:
    """Escape untrusted text."""
    return text if isinstance(text, Html) else Html(html.escape(escape_unsafe(str(text))))


def code(text: object) -> Html:
    """Format an id or a path."""
    return Html(f'<code style="{_CODE}">{escape(text)}</code>')


def faint(text: object) -> Html:
    """Format secondary text."""
    return Html(f'<span style="{_FAINT}">{escape(text)}</span>')


def nowrap(text: object) -> Html:
    """Format text without line breaks."""
    return Html(f'<span style="white-space:nowrap">{escape(text)}</span>')


def label(text: object) -> Html:
    """Format the name of a branch or a tag."""
    style = f"border:{_LINE};border-radius:4px;padding:0 5px;white-space:nowrap"
    return Html(f'<span style="{style}">{escape(text)}</span>')


def join(pieces: Iterable[Html], separator: str = " ") -> Html:
    """Join pieces of HTML."""
    return Html(separator.join(pieces))


def table(rows: Iterable[Sequence[object]], headers: Sequence[str] = ()) -> Html:
    """Format a table; without headers, the first column has the names of the rows."""
    lines = [
        "<tr>"
        + "".join(
            f'<td style="{_CELL}{f";{_FAINT}" if column == 0 and not headers else ""}">'
            f"{escape(cell)}</td>"
            for column, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    ]
    if headers:
        cells = "".join(
            f'<th style="{_CELL};{_FAINT};font-weight:normal">{escape(name)}</th>'
            for name in headers
        )
        lines.insert(0, f"<tr>{cells}</tr>")
    style = "border-collapse:collapse;background:none;color:inherit;font:inherit;margin:2px 0"
    return Html(f'<table style="{style}"><tbody>{"".join(lines)}</tbody></table>')


def details(summary: object, *content: Html) -> Html:
    """Format content that is initially collapsed."""
    return Html(
        f'<details style="margin:2px 0"><summary style="cursor:pointer">{escape(summary)}'
        f"</summary>{''.join(content)}</details>"
    )


def panel(title: object, *content: Html) -> Html:
    """Format the outer frame of an object, with its title."""
    heading = f"border-bottom:{_LINE};padding-bottom:3px;margin-bottom:3px"
    return Html(
        f'<div style="color:inherit;line-height:1.5;max-width:60em">'
        f'<div style="{heading}"><b>{escape(title)}</b></div>{"".join(content)}</div>'
    )


def with_repr_fallback(render: Callable[[Any], str]) -> Callable[[Any], str]:
    """Wrap a ``_repr_html_`` to fall back to the repr: displaying a value must never raise."""

    @functools.wraps(render)
    def render_or_fall_back(self: Any) -> str:
        try:
            return render(self)
        except Exception:  # noqa: BLE001
            try:
                plain = repr(self)
            except Exception:  # noqa: BLE001
                plain = f"<{type(self).__name__}>"
            return f"<pre>{escape(plain)}</pre>"

    return render_or_fall_back
