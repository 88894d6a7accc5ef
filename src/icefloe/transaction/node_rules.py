"""Rules for the paths of new and moved nodes."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Protocol

from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError, SessionStateError
from icefloe.model.node import NodeKind
from icefloe.model.zarr_keys import METADATA_NAME

if TYPE_CHECKING:
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.path import Path

_MAX_NAMES: Final = 5
_MAX_COMPARED: Final = 10_000
"""Maximum number of names that are compared to find a similar one."""


class Hierarchy(Protocol):
    """The nodes of a repository, as a transaction sees them."""

    def get_node(self, path: Path) -> NodeSnapshot | None:
        """Return the node at a path."""

    def has_nodes_from(self, path: Path) -> bool:
        """Whether there is a node at a path or below it."""

    def list_children(self, path: Path) -> set[str]:
        """Return the names directly below a path."""


def require_valid_path(nodes: Hierarchy, path: Path, *, is_array: bool) -> None:
    """Raise if a new node is inside an array, is an array above nodes, or has a reserved name."""
    _require_name(path)
    # No node is inside an array, so that the nearest ancestor with nodes is conclusive.
    above = next(filter(nodes.has_nodes_from, path.ancestors()), None)
    node = None if above is None else nodes.get_node(above)
    if node is not None and node.kind is NodeKind.ARRAY:
        raise InvalidInputError(
            f"{path} would be inside the array {above}", kind=ErrorKind.NOT_A_GROUP
        )
    if is_array and nodes.list_children(path):
        raise InvalidInputError(
            f"{path} cannot be an array: there are nodes below it", kind=ErrorKind.NOT_A_GROUP
        )


def require_valid_move(nodes: Hierarchy, source: Path, target: Path) -> None:
    """Raise if the node at ``source`` cannot move to ``target``."""
    problem = f"cannot move {source} to {target}"
    if target == source or target.is_below(source):
        raise SessionStateError(
            f"cannot move {source} into itself or its own descendant: the target is {target}",
            kind=ErrorKind.MOVE_INTO_SELF_OR_DESCENDANT,
        )
    if nodes.get_node(target) is not None or nodes.list_children(target):
        raise AlreadyExistsError(
            f"{problem}: it would overwrite existing node {target}; delete that first",
            kind=ErrorKind.MOVE_WONT_OVERWRITE,
        )
    _require_name(target)
    above = target.parent
    parent = None if above is None else nodes.get_node(above)
    if parent is None:
        raise SessionStateError(
            f"{problem}: the destination's parent group {above} does not exist; create it first",
            kind=ErrorKind.MOVE_DESTINATION_PARENT_MISSING,
        )
    if parent.kind is not NodeKind.GROUP:
        raise SessionStateError(
            f"{problem}: {above} is an array, not a group",
            kind=ErrorKind.MOVE_DESTINATION_PARENT_NOT_GROUP,
        )


def describe_nearest(nodes: Hierarchy, path: Path) -> str:
    """Name a similar node in the nearest existing group above a path, or its contents."""
    above = next((path for path in path.ancestors() if nodes.get_node(path) is not None), None)
    names = sorted(nodes.list_children(above)) if above is not None else []
    if above is not None and len(names) <= _MAX_COMPARED:
        missing = path.segments[len(above.segments)]
        if similar := get_close_matches(missing, names, n=1):
            return f"did you mean {above.child(similar[0])}?"
    more = ", …" if len(names) > _MAX_NAMES else ""
    return f"{above or 'it'} contains {', '.join(names[:_MAX_NAMES]) or 'nothing'}{more}"


def _require_name(path: Path) -> None:
    """Raise if a path contains the metadata key of a group: listings would be ambiguous."""
    # The search in the text is much faster, and excludes nearly all paths.
    if METADATA_NAME in path.value and METADATA_NAME in path.segments:
        raise InvalidInputError(
            f"{path} cannot be the path of a node: {METADATA_NAME} is the metadata of the group "
            "above it; choose another name",
            kind=ErrorKind.INVALID_PATH,
        )
