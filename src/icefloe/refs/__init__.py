"""The one mutable thing of a repository: where its branches and tags point."""

from icefloe.refs.creation import create_refs
from icefloe.refs.interface import Refs, SnapshotSource
from icefloe.refs.opening import Opened, fetch_spec_version, is_repository, open_refs

__all__ = [
    "Opened",
    "Refs",
    "SnapshotSource",
    "create_refs",
    "fetch_spec_version",
    "is_repository",
    "open_refs",
]
