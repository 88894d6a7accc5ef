"""How things look: text for terminals, HTML and SVG for notebooks. Pure: values in, text out.

Names and messages come from whoever wrote the repository: everything is escaped, and control
characters, which a terminal would obey, are shown as their numbers. HTML and SVG bring no style
sheet, no script and nothing from the network, and read in light and dark.
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
    sized,
)
from icefloe.display.diff import diff_html, diff_summary, diff_text
from icefloe.display.graph_svg import graph_svg
from icefloe.display.graph_text import graph_text
from icefloe.display.history import history_html
from icefloe.display.html import never_raising, panel
from icefloe.display.repository import repository_html
from icefloe.display.session import session_html
from icefloe.display.text import one_line, printable, short_time

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
    "graph_svg",
    "graph_text",
    "history_html",
    "lay_out",
    "never_raising",
    "one_line",
    "panel",
    "printable",
    "repository_html",
    "session_html",
    "short_time",
    "sized",
]
