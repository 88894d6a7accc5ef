"""Renders a repository as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.display import html
from icefloe.display.config import render_config_html

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_LABELS: Final = 30


def render_repository_html(
    url: str,
    spec_version: int,
    *,
    read_only: bool,
    refs: tuple[Sequence[str], Sequence[str]] | None,
    virtual_prefixes: Sequence[str],
    config: Any,
) -> str:
    """Render a repository; ``refs`` are its branches and tags, or None if unknown."""
    rows: list[tuple[str, object]] = [
        ("location", html.Html(f"{html.code(url)}{html.faint(' read-only') if read_only else ''}")),
        ("format", f"version {spec_version}"),
    ]
    if refs is not None:
        branches, tags = refs
        rows.append(("branches", _format_labels(branches)))
        if tags:
            rows.append(("tags", _format_labels(tags)))
    if virtual_prefixes:
        rows.append(("reads virtual chunks", html.join(map(html.code, virtual_prefixes))))
    details = html.details("configuration", html.Html(render_config_html(config)))
    return html.panel("Repository", html.table(rows), details)


def _format_labels(names: Sequence[str]) -> html.Html:
    labels = html.join([html.label(name) for name in names[:_MAX_LABELS]])
    num_more = len(names) - _MAX_LABELS
    return html.Html(f"{labels} {html.faint(f'and {num_more:,} more')}") if num_more > 0 else labels
