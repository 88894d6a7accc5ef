"""Inspection of a repository: metadata files as JSON, history, nodes and diffs."""

from icefloe.inspection.json_stream import stream_json as stream_json
from icefloe.inspection.layout_files import describe_layout_file as describe_layout_file
from icefloe.inspection.metadata_file import describe_file as describe_file
from icefloe.inspection.metadata_file import fetch_metadata_file as fetch_metadata_file
from icefloe.inspection.repository import HistoryEntry as HistoryEntry
from icefloe.inspection.repository import fetch_history as fetch_history
from icefloe.inspection.repository import fetch_snapshot as fetch_snapshot
from icefloe.inspection.repository import summarize_node as summarize_node
