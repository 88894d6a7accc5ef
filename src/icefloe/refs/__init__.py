"""The one mutable thing of a repository: where its branches and tags point."""

from icefloe.refs.interface import Refs
from icefloe.refs.opening import open_refs

__all__ = ["Refs", "open_refs"]
