"""HTML of a session."""

from __future__ import annotations

from icefloe.display import html


def render_session_html(
    kind: str, url: str, *, mode: str, branch: str | None, snapshot_id: str, has_changes: bool
) -> str:
    """Format a session or its store."""
    rows: list[tuple[str, object]] = [
        ("mode", mode),
        ("branch", html.faint("none") if branch is None else html.label(branch)),
        ("snapshot", html.code(snapshot_id)),
        ("repository", html.code(url)),
    ]
    if mode != "readonly":
        rows.append(("uncommitted changes", "yes, see status()" if has_changes else "none"))
    return html.panel(kind, html.table(rows))
