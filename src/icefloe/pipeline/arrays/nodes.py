"""Reads, creates and copies nodes of a session, which are given by path."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError
from icefloe.model.path import Path
from icefloe.pipeline.arrays.array_document import ArrayDocument
from icefloe.session import Session, contents

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.model.node import NodeSnapshot


def parse_path(path: str) -> Path:
    """Parse a node path, with or without leading and trailing slashes."""
    return Path("/" + path.strip("/"))


def require_array(session: Session, path: str) -> ArrayDocument:
    """Return the metadata of the array at a path; raise if there is no array."""
    return ArrayDocument.of(contents.require_array(session, parse_path(path)))


def read_arrays(session: Session, path: str) -> list[ArrayDocument]:
    """Return the metadata of the arrays at or below a node, ordered by path; raise if no node."""
    node = contents.require_node(session, parse_path(path))
    if node.is_array:
        return [ArrayDocument.of(node)]
    descendants = contents.iter_nodes_below(session, node.path)
    arrays = [ArrayDocument.of(descendant) for descendant in descendants if descendant.is_array]
    return sorted(arrays, key=lambda array: array.path)


def select_arrays(session: Session, paths: str | Iterable[str]) -> list[ArrayDocument]:
    """Return the metadata of the arrays at or below nodes, ordered by path, without duplicates."""
    if isinstance(paths, str):
        return read_arrays(session, paths)
    arrays = {array.path: array for path in paths for array in read_arrays(session, path)}
    return [arrays[path] for path in sorted(arrays)]


def require_free(session: Session, path: str) -> Path:
    """Return the path of a node to create; raise if it is in use, or inside an array."""
    target = parse_path(path)
    if contents.get_node(session, target) is not None or contents.has_children(session, target):
        raise AlreadyExistsError(
            f"{target} already exists: choose another path, or delete it first",
            kind=ErrorKind.NODE_ALREADY_EXISTS,
        )
    for ancestor in target.ancestors():
        node = contents.get_node(session, ancestor)
        if node is not None and node.is_array:
            problem = f"{target} would be inside the array {ancestor}: choose another path"
            raise InvalidInputError(problem, kind=ErrorKind.NOT_A_GROUP)
    return target


def create_group(session: Session, path: str) -> None:
    """Create a group and its missing ancestors; existing nodes are not changed."""
    node_path = parse_path(path)
    for group_path in (*node_path.ancestors(), node_path):
        if contents.get_node(session, group_path) is None:
            metadata = {"zarr_format": 3, "node_type": "group", "attributes": {}}
            contents.set_metadata(session, group_path, json.dumps(metadata).encode())


def create_array(session: Session, array: ArrayDocument, *, replace: bool = False) -> None:
    """Create an array without chunks, and its missing ancestors.

    With ``replace``, delete nodes at and below the path first; else it must be free (unchecked).
    """
    node_path = parse_path(array.path)
    if replace:
        contents.delete_node(session, node_path)
    if node_path.parent is not None:
        create_group(session, node_path.parent.value)
    contents.set_metadata(session, node_path, array.to_bytes())


def share_array(session: Session, source: ArrayDocument, path: str) -> None:
    """Create an array at another path with the chunks of ``source``; only references are copied."""
    create_array(session, source.with_path(path))
    target_path = parse_path(path)
    for refs in contents.fetch_chunk_refs(session, parse_path(source.path)):
        if len(refs):
            contents.set_payloads(session, target_path, refs.coords, refs.payloads)


def copy_group(session: Session, source: str, target: str) -> None:
    """Copy a group with its attributes and subgroups, without arrays; existing nodes are kept."""
    source_path = parse_path(source)
    prefix = source_path.value.rstrip("/")  # empty for the root
    source_group = contents.require_node(session, source_path)
    for group in (source_group, *_list_groups_below(session, source_path)):
        target_path = parse_path(target + group.path.value.removeprefix(prefix))
        if target_path.parent is not None:
            create_group(session, target_path.parent.value)
        if contents.get_node(session, target_path) is None:
            contents.set_metadata(session, target_path, group.user_data)


def _list_groups_below(session: Session, path: Path) -> list[NodeSnapshot]:
    """Return the groups below a path, ordered by path: a group precedes its subgroups."""
    groups = [node for node in contents.iter_nodes_below(session, path) if not node.is_array]
    return sorted(groups, key=lambda node: node.path)
