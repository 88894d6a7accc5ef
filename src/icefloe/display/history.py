"""HTML of a history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.display import html
from icefloe.display.text import format_count, format_first_line, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.snapshots import SnapshotInfo

_MAX_COMMITS: Final = 100


def render_history_html(commits: Sequence[SnapshotInfo]) -> str:
    """Render up to ``_MAX_COMMITS`` commits, in the given order, one row each."""
    rows = [
        (
            html.code(commit.id),
            html.nowrap(format_time(commit.written_at)),
            format_first_line(commit.message),
            _format_metadata(commit.metadata),
        )
        for commit in commits[:_MAX_COMMITS]
    ]
    more = len(commits) - len(rows)
    content = html.table(rows, ("snapshot", "written (UTC)", "message", "metadata"))
    after = [html.faint(f"and {format_count(more, 'more commit')}")] if more > 0 else []
    return html.panel(f"History: {format_count(len(commits), 'commit')}", content, *after)


def _format_metadata(metadata: Any) -> Any:
    user_metadata = {name: value for name, value in metadata.items() if name != "__icechunk"}
    if not user_metadata:
        return ""
    rows = [(name, format_first_line(repr(value))) for name, value in user_metadata.items()]
    return html.details(", ".join(map(str, user_metadata)), html.table(rows))
