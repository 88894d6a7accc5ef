"""Text for terminals, HTML and SVG for notebooks. Pure: values in, text out.

Names and messages in a repository are untrusted: everything is escaped, and control characters are
shown as escape sequences. HTML and SVG contain no style sheet and no script, load nothing, and
suit light and dark pages.
"""

from icefloe.display.commit_graph import Commit, CommitGraph, lay_out
from icefloe.display.config import config_html
from icefloe.display.dependencies import (
    container_name,
    dependencies_html,
    dependencies_summary,
    dependencies_text,
    dependents_html,
    dependents_summary,
    dependents_text,
    format_size,
)
from icefloe.display.diff import diff_html, diff_summary, diff_text
from icefloe.display.graph_svg import graph_svg
from icefloe.display.graph_text import graph_text
from icefloe.display.history import history_html
from icefloe.display.html import panel, with_repr_fallback
from icefloe.display.repository import repository_html
from icefloe.display.session import session_html
from icefloe.display.text import escape_unsafe, first_line, format_time

__all__ = [
    "Commit",
    "CommitGraph",
    "config_html",
    "container_name",
    "dependencies_html",
    "dependencies_summary",
    "dependencies_text",
    "dependents_html",
    "dependents_summary",
    "dependents_text",
    "diff_html",
    "diff_summary",
    "diff_text",
    "escape_unsafe",
    "first_line",
    "format_size",
    "format_time",
    "graph_svg",
    "graph_text",
    "history_html",
    "lay_out",
    "panel",
    "repository_html",
    "session_html",
    "with_repr_fallback",
]
