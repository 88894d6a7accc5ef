"""Commits as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.display.html import code, faint, fold, panel, table, unbroken
from icefloe.display.text import first_line, format_count, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.snapshots import SnapshotInfo

_MAX_COMMITS: Final = 100


def history_html(commits: Sequence[SnapshotInfo]) -> str:
    """Show the first commits, one row each."""
    rows = [
        (
            code(commit.id),
            unbroken(format_time(commit.written_at)),
            first_line(commit.message),
            _metadata(commit.metadata),
        )
        for commit in commits[:_MAX_COMMITS]
    ]
    more = len(commits) - len(rows)
    shown = table(rows, ("snapshot", "written (UTC)", "message", "metadata"))
    after = [faint(f"and {format_count(more, 'commit')} more")] if more > 0 else []
    return panel(f"History: {format_count(len(commits), 'commit')}", shown, *after)


def _metadata(metadata: Any) -> Any:
    own = {name: value for name, value in metadata.items() if name != "__icechunk"}
    if not own:
        return ""
    return fold(
        ", ".join(map(str, own)), table((name, first_line(repr(own[name]))) for name in own)
    )
