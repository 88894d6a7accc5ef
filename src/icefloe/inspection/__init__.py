"""Inspection: metadata files as JSON, the history, the tree and diffs of a repository."""

from icefloe.inspection.json_stream import stream_json as stream_json
from icefloe.inspection.metadata_file import describe_file as describe_file
from icefloe.inspection.metadata_file import fetch_metadata_file as fetch_metadata_file
from icefloe.inspection.repository import HistoryEntry as HistoryEntry
from icefloe.inspection.repository import fetch_history as fetch_history
from icefloe.inspection.repository import fetch_snapshot as fetch_snapshot
from icefloe.inspection.repository import node_summary as node_summary
