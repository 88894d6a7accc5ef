"""The one mutable thing of a repository: where its branches and tags point."""

from icefloe.refs.creation import create_refs
from icefloe.refs.interface import Refs
from icefloe.refs.opening import open_refs

__all__ = ["Refs", "create_refs", "open_refs"]
