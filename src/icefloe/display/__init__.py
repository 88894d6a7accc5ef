"""Text for terminals, HTML and SVG for notebooks. Pure, no I/O.

Names and messages in a repository are untrusted: everything is escaped, and control characters are
shown as escape sequences. HTML and SVG contain no style sheets and no scripts, load no resources,
and are legible on light and dark pages.
"""

from icefloe.display.commit_graph import Commit as Commit
from icefloe.display.commit_graph import CommitGraph as CommitGraph
from icefloe.display.commit_graph import lay_out as lay_out
from icefloe.display.config import render_config_html as render_config_html
from icefloe.display.dependencies import format_container_name as format_container_name
from icefloe.display.dependencies import format_size as format_size
from icefloe.display.dependencies import render_dependencies_html as render_dependencies_html
from icefloe.display.dependencies import render_dependencies_text as render_dependencies_text
from icefloe.display.dependencies import render_dependents_html as render_dependents_html
from icefloe.display.dependencies import render_dependents_text as render_dependents_text
from icefloe.display.dependencies import summarize_dependencies as summarize_dependencies
from icefloe.display.dependencies import summarize_dependents as summarize_dependents
from icefloe.display.diff import render_diff_html as render_diff_html
from icefloe.display.diff import render_diff_text as render_diff_text
from icefloe.display.diff import summarize_diff as summarize_diff
from icefloe.display.graph_svg import render_graph_svg as render_graph_svg
from icefloe.display.graph_text import draw_lanes as draw_lanes
from icefloe.display.graph_text import render_graph_text as render_graph_text
from icefloe.display.history import render_history_html as render_history_html
from icefloe.display.html import with_repr_fallback as with_repr_fallback
from icefloe.display.repository import render_repository_html as render_repository_html
from icefloe.display.session import MAX_NODES as MAX_NODES
from icefloe.display.session import render_session_html as render_session_html
from icefloe.display.text import escape_unsafe as escape_unsafe
from icefloe.display.text import format_count as format_count
from icefloe.display.text import format_first_line as format_first_line
from icefloe.display.text import format_time as format_time
