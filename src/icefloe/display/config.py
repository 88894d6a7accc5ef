"""HTML of a configuration: the values that are set and, collapsed, all effective values."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from icefloe.display.html import Html, code, faint, fold, panel, table
from icefloe.display.text import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_COLUMNS: Final = 100

Row = tuple[str, Any]


def config_html(section: Any) -> str:
    """Format a section of the configuration, without the fields that its repr hides."""
    explicit = list(_rows(section, effective=False))
    return panel(
        type(section).__name__,
        table(explicit) if explicit else faint("nothing is set; the defaults apply"),
        fold("effective values", table(_rows(section, effective=True))),
    )


def _rows(section: Any, *, effective: bool, prefix: str = "") -> Iterator[Row]:
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
            yield from _rows(value, effective=effective, prefix=f"{name}.")
        elif effective and not is_set:
            yield name, Html(f"{_value(value)} {faint('default')}")
        else:
            yield name, _value(value)


def _value(value: Any) -> Html:
    return code(value.name if isinstance(value, Enum) else first_line(repr(value), _MAX_COLUMNS))
