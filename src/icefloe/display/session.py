"""HTML of a session."""

from __future__ import annotations

from icefloe.display.html import code, faint, label, panel, table


def session_html(
    kind: str, url: str, *, mode: str, branch: str | None, snapshot_id: str, has_changes: bool
) -> str:
    """Show a session or its store."""
    rows: list[tuple[str, object]] = [
        ("mode", mode),
        ("branch", faint("none") if branch is None else label(branch)),
        ("snapshot", code(snapshot_id)),
        ("repository", code(url)),
    ]
    if mode != "readonly":
        rows.append(("uncommitted changes", "yes, see status()" if has_changes else "none"))
    return panel(kind, table(rows))
