"""The commands that look into repositories, and how all commands end.

No logic: that is in `icefloe.inspection`. Those that start jobs are in `pipeline_commands`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from icefloe import __version__
from icefloe.cli import pipeline_commands, sql_command
from icefloe.cli.arguments import AsJson, Ref, RepositoryPlace  # noqa: TC001 - typer reads them
from icefloe.cli.output import escape_unsafe, print_json, print_out, print_rows
from icefloe.display import container_name, format_size
from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.inspection import (
    describe_file,
    fetch_history,
    fetch_metadata_file,
    fetch_snapshot,
    node_summary,
)
from icefloe.inspection.metadata_file import describe_node, describe_snapshot_info
from icefloe.inspection.repository import resolve_ref
from icefloe.model.node import NodeKind
from icefloe.refs import open_refs
from icefloe.storage import LocalStorage, Storage, storage_from_url

if TYPE_CHECKING:
    from icefloe.containers.dependencies import Dependencies
    from icefloe.containers.virtual_refs import VirtualRef
    from icefloe.repository import Repository

app = typer.Typer(
    name="icefloe",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="A transactional, versioned store for Zarr arrays, in the format of Icechunk.",
)
app.add_typer(pipeline_commands.commands)
app.add_typer(sql_command.commands)


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
    lines = "\n".join(map(escape_unsafe, message.split("\n")))
    Console(stderr=True).print(
        f"[bold red]error:[/] {escape(lines)}", soft_wrap=True, highlight=False
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
    print_json(describe_file(data, file, refs=refs))


@app.command(epilog="Example:  icefloe history s3://bucket/weather --ref main --limit 20")
def history(
    repository: RepositoryPlace,
    *,
    ref: Ref = "main",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many commits.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Show the commits of a repository, newest first."""
    entries = islice(fetch_history(open_refs(storage_from_url(repository)).at_opening, ref), limit)
    if as_json:
        print_json(
            describe_snapshot_info(entry.info)
            | {"branches": list(entry.branches), "tags": list(entry.tags)}
            for entry in entries
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("snapshot", "written at (UTC)", "refs", "message"):
        table.add_column(column)
    for entry in entries:
        names = [Text(escape_unsafe(name), "green") for name in entry.branches]
        names += [Text(escape_unsafe(name), "yellow") for name in entry.tags]
        table.add_row(
            Text(str(entry.info.id), "cyan"),
            f"{entry.info.flushed_at:%Y-%m-%d %H:%M:%S}",
            Text(" ").join(names),
            Text(escape_unsafe(entry.info.message)),
        )
    print_out(table)


@app.command(epilog="Example:  icefloe tree weather --ref v1.0")
def tree(repository: RepositoryPlace, *, ref: Ref = "main", as_json: AsJson = False) -> None:
    """Show the groups and arrays of a repository."""
    storage = storage_from_url(repository)
    snapshot = fetch_snapshot(storage, open_refs(storage).at_opening, ref)
    if as_json:
        print_json(describe_node(node) for node in snapshot.nodes)
        return
    root = Tree(Text(escape_unsafe(f"{repository} at {ref}"), "bold"))
    branches = {"/": root}
    for node in snapshot.nodes:
        if node.path.is_root:
            continue
        # A hierarchy may lack the groups in between: then a node hangs from what there is.
        above = branches.get(str(node.path.parent), root)
        label = Text(
            escape_unsafe(node.path.name), "bold blue" if node.kind is NodeKind.GROUP else ""
        )
        if node.kind is NodeKind.ARRAY:
            label.append(f"  {escape_unsafe(node_summary(node))}", "dim")
        branches[str(node.path)] = above.add(label)
    if not snapshot.nodes:
        root.add(Text("(nothing in it yet)", "dim"))
    print_out(root)


@app.command(
    epilog="Examples:\n\n"
    "  icefloe dependencies s3://bucket/weather\n\n"
    "  icefloe dependencies weather --ref v1.0 --files --json | jq -r .files[].location"
)
def dependencies(
    repository: RepositoryPlace,
    *,
    ref: Annotated[
        str | None,
        typer.Option(
            "--ref",
            "-r",
            metavar="NAME",
            help="Only of a branch, a tag or a snapshot id; else of all history.",
        ),
    ] = None,
    files: Annotated[
        bool, typer.Option("--files", help="List every file, not only containers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the files outside a repository that its virtual chunks are in, and their containers.

    Those files are not read. A range of a file counts once, however many chunks refer to it.
    """
    found = _dependencies(repository, ref)
    if as_json:
        described: dict[str, object] = {
            "num_files": found.num_files,
            "num_chunks": found.num_chunks,
            "num_arrays": found.num_arrays,
            "num_bytes": found.num_bytes,
            "containers": [asdict(one) for one in found.containers],
        }
        if files:
            described["files"] = map(asdict, found.files())
        print_json(described)
        return
    columns = ("files", "chunks", "arrays", "bytes")
    if files:
        rows = (
            (one.location, one.num_chunks, one.num_arrays, one.num_bytes) for one in found.files()
        )
        print_rows(("location", *columns[1:]), rows)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("container")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("")
    for one in found.containers:
        table.add_row(
            Text(escape_unsafe(container_name(one)), "cyan" if one.url_prefix else "dim"),
            *(f"{count:,}" for count in (one.num_files, one.num_chunks, one.num_arrays)),
            format_size(one.num_bytes),
            Text("" if one.is_authorized or one.url_prefix is None else "not authorised", "yellow"),
        )
    if found.containers:
        print_out(table)
    else:
        print_out(Text("no virtual chunks", "dim"))


@app.command(
    epilog="Examples:\n\n"
    "  icefloe dependents weather s3://archive/2019.nc\n\n"
    "  icefloe dependents weather s3://archive/2019/ && aws s3 rm --recursive s3://archive/2019/"
)
def dependents(
    repository: RepositoryPlace,
    location: Annotated[
        str,
        typer.Argument(
            metavar="LOCATION", help="The URL of a file, or with / at the end a folder."
        ),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Show who refers to a file outside the repository: whether it may be deleted.

    Every snapshot that a branch or a tag has in its history counts. Exits with 0 if nobody refers
    to the file, and with 3 if somebody does.
    """
    found = _open(repository).find_dependents(location)
    if as_json:
        print_json(
            {
                "location": found.location,
                "may_delete": found.may_delete,
                "snapshots": [
                    asdict(one) | {"written_at": one.written_at.isoformat()}
                    for one in found.snapshots
                ],
            }
        )
    elif found.may_delete:
        print_out(Text(f"nobody refers to {escape_unsafe(location)}"))
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("snapshot", "written at (UTC)", "refs", "message", "arrays"):
            table.add_column(column)
        for one in found.snapshots:
            table.add_row(
                Text(one.id, "cyan"),
                f"{one.written_at:%Y-%m-%d %H:%M:%S}",
                Text(escape_unsafe(" ".join([*one.branches, *one.tags])), "green"),
                Text(escape_unsafe(one.message)),
                Text(escape_unsafe(", ".join(one.arrays))),
            )
        print_out(table)
    if not found.may_delete:
        raise typer.Exit(3)


@app.command(
    epilog="Examples:\n\n"
    "  icefloe locations weather --prefix s3://archive/2019/\n\n"
    "  icefloe locations weather --array t2m --glob '*.nc' --json"
)
def locations(
    repository: RepositoryPlace,
    *,
    ref: Ref = "main",
    array: Annotated[
        str | None, typer.Option("--array", metavar="PATH", help="An array, or a group of arrays.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="URL", help="What the location begins with.")
    ] = None,
    glob: Annotated[
        str | None, typer.Option("--glob", help="What it looks like: *, ? and […] as in a shell.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option("--regex", help="A regular expression that is found in it.")
    ] = None,
    container: Annotated[
        str | None, typer.Option("--container", metavar="NAME", help="A container, or its prefix.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every chunk with its range, as JSON.")
    ] = False,
) -> None:
    """List the locations of virtual chunks, each once."""
    opened = _open(repository)
    session = opened.readonly_session(snapshot_id=_snapshot_id(repository, ref))
    query = {
        "array_path": array,
        "prefix": prefix,
        "glob": glob,
        "regex": regex,
        "container": container,
    }
    if as_json:
        print_json(map(_described_ref, session.virtual_refs(**query)))
        return
    for location in sorted(session.virtual_locations(**query)):
        sys.stdout.write(escape_unsafe(location) + "\n")


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
        storage_from_url(file)  # refuses a query: it may be a signature, and names are shown
        return storage_from_url(root), name
    # Whoever names a file may mean what a link points at.
    path = file if not separator else storage_from_url(file).url.removeprefix("file://")
    folder, _, name = path.rpartition("/")
    return LocalStorage(folder or slash or ".", follow_symlinks=True), name


def _open(repository: str) -> Repository:
    # It brings zarr along, which takes longer to load than most commands run.
    from icefloe.repository import Repository  # noqa: PLC0415

    return Repository.open(storage_from_url(repository))


def _dependencies(repository: str, ref: str | None) -> Dependencies:
    opened = _open(repository)
    if ref is None:
        return opened.dependencies()
    return opened.dependencies(snapshot_id=_snapshot_id(repository, ref))


def _snapshot_id(repository: str, ref: str) -> str:
    return str(resolve_ref(open_refs(storage_from_url(repository)).at_opening, ref))


def _described_ref(ref: VirtualRef) -> dict[str, object]:
    time = ref.last_modified
    return asdict(ref) | {
        "index": list(ref.index),
        "last_modified": None if time is None else time.isoformat(),
    }
