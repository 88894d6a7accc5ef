"""The mutable state of a repository: branches, tags, history, configuration and the ops log."""

from icefloe.refs.creation import create_refs
from icefloe.refs.interface import Refs, SnapshotSource
from icefloe.refs.opening import OpenedRefs, fetch_spec_version, is_repository, open_refs

__all__ = [
    "OpenedRefs",
    "Refs",
    "SnapshotSource",
    "create_refs",
    "fetch_spec_version",
    "is_repository",
    "open_refs",
]
