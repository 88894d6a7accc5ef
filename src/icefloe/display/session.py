"""HTML of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from icefloe.display import html

if TYPE_CHECKING:
    from collections.abc import Sequence


MAX_NODES: Final = 50
"""Maximum number of nodes that are listed."""


def render_session_html(
    kind: str,
    url: str,
    *,
    mode: str,
    branch: str | None,
    snapshot_id: str,
    has_changes: bool,
    nodes: Sequence[tuple[str, str]],
) -> str:
    """Format a session or its store; ``nodes`` are paths and summaries, in order."""
    rows: list[tuple[str, object]] = [
        ("mode", mode),
        ("branch", html.faint("none") if branch is None else html.label(branch)),
        ("snapshot", html.code(snapshot_id)),
        ("repository", html.code(url)),
    ]
    if mode != "readonly":
        rows.append(("uncommitted changes", "yes, see status()" if has_changes else "none"))
    shown = [
        (html.Html(f"{'&emsp;' * (path.count('/') - 1)}{html.code(path.rpartition('/')[2])}"), text)
        for path, text in nodes[:MAX_NODES]
    ]
    content = [html.table(rows), *([html.table(shown, ("node", "contents"))] if shown else [])]
    after = [html.faint("and more nodes")] if len(nodes) > MAX_NODES else []
    return html.panel(kind, *content, *after)
