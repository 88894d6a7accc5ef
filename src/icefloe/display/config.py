"""HTML of a configuration: the values that are set and, collapsed, all effective values."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from icefloe.display import html
from icefloe.display.text import format_first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_COLUMNS: Final = 100

Row = tuple[str, Any]


def render_config_html(section: Any) -> str:
    """Format a section of the configuration; fields that its repr hides are omitted."""
    set_rows = list(_list_rows(section, effective=False))
    return html.panel(
        type(section).__name__,
        html.table(set_rows) if set_rows else html.faint("no values are set; the defaults apply"),
        html.details("effective values", html.table(_list_rows(section, effective=True))),
    )


def _list_rows(section: Any, *, effective: bool, prefix: str = "") -> Iterator[Row]:
    for item in fields(section):
        if not item.repr:
            continue
        value = getattr(section, item.name)
        is_set = value is not None
        if effective and not is_set:
            value = getattr(section, f"effective_{item.name}", None)
        if value is None:
            continue
        name = f"{prefix}{item.name}"
        if is_dataclass(value) and hasattr(value, "merge"):  # a nested section
            yield from _list_rows(value, effective=effective, prefix=f"{name}.")
        elif effective and not is_set:
            yield name, html.Html(f"{_format_value(value)} {html.faint('default')}")
        else:
            yield name, _format_value(value)


def _format_value(value: Any) -> html.Html:
    text = value.name if isinstance(value, Enum) else format_first_line(repr(value), _MAX_COLUMNS)
    return html.code(text)
