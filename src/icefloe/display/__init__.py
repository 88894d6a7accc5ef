"""Text for terminals, HTML and SVG for notebooks. Pure: values in, text out.

Names and messages in a repository are untrusted: everything is escaped, and control characters are
shown as escape sequences. HTML and SVG contain no style sheet and no script, load nothing, and
suit light and dark pages.
"""

from icefloe.display.commit_graph import Commit as Commit
from icefloe.display.commit_graph import CommitGraph as CommitGraph
from icefloe.display.commit_graph import lay_out as lay_out
from icefloe.display.config import config_html as config_html
from icefloe.display.dependencies import container_name as container_name
from icefloe.display.dependencies import dependencies_html as dependencies_html
from icefloe.display.dependencies import dependencies_summary as dependencies_summary
from icefloe.display.dependencies import dependencies_text as dependencies_text
from icefloe.display.dependencies import dependents_html as dependents_html
from icefloe.display.dependencies import dependents_summary as dependents_summary
from icefloe.display.dependencies import dependents_text as dependents_text
from icefloe.display.dependencies import format_size as format_size
from icefloe.display.diff import diff_html as diff_html
from icefloe.display.diff import diff_summary as diff_summary
from icefloe.display.diff import diff_text as diff_text
from icefloe.display.graph_svg import graph_svg as graph_svg
from icefloe.display.graph_text import graph_text as graph_text
from icefloe.display.history import history_html as history_html
from icefloe.display.html import panel as panel
from icefloe.display.html import with_repr_fallback as with_repr_fallback
from icefloe.display.repository import repository_html as repository_html
from icefloe.display.session import session_html as session_html
from icefloe.display.text import escape_unsafe as escape_unsafe
from icefloe.display.text import first_line as first_line
from icefloe.display.text import format_time as format_time
