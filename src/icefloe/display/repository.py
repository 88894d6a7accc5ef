"""HTML of a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.display.config import config_html
from icefloe.display.html import Html, code, faint, fold, join_html, label, panel, table

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_NAMES: Final = 30


def repository_html(
    url: str,
    spec_version: int,
    *,
    read_only: bool,
    refs: tuple[Sequence[str], Sequence[str]] | None,
    virtual_prefixes: Sequence[str],
    config: Any,
) -> str:
    """Show a repository; ``refs`` are its branches and tags, None where unknown."""
    rows: list[tuple[str, object]] = [
        ("location", Html(f"{code(url)}{faint(' read-only') if read_only else ''}")),
        ("format", f"version {spec_version}"),
    ]
    if refs is not None:
        branches, tags = refs
        rows.append(("branches", _labels(branches)))
        if tags:
            rows.append(("tags", _labels(tags)))
    if virtual_prefixes:
        rows.append(("reads virtual chunks", join_html(map(code, virtual_prefixes))))
    return panel("Repository", table(rows), fold("configuration", Html(config_html(config))))


def _labels(names: Sequence[str]) -> Html:
    shown = join_html([label(name) for name in names[:_MAX_NAMES]])
    more = len(names) - _MAX_NAMES
    return Html(f"{shown} {faint(f'and {more:,} more')}") if more > 0 else shown
