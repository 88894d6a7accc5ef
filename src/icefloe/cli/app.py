"""The commands, their help and their output. No logic: that is in `icefloe.inspection`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from icefloe import __version__
from icefloe.errors import IcefloeError, StorageError
from icefloe.inspection import (
    describe_file,
    fetch_history,
    fetch_snapshot,
    node_summary,
    stream_json,
)
from icefloe.inspection.metadata_file import describe_node, describe_snapshot_info
from icefloe.model.node import NodeKind
from icefloe.refs import open_refs
from icefloe.storage import Storage, storage_from_url

app = typer.Typer(
    name="icefloe",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="A transactional, versioned store for Zarr arrays, in the format of Icechunk.",
)

_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
_Repository = Annotated[
    str,
    typer.Argument(
        metavar="REPOSITORY",
        help="A directory, or a URL such as s3://bucket/prefix, gs://, az://, https://.",
    ),
]
_Ref = Annotated[
    str, typer.Option("--ref", "-r", metavar="NAME", help="A branch, a tag or a snapshot id.")
]


def run() -> None:
    """Run the command line; an error of icefloe is a message and exit code 1, never a traceback."""
    try:
        app()
    except IcefloeError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(error.message)}", soft_wrap=True)
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read us, such as `head`, has enough. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _show_version(wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        typer.echo(f"icefloe {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command(
    epilog="Examples:\n\n"
    "  icefloe inspect weather/repo\n\n"
    "  icefloe inspect s3://bucket/weather/snapshots/1CECHNKREP0F1RSTCMT0 | jq .nodes"
)
def inspect(
    file: Annotated[
        str, typer.Argument(metavar="FILE_OR_URL", help="A metadata file of a repository.")
    ],
    *,
    refs: Annotated[
        bool, typer.Option(help="List every chunk reference, or only count them.")
    ] = True,
) -> None:
    """Print any metadata file of a repository as JSON, or say what is wrong with it.

    Snapshots, manifests, transaction logs, the file repo and its backups, ref.json, config.yaml.
    """
    root, _, name = file.rstrip("/").rpartition("/")
    if Path(file).is_dir():
        _fail(
            f"{file} is a directory; name a file in it, or see the repository with: "
            f"icefloe history {file}"
        )
    data = storage_from_url(root or ("/" if file.startswith("/") else ".")).get(name).data
    for piece in stream_json(describe_file(data, file, refs=refs)):
        sys.stdout.write(piece)
    sys.stdout.write("\n")
    sys.stdout.flush()


@app.command(epilog="Example:  icefloe history s3://bucket/weather --ref main --limit 20")
def history(
    repository: _Repository,
    *,
    ref: _Ref = "main",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many commits.")] = 100,
    as_json: _AsJson = False,
) -> None:
    """Show the commits of a repository, newest first."""
    entries = [
        entry
        for _, entry in zip(
            range(limit), fetch_history(open_refs(_open(repository)), ref), strict=False
        )
    ]
    if as_json:
        described = (
            describe_snapshot_info(entry.info)
            | {"branches": list(entry.branches), "tags": list(entry.tags)}
            for entry in entries
        )
        _print_json(described)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("snapshot", "written at (UTC)", "refs", "message"):
        table.add_column(column)
    for entry in entries:
        names = [Text(name, "green") for name in entry.branches]
        names += [Text(name, "yellow") for name in entry.tags]
        table.add_row(
            Text(str(entry.info.id), "cyan"),
            f"{entry.info.flushed_at:%Y-%m-%d %H:%M:%S}",
            Text(" ").join(names),
            Text(entry.info.message),
        )
    _console().print(table)


@app.command(epilog="Example:  icefloe tree weather --ref v1.0")
def tree(repository: _Repository, *, ref: _Ref = "main", as_json: _AsJson = False) -> None:
    """Show the groups and arrays of a repository."""
    storage = _open(repository)
    snapshot = fetch_snapshot(storage, open_refs(storage), ref)
    if as_json:
        _print_json(describe_node(node) for node in snapshot.nodes)
        return
    root = Tree(Text(f"{repository} at {ref}", "bold"))
    branches = {"/": root}
    for node in snapshot.nodes:
        if node.path.is_root:
            continue
        parent = node.path.parent
        # A hierarchy may lack the groups in between: then a node hangs from what there is.
        above = branches.get(str(parent), root)
        style = "bold blue" if node.kind is NodeKind.GROUP else ""
        label = Text(node.path.name, style)
        label.append(f"  {node_summary(node)}" if node.kind is NodeKind.ARRAY else "", "dim")
        branches[str(node.path)] = above.add(label)
    _console().print(root)
    if not snapshot.nodes:
        _console().print("(nothing in it yet)")


def _open(repository: str) -> Storage:
    return storage_from_url(repository)


def _print_json(items: object) -> None:
    for piece in stream_json(items):
        sys.stdout.write(piece)
    sys.stdout.write("\n")


def _console() -> Console:
    # A pipe has no width: what is read by a program must not be cut.
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


def _fail(message: str) -> NoReturn:
    raise StorageError(message)
