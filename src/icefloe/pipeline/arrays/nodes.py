"""Nodes that jobs read and create, by path."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError
from icefloe.model.path import Path
from icefloe.pipeline.arrays.array_document import ArrayDocument
from icefloe.session import Session, contents

if TYPE_CHECKING:
    from icefloe.model.node import NodeSnapshot


def parse_path(path: str) -> Path:
    """Parse a node path, with or without a leading slash."""
    return Path("/" + path.strip("/"))


def require_array(session: Session, path: str) -> ArrayDocument:
    """Return the metadata of the array at a path, or raise."""
    return ArrayDocument.of(contents.require_array(session, parse_path(path)))


def read_arrays(session: Session, path: str) -> list[ArrayDocument]:
    """Return the metadata of all arrays at or below a path, ordered by path."""
    node = contents.require_node(session, parse_path(path))
    if node.is_array:
        return [ArrayDocument.of(node)]
    below = contents.iter_nodes_below(session, node.path)
    found = [ArrayDocument.of(child) for child in below if child.is_array]
    return sorted(found, key=lambda array: array.path)


def select_arrays(
    session: Session, arrays: str | list[str] | tuple[str, ...]
) -> list[ArrayDocument]:
    """Return the metadata of all arrays at or below some paths, without duplicates."""
    paths = [arrays] if isinstance(arrays, str) else list(arrays)
    found = {array.path: array for path in paths for array in read_arrays(session, path)}
    return [found[path] for path in sorted(found)]


def require_free(session: Session, path: str) -> Path:
    """Return the path of a node to create; raise if it exists."""
    place = parse_path(path)
    if contents.get_node(session, place) is not None or contents.has_children(session, place):
        raise AlreadyExistsError(
            f"{place} already exists: choose another path, or delete it first",
            kind=ErrorKind.NODE_ALREADY_EXISTS,
        )
    for above in place.ancestors():
        node = contents.get_node(session, above)
        if node is not None and node.is_array:
            raise InvalidInputError(
                f"{place} would be inside the array {above}", kind=ErrorKind.NOT_A_GROUP
            )
    return place


def create_group(session: Session, path: str) -> None:
    """Create a group and its missing parents; an existing group is not changed."""
    place = parse_path(path)
    for group in (*place.ancestors(), place):
        if contents.get_node(session, group) is None:
            document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
            contents.set_metadata(session, group, json.dumps(document).encode())


def create_array(session: Session, document: ArrayDocument, *, replaced: bool = False) -> None:
    """Create an array without chunks, and its missing parent groups.

    With ``replaced``, an array at the same path is deleted first.
    """
    place = parse_path(document.path)
    if replaced:
        contents.delete_node(session, place)
    if place.parent is not None:
        create_group(session, place.parent.value)
    contents.set_metadata(session, place, document.to_bytes())


def share_array(session: Session, source: ArrayDocument, path: str) -> None:
    """Create an array with the same chunks at another path; only references are copied."""
    create_array(session, source.at(path))
    place = parse_path(path)
    for part in contents.fetch_chunk_refs(session, parse_path(source.path)):
        if len(part):
            contents.set_payloads(session, place, part.coords, part.payloads)


def copy_group(session: Session, source: str, target: str) -> None:
    """Create the group ``target`` with the subgroups and attributes of ``source``."""
    root = parse_path(source)
    for node in (contents.require_node(session, root), *_groups_below(session, root)):
        place = parse_path(target + "/" + node.path.value[len(root.value.rstrip("/")) :])
        if place.parent is not None:
            create_group(session, place.parent.value)
        if contents.get_node(session, place) is None:
            contents.set_metadata(session, place, node.user_data)


def _groups_below(session: Session, path: Path) -> list[NodeSnapshot]:
    groups = [node for node in contents.iter_nodes_below(session, path) if not node.is_array]
    return sorted(groups, key=lambda node: node.path)
