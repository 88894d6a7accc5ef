"""The commands ``ls``, ``info`` and ``tree``: groups, arrays and their chunks."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from icefloe import inspection
from icefloe.cli import output
from icefloe.cli.arguments import AsJson, Ref, RepositoryArgument  # noqa: TC001 - typer reads them
from icefloe.cli.output import print_json, print_line, print_renderable
from icefloe.cli.repositories import open_files, open_repository, resolve_snapshot_id
from icefloe.display import escape_unsafe, format_size
from icefloe.inspection.metadata_file import describe_node
from icefloe.model.node import ArrayNodeData, NodeKind
from icefloe.session import contents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.core import ChunkCounts, SnapshotView
    from icefloe.model.node import NodeSnapshot
    from icefloe.repository import Repository

commands = typer.Typer(rich_markup_mode="rich")
_PANEL = "Contents"

_Path = Annotated[str, typer.Argument(metavar="[PATH]", help="Path of a group or array.")]


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe ls weather\n\n"
    "  icefloe ls weather /forecast --ref v1.0 --recursive\n\n"
    "  icefloe ls weather --json",
)
def ls(
    repository: RepositoryArgument,
    path: _Path = "/",
    *,
    ref: Ref = "main",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-R", help="List everything below, not only children.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the groups and arrays in a group."""
    opened = open_repository(repository)
    session = opened.readonly_session(snapshot_id=resolve_snapshot_id(opened, ref))
    parsed = session.path(path)
    node = contents.require_node(session, parsed)
    if node.kind is NodeKind.ARRAY:
        nodes = [node]
    elif recursive:
        below = contents.iter_nodes_below(session, parsed)
        nodes = sorted(below, key=lambda node: node.path.segments)
    else:
        nodes = contents.list_child_nodes(session, parsed)
    if as_json:
        generation = session.connection.generation
        print_json(describe_node(node, generation) for node in nodes)
        return
    for node in nodes:
        name = str(node.path)[1:] if recursive else node.path.name
        line = Text(escape_unsafe(name))
        if node.kind is NodeKind.GROUP:
            line.stylize("bold blue")
            line.append("/")
        else:
            line.append(f"  {escape_unsafe(inspection.summarize_node(node))}", "dim")
        print_line(line)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe info weather\n\n"
    "  icefloe info weather t2m --ref v1.0\n\n"
    "  icefloe info weather --json | jq .arrays",
)
def info(
    repository: RepositoryArgument,
    path: _Path = "/",
    *,
    ref: Ref = "main",
    as_json: AsJson = False,
) -> None:
    """Show the format of a repository, and the chunks of its arrays by kind and size.

    Reads the manifests of all arrays at or below PATH. Sizes are those of the encoded chunks.
    """
    opened = open_repository(repository)
    view = opened.fetch_snapshot(snapshot_id=resolve_snapshot_id(opened, ref))
    root = view.get_node(path)
    nodes = [
        node
        for node in view.nodes
        if node.is_array and (node.path == root.path or node.path.is_below(root.path))
    ]
    arrays = ((node, view.count_chunks(node.path)) for node in nodes)
    if as_json:
        description = _describe_repository(opened) | {"snapshot_id": str(view.id)}
        description["arrays"] = (_describe_array(node, counts) for node, counts in arrays)
        print_json(description)
        return
    for label, text in _summarize_repository(opened, view):
        print_renderable(Text.assemble(f"{label:<11}", escape_unsafe(text)))
    table = output.make_table("array", "type and shape", "chunks", "size", "stored as")
    table.columns[0].overflow = "fold"  # a path is never truncated
    for node, counts in arrays:
        table.add_row(
            Text(escape_unsafe(str(node.path))),
            Text(escape_unsafe(inspection.summarize_node(node)), "dim"),
            f"{counts.total:,} of {_count_places(node):,}",
            format_size(counts.total_bytes),
            _format_kinds(counts),
        )
    if nodes:
        print_renderable(Text())
        print_renderable(table)


@commands.command(rich_help_panel=_PANEL, epilog="Example:  icefloe tree weather --ref v1.0")
def tree(repository: RepositoryArgument, *, ref: Ref = "main", as_json: AsJson = False) -> None:
    """Show all groups and arrays of a repository as a tree; see also ls."""
    files = open_files(repository)
    nodes = files.fetch_tree(ref).snapshot.nodes
    if as_json:
        print_json(describe_node(node, files.refs.generation) for node in nodes)
        return
    root = Tree(Text(escape_unsafe(f"{repository} at {ref}"), "bold"))
    branches = {"/": root}
    for node in nodes:
        if node.path.is_root:
            continue
        # A node whose parent group is missing is attached to the root.
        parent = branches.get(str(node.path.parent), root)
        label = Text(
            escape_unsafe(node.path.name), "bold blue" if node.kind is NodeKind.GROUP else ""
        )
        if node.kind is NodeKind.ARRAY:
            label.append(f"  {escape_unsafe(inspection.summarize_node(node))}", "dim")
        branches[str(node.path)] = parent.add(label)
    if not nodes:
        root.add(Text("(empty)", "dim"))
    print_renderable(root)


def _describe_repository(repository: Repository) -> dict[str, Any]:
    return {
        "url": repository.storage.url,
        "generation": repository.generation,
        "branches": sorted(repository.list_branches()),
        "tags": sorted(repository.list_tags()),
        "containers": [
            {
                "name": access.container.name,
                "url_prefix": access.container.url_prefix,
                "is_authorized": access.is_authorized,
            }
            for access in repository.list_virtual_chunk_containers()
            if not access.is_default
        ],
    }


def _summarize_repository(repository: Repository, view: SnapshotView) -> Iterator[tuple[str, str]]:
    description = _describe_repository(repository)
    yield "repository", description["url"]
    yield "format", description["generation"]
    yield "branches", ", ".join(description["branches"])
    if description["tags"]:
        yield "tags", ", ".join(description["tags"])
    yield "snapshot", str(view.id)
    for container in description["containers"]:
        yield (
            "container",
            container["url_prefix"]
            + ("" if container["name"] is None else f" ({container['name']})"),
        )


def _describe_array(node: NodeSnapshot, counts: ChunkCounts) -> dict[str, Any]:
    return {
        "path": str(node.path),
        "summary": inspection.summarize_node(node),
        "chunks_in_grid": _count_places(node),
        "chunks_stored": counts.total,
        "bytes_stored": counts.total_bytes,
        **asdict(counts),
    }


def _count_places(node: NodeSnapshot) -> int:
    assert isinstance(node.node_data, ArrayNodeData)  # noqa: S101 - only arrays are passed
    return math.prod(dimension.num_chunks for dimension in node.node_data.shape)


def _format_kinds(counts: ChunkCounts) -> str:
    kinds = {"native": counts.native, "virtual": counts.virtual, "inline": counts.inline}
    present = {kind: number for kind, number in kinds.items() if number}
    if len(present) == 1:
        return next(iter(present))
    return ", ".join(f"{number:,} {kind}" for kind, number in present.items())
