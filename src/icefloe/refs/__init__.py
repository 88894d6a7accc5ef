"""The mutable state of a repository: branches, tags, history, configuration and the ops log."""

from icefloe.refs.creation import create_refs as create_refs
from icefloe.refs.interface import Refs as Refs
from icefloe.refs.interface import SnapshotSource as SnapshotSource
from icefloe.refs.opening import OpenedRefs as OpenedRefs
from icefloe.refs.opening import fetch_generation as fetch_generation
from icefloe.refs.opening import fetch_spec_version as fetch_spec_version
from icefloe.refs.opening import is_repository as is_repository
from icefloe.refs.opening import open_refs as open_refs
