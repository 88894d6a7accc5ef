"""Commits as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.display.html import code, faint, folded, panel, table, unbroken
from icefloe.display.text import counted, one_line, short_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.snapshots import SnapshotInfo

_MAX_COMMITS: Final = 100


def history_html(commits: Sequence[SnapshotInfo]) -> str:
    """Show commits, one row each, and of very many the first."""
    rows = [
        (
            code(one.id),
            unbroken(short_time(one.written_at)),
            one_line(one.message),
            _metadata(one.metadata),
        )
        for one in commits[:_MAX_COMMITS]
    ]
    more = len(commits) - len(rows)
    shown = table(rows, ("snapshot", "written (UTC)", "message", "metadata"))
    after = [faint(f"and {counted(more, 'commit')} more")] if more > 0 else []
    return panel(f"History: {counted(len(commits), 'commit')}", shown, *after)


def _metadata(metadata: Any) -> Any:
    own = {name: value for name, value in metadata.items() if name != "__icechunk"}
    if not own:
        return ""
    return folded(
        ", ".join(map(str, own)), table((name, one_line(repr(own[name]))) for name in own)
    )
