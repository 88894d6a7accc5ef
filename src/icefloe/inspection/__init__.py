"""Inspection: metadata files as JSON, the history, the tree and diffs of a repository."""

from icefloe.inspection.json_stream import stream_json
from icefloe.inspection.metadata_file import describe_file, fetch_metadata_file
from icefloe.inspection.repository import HistoryEntry, fetch_history, fetch_snapshot, node_summary

__all__ = [
    "HistoryEntry",
    "describe_file",
    "fetch_history",
    "fetch_metadata_file",
    "fetch_snapshot",
    "node_summary",
    "stream_json",
]
