"""A configuration: what is set, and folded away what applies where nothing is."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from icefloe.display.html import Html, code, faint, folded, panel, table
from icefloe.display.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_COLUMNS: Final = 100

Row = tuple[str, Any]


def config_html(section: Any) -> str:
    """Show a section of the configuration; nothing that a repr hides is shown."""
    set_here = table(_rows(section, effective=False))
    applying = table(_rows(section, effective=True))
    nothing = faint("nothing is set; the defaults apply")
    return panel(
        type(section).__name__,
        set_here if _has_rows(section) else nothing,
        folded("all values that apply", applying),
    )


def _has_rows(section: Any) -> bool:
    return next(_rows(section, effective=False), None) is not None


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
        if is_dataclass(value) and hasattr(value, "merge"):  # a section of its own
            yield from _rows(value, effective=effective, prefix=f"{name}.")
        elif effective and not is_set:
            yield name, Html(f"{_value(value)} {faint('default')}")
        else:
            yield name, _value(value)


def _value(value: Any) -> Html:
    return code(value.name if isinstance(value, Enum) else one_line(repr(value), _MAX_COLUMNS))
