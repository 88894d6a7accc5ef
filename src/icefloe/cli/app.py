"""The commands, their help and their output. No logic: that is in `icefloe.inspection`."""

from __future__ import annotations

import os
import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from icefloe import __version__
from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.inspection import (
    describe_file,
    fetch_history,
    fetch_metadata_file,
    fetch_snapshot,
    node_summary,
    stream_json,
)
from icefloe.inspection.metadata_file import describe_node, describe_snapshot_info
from icefloe.model.node import NodeKind
from icefloe.refs import open_refs
from icefloe.storage import LocalStorage, Storage, storage_from_url

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    """Run the command line; what goes wrong is a message and exit code 1, never a traceback."""
    # A terminal that cannot show a letter shows its number.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us, such as `head`, has enough. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except IcefloeError as error:
        _fail(error.message)
    except OSError as error:
        _fail(str(error))


def _fail(message: str) -> None:
    Console(stderr=True).print(
        f"[bold red]error:[/] {escape(_printable(message))}", soft_wrap=True, highlight=False
    )
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left has no reader
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
    storage, name = _split(file)
    data = fetch_metadata_file(storage, name, file)
    _print_json(describe_file(data, file, refs=refs))


@app.command(epilog="Example:  icefloe history s3://bucket/weather --ref main --limit 20")
def history(
    repository: _Repository,
    *,
    ref: _Ref = "main",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many commits.")] = 100,
    as_json: _AsJson = False,
) -> None:
    """Show the commits of a repository, newest first."""
    entries = islice(fetch_history(open_refs(storage_from_url(repository)).at_opening, ref), limit)
    if as_json:
        _print_json(
            describe_snapshot_info(entry.info)
            | {"branches": list(entry.branches), "tags": list(entry.tags)}
            for entry in entries
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("snapshot", "written at (UTC)", "refs", "message"):
        table.add_column(column)
    for entry in entries:
        names = [Text(_printable(name), "green") for name in entry.branches]
        names += [Text(_printable(name), "yellow") for name in entry.tags]
        table.add_row(
            Text(str(entry.info.id), "cyan"),
            f"{entry.info.flushed_at:%Y-%m-%d %H:%M:%S}",
            Text(" ").join(names),
            Text(_printable(entry.info.message)),
        )
    _print(table)


@app.command(epilog="Example:  icefloe tree weather --ref v1.0")
def tree(repository: _Repository, *, ref: _Ref = "main", as_json: _AsJson = False) -> None:
    """Show the groups and arrays of a repository."""
    storage = storage_from_url(repository)
    snapshot = fetch_snapshot(storage, open_refs(storage).at_opening, ref)
    if as_json:
        _print_json(describe_node(node) for node in snapshot.nodes)
        return
    root = Tree(Text(_printable(f"{repository} at {ref}"), "bold"))
    branches = {"/": root}
    for node in snapshot.nodes:
        if node.path.is_root:
            continue
        # A hierarchy may lack the groups in between: then a node hangs from what there is.
        above = branches.get(str(node.path.parent), root)
        label = Text(_printable(node.path.name), "bold blue" if node.kind is NodeKind.GROUP else "")
        if node.kind is NodeKind.ARRAY:
            label.append(f"  {_printable(node_summary(node))}", "dim")
        branches[str(node.path)] = above.add(label)
    if not snapshot.nodes:
        root.add(Text("(nothing in it yet)", "dim"))
    _print(root)


def _split(file: str) -> tuple[Storage, str]:
    """Find the storage that a file is in, and its name there."""
    scheme, separator, rest = file.partition("://")
    root, slash, name = file.rpartition("/")
    if os.path.isdir(file):  # noqa: PTH112 - unlike Path.is_dir, it never raises
        raise InvalidInputError(
            f"{file} is a directory; name a file in it, or see the repository with: "
            f"icefloe history {file}"
        )
    if not name or (separator and "/" not in rest.strip("/")):
        raise InvalidInputError(
            f"{file!r} names no file: give one of a repository, such as weather/repo or "
            "s3://bucket/weather/repo"
        )
    if separator and scheme != "file":
        return storage_from_url(root), name
    # Whoever names a file may mean what a link points at.
    path = file if not separator else storage_from_url(file).url.removeprefix("file://")
    folder, _, name = path.rpartition("/")
    return LocalStorage(folder or slash or ".", follow_symlinks=True), name


def _print(renderable: RenderableType) -> None:
    # A pipe has no width: what a program reads is neither folded nor padded.
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def _print_json(value: object) -> None:
    for piece in stream_json(value):
        sys.stdout.write(piece)
    sys.stdout.write("\n")


def _printable(text: str) -> str:
    """Spell out control characters: a commit message must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )
