"""Reads, creates and copies the nodes of a session by path."""

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
    arrays = [ArrayDocument.of(child) for child in below if child.is_array]
    return sorted(arrays, key=lambda array: array.path)


def select_arrays(
    session: Session, arrays: str | list[str] | tuple[str, ...]
) -> list[ArrayDocument]:
    """Return the metadata of all arrays at or below one or more paths, without duplicates."""
    paths = [arrays] if isinstance(arrays, str) else list(arrays)
    documents = {array.path: array for path in paths for array in read_arrays(session, path)}
    return [documents[path] for path in sorted(documents)]


def require_free(session: Session, path: str) -> Path:
    """Return the path of a node to create; raise if it exists."""
    target = parse_path(path)
    if contents.get_node(session, target) is not None or contents.has_children(session, target):
        raise AlreadyExistsError(
            f"{target} already exists: choose another path, or delete it first",
            kind=ErrorKind.NODE_ALREADY_EXISTS,
        )
    for ancestor in target.ancestors():
        node = contents.get_node(session, ancestor)
        if node is not None and node.is_array:
            raise InvalidInputError(
                f"{target} would be inside the array {ancestor}", kind=ErrorKind.NOT_A_GROUP
            )
    return target


def create_group(session: Session, path: str) -> None:
    """Create a group and its missing parents; an existing group is not changed."""
    node_path = parse_path(path)
    for group in (*node_path.ancestors(), node_path):
        if contents.get_node(session, group) is None:
            document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
            contents.set_metadata(session, group, json.dumps(document).encode())


def create_array(session: Session, document: ArrayDocument, *, replace: bool = False) -> None:
    """Create an array without chunks, and its missing parent groups.

    With ``replace``, a node at the same path, and everything below it, is deleted first.
    """
    node_path = parse_path(document.path)
    if replace:
        contents.delete_node(session, node_path)
    if node_path.parent is not None:
        create_group(session, node_path.parent.value)
    contents.set_metadata(session, node_path, document.to_bytes())


def share_array(session: Session, source: ArrayDocument, path: str) -> None:
    """Create an array with the same chunks at another path; only references are copied."""
    create_array(session, source.with_path(path))
    node_path = parse_path(path)
    for part in contents.fetch_chunk_refs(session, parse_path(source.path)):
        if len(part):
            contents.set_payloads(session, node_path, part.coords, part.payloads)


def copy_group(session: Session, source: str, target: str) -> None:
    """Create the group ``target`` with the subgroups and attributes of ``source``."""
    root = parse_path(source)
    for node in (contents.require_node(session, root), *_list_groups_below(session, root)):
        node_path = parse_path(target + node.path.value[len(root.value.rstrip("/")) :])
        if node_path.parent is not None:
            create_group(session, node_path.parent.value)
        if contents.get_node(session, node_path) is None:
            contents.set_metadata(session, node_path, node.user_data)


def _list_groups_below(session: Session, path: Path) -> list[NodeSnapshot]:
    groups = [node for node in contents.iter_nodes_below(session, path) if not node.is_array]
    return sorted(groups, key=lambda node: node.path)
