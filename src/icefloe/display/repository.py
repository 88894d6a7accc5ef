"""HTML of a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.display import html
from icefloe.display.config import render_config_html
from icefloe.display.text import format_first_line, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.snapshots import SnapshotInfo

_MAX_LISTED_NAMES: Final = 30
"""Maximum number of branches, and of tags, that are listed."""


def render_repository_html(
    url: str,
    generation: str,
    *,
    read_only: bool,
    refs: tuple[Sequence[str], Sequence[str], Sequence[SnapshotInfo]] | None,
    authorized_prefixes: Sequence[str],
    config: Any,
) -> str:
    """Format a repository.

    ``refs`` are the names of branches and of tags and the last commits, None if not fetched.
    """
    rows: list[tuple[str, object]] = [
        ("URL", html.Html(f"{html.code(url)}{html.faint(' read-only') if read_only else ''}")),
        ("format", generation),
    ]
    if refs is not None:
        branches, tags, commits = refs
        rows.append(("branches", _format_names(branches)))
        if tags:
            rows.append(("tags", _format_names(tags)))
        if commits:
            rows.append(("last commits", _format_commits(commits)))
    if authorized_prefixes:
        prefixes = html.join(map(html.code, authorized_prefixes))
        rows.append(("may read virtual chunks from", prefixes))
    details = html.details("configuration", html.Html(render_config_html(config)))
    return html.panel("Repository", html.table(rows), details)


def _format_commits(commits: Sequence[SnapshotInfo]) -> html.Html:
    rows = [
        (
            html.code(commit.id),
            html.nowrap(format_time(commit.written_at)),
            format_first_line(commit.message),
        )
        for commit in commits
    ]
    return html.table(rows, ("snapshot", "written (UTC)", "message"))


def _format_names(names: Sequence[str]) -> html.Html:
    labels = html.join([html.label(name) for name in names[:_MAX_LISTED_NAMES]])
    num_more = len(names) - _MAX_LISTED_NAMES
    return labels if num_more <= 0 else html.join([labels, html.faint(f"and {num_more:,} more")])
