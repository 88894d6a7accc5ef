"""The nodes that a job reads and makes: found by path, created, or sharing another's chunks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError
from icefloe.model.path import Path
from icefloe.pipeline.arrays.array_document import ArrayDocument
from icefloe.session import contents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.node import NodeSnapshot
    from icefloe.session import Session


def path_of(path: str) -> Path:
    """Read the path of a node, with or without a slash in front."""
    return Path("/" + path.strip("/"))


def require_array(session: Session, path: str) -> ArrayDocument:
    """Return the metadata of the array at a path, or raise."""
    return ArrayDocument.of(contents.require_array(session, path_of(path)))


def arrays_below(session: Session, path: str) -> list[ArrayDocument]:
    """Return the metadata of all arrays at or below a path, ordered by their paths."""
    node = contents.require_node(session, path_of(path))
    if node.is_array:
        return [ArrayDocument.of(node)]
    below = contents.iter_nodes_below(session, node.path)
    found = [ArrayDocument.of(one) for one in below if one.is_array]
    return sorted(found, key=lambda one: one.path)


def select_arrays(
    session: Session, arrays: str | list[str] | tuple[str, ...]
) -> list[ArrayDocument]:
    """Return the metadata of all arrays at or below one path or several, each once."""
    paths = [arrays] if isinstance(arrays, str) else list(arrays)
    found = {one.path: one for path in paths for one in arrays_below(session, path)}
    return [found[path] for path in sorted(found)]


def require_free(session: Session, path: str) -> Path:
    """Return the path of a node that is to be made, or raise where something is."""
    place = path_of(path)
    if contents.get_node(session, place) is not None or contents.has_children(session, place):
        raise AlreadyExistsError(
            f"{place} is there already: choose another path, or delete it first",
            kind=ErrorKind.NODE_ALREADY_EXISTS,
        )
    for above in place.ancestors():
        node = contents.get_node(session, above)
        if node is not None and node.is_array:
            raise InvalidInputError(
                f"{place} would lie inside the array {above}", kind=ErrorKind.NOT_A_GROUP
            )
    return place


def create_group(session: Session, path: str, attributes: Mapping[str, Any] | None = None) -> None:
    """Create a group, and those above it that are missing; one that is there stays as it is."""
    place = path_of(path)
    for one in (*place.ancestors(), place):
        if contents.get_node(session, one) is None:
            own = dict(attributes or {}) if one == place else {}
            document = {"zarr_format": 3, "node_type": "group", "attributes": own}
            contents.set_metadata(session, one, json.dumps(document).encode())


def create_array(session: Session, document: ArrayDocument, *, replaced: bool = False) -> None:
    """Create an array without any chunk, and the groups above it that are missing.

    ``replaced`` says that another array may be at its path, which is deleted: history keeps it.
    """
    place = path_of(document.path)
    if replaced:
        contents.delete_node(session, place)
    if place.parent is not None:
        create_group(session, place.parent.value)
    contents.set_metadata(session, place, document.to_bytes())


def share_array(session: Session, source: ArrayDocument, path: str) -> None:
    """Create an array of the same chunks at another path: references are copied, no bytes are."""
    create_array(session, source.at(path))
    place = path_of(path)
    for part in contents.fetch_chunk_refs(session, path_of(source.path)):
        if len(part):
            contents.set_payloads(session, place, part.coords, part.payloads)


def copy_group(session: Session, source: str, target: str) -> None:
    """Create the group ``target``, and the groups in it, with the attributes of ``source``'s."""
    root = path_of(source)
    for node in (contents.require_node(session, root), *_groups_below(session, root)):
        place = path_of(target + "/" + node.path.value[len(root.value.rstrip("/")) :])
        if place.parent is not None:
            create_group(session, place.parent.value)
        if contents.get_node(session, place) is None:
            contents.set_metadata(session, place, node.user_data)


def _groups_below(session: Session, path: Path) -> list[NodeSnapshot]:
    groups = [node for node in contents.iter_nodes_below(session, path) if not node.is_array]
    return sorted(groups, key=lambda node: node.path)
