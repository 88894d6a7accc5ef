"""Commands that read repositories, and the exit of all commands.

Their logic is in `icefloe.inspection`. Commands that run jobs are in `pipeline_commands`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text
from rich.tree import Tree

from icefloe import __version__, inspection
from icefloe.cli import output, pipeline_commands, sql_command
from icefloe.cli.arguments import AsJson, Ref, RepositoryPlace  # noqa: TC001 - typer reads them
from icefloe.cli.output import escape_unsafe, print_json, print_out
from icefloe.display import container_name, format_size
from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.inspection.metadata_file import describe_node, describe_snapshot_info
from icefloe.inspection.repository import resolve_ref
from icefloe.model.node import NodeKind
from icefloe.refs import open_refs
from icefloe.storage import LocalStorage, Storage, storage_from_url

if TYPE_CHECKING:
    from icefloe.containers.virtual_refs import VirtualRef
    from icefloe.repository import Repository

app = typer.Typer(
    name="icefloe",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Transactional, versioned storage for Zarr arrays, in the Icechunk format.",
)
app.add_typer(pipeline_commands.commands)
app.add_typer(sql_command.commands)


def run() -> None:
    """Run the command line; errors print a message and exit with code 1."""
    # Terminals that cannot encode a character show its escape sequence.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Python would raise again at exit.
        _exit_with_failure()
    except (IcefloeError, OSError) as error:
        output.print_error(error.message if isinstance(error, IcefloeError) else str(error))
        _exit_with_failure()


def _exit_with_failure() -> None:
    """Exit with code 1 and discard buffered output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


def _show_version(requested: bool) -> None:  # noqa: FBT001
    if requested:
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
        str, typer.Argument(metavar="FILE_OR_URL", help="Metadata file of a repository.")
    ],
    *,
    refs: Annotated[
        bool, typer.Option(help="List all chunk references, or only count them.")
    ] = True,
) -> None:
    """Print a metadata file of a repository as JSON, or report what is wrong with it.

    Accepts snapshots, manifests, transaction logs, the repo file and its backups, ref.json and
    config.yaml.
    """
    storage, name = _resolve_file(file)
    data = inspection.fetch_metadata_file(storage, name, file)
    print_json(inspection.describe_file(data, file, refs=refs))


@app.command(epilog="Example:  icefloe history s3://bucket/weather --ref main --limit 20")
def history(
    repository: RepositoryPlace,
    *,
    ref: Ref = "main",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of commits.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Show the commits of a repository, newest first."""
    refs = open_refs(storage_from_url(repository)).at_opening
    entries = islice(inspection.fetch_history(refs, ref), limit)
    if as_json:
        print_json(
            describe_snapshot_info(entry.info)
            | {"branches": list(entry.branches), "tags": list(entry.tags)}
            for entry in entries
        )
        return
    table = output.make_table("snapshot", "written at (UTC)", "refs", "message")
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
    snapshot = inspection.fetch_snapshot(storage, open_refs(storage).at_opening, ref)
    if as_json:
        print_json(describe_node(node) for node in snapshot.nodes)
        return
    root = Tree(Text(escape_unsafe(f"{repository} at {ref}"), "bold"))
    branches = {"/": root}
    for node in snapshot.nodes:
        if node.path.is_root:
            continue
        # Groups in between may be missing: attach the node to the root.
        above = branches.get(str(node.path.parent), root)
        label = Text(
            escape_unsafe(node.path.name), "bold blue" if node.kind is NodeKind.GROUP else ""
        )
        if node.kind is NodeKind.ARRAY:
            label.append(f"  {escape_unsafe(inspection.node_summary(node))}", "dim")
        branches[str(node.path)] = above.add(label)
    if not snapshot.nodes:
        root.add(Text("(empty)", "dim"))
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
            help="Branch, tag or snapshot id; by default all history.",
        ),
    ] = None,
    files: Annotated[
        bool, typer.Option("--files", help="List files instead of containers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the files that virtual chunks of a repository refer to, and their containers.

    These files are not read. A byte range counts once, however many chunks refer to it.
    """
    opened = _open(repository)
    found = opened.dependencies(
        snapshot_id=None if ref is None else _resolve_snapshot_id(repository, ref)
    )
    if as_json:
        counts = ("num_files", "num_chunks", "num_arrays", "num_bytes")
        described: dict[str, object] = {name: getattr(found, name) for name in counts}
        described["containers"] = [asdict(container) for container in found.containers]
        if files:
            described["files"] = map(asdict, found.files())
        print_json(described)
        return
    columns = ("files", "chunks", "arrays", "bytes")
    if files:
        rows = (
            (file.location, file.num_chunks, file.num_arrays, file.num_bytes)
            for file in found.files()
        )
        output.print_rows(("location", *columns[1:]), rows)
        return
    table = output.make_table("container")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("")
    for item in found.containers:
        is_authorized = item.is_authorized or item.url_prefix is None
        table.add_row(
            Text(escape_unsafe(container_name(item)), "cyan" if item.url_prefix else "dim"),
            *(f"{count:,}" for count in (item.num_files, item.num_chunks, item.num_arrays)),
            format_size(item.num_bytes),
            Text("" if is_authorized else "not authorized", "yellow"),
        )
    print_out(table if found.containers else Text("no virtual chunks", "dim"))


@app.command(
    epilog="Examples:\n\n"
    "  icefloe dependents weather s3://archive/2019.nc\n\n"
    "  icefloe dependents weather s3://archive/2019/ && aws s3 rm --recursive s3://archive/2019/"
)
def dependents(
    repository: RepositoryPlace,
    location: Annotated[
        str,
        typer.Argument(metavar="LOCATION", help="URL of a file, or of a directory ending in /."),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Show which snapshots refer to a file outside the repository, and so whether to keep it.

    Checks all snapshots in the history of branches and tags. Exits with 0 if none refers to the
    file, and with 3 if one does.
    """
    found = _open(repository).find_dependents(location)
    if as_json:
        print_json(
            {
                "location": found.location,
                "may_delete": found.may_delete,
                "snapshots": [
                    asdict(snapshot) | {"written_at": snapshot.written_at.isoformat()}
                    for snapshot in found.snapshots
                ],
            }
        )
    elif found.may_delete:
        print_out(Text(f"no snapshot refers to {escape_unsafe(location)}"))
    else:
        table = output.make_table("snapshot", "written at (UTC)", "refs", "message", "arrays")
        for snapshot in found.snapshots:
            table.add_row(
                Text(snapshot.id, "cyan"),
                f"{snapshot.written_at:%Y-%m-%d %H:%M:%S}",
                Text(escape_unsafe(" ".join([*snapshot.branches, *snapshot.tags])), "green"),
                Text(escape_unsafe(snapshot.message)),
                Text(escape_unsafe(", ".join(snapshot.arrays))),
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
        str | None, typer.Option(metavar="PATH", help="Array, or group of arrays.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="URL", help="Prefix of the location.")
    ] = None,
    glob: Annotated[str | None, typer.Option(help="Shell pattern with *, ? and […].")] = None,
    regex: Annotated[str | None, typer.Option(help="Regular expression to search for.")] = None,
    container: Annotated[
        str | None, typer.Option(metavar="NAME", help="Container name or URL prefix.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all chunks with byte ranges, as JSON.")
    ] = False,
) -> None:
    """List the distinct locations of virtual chunks."""
    opened = _open(repository)
    session = opened.readonly_session(snapshot_id=_resolve_snapshot_id(repository, ref))
    query = {
        "array_path": array,
        "prefix": prefix,
        "glob": glob,
        "regex": regex,
        "container": container,
    }
    if as_json:
        print_json(map(_describe_ref, session.virtual_refs(**query)))
        return
    for location in sorted(session.virtual_locations(**query)):
        sys.stdout.write(escape_unsafe(location) + "\n")


def _resolve_file(file: str) -> tuple[Storage, str]:
    """Return the storage that contains a file, and its name there."""
    scheme, separator, rest = file.partition("://")
    root, slash, name = file.rpartition("/")
    if os.path.isdir(file):  # noqa: PTH112 - unlike Path.is_dir, it never raises
        raise InvalidInputError(
            f"{file} is a directory; give a file in it, or inspect the repository with: "
            f"icefloe history {file}"
        )
    if not name or (separator and "/" not in rest.strip("/")):
        raise InvalidInputError(
            f"{file!r} is not a file: give a file of a repository, such as weather/repo or "
            "s3://bucket/weather/repo"
        )
    if separator and scheme != "file":
        storage_from_url(file)  # refuses queries, which may be signatures: names are printed
        return storage_from_url(root), name
    # Symbolic links are followed: the user named the file.
    path = file if not separator else storage_from_url(file).url.removeprefix("file://")
    folder, _, name = path.rpartition("/")
    return LocalStorage(folder or slash or ".", follow_symlinks=True), name


def _open(repository: str) -> Repository:
    # Imports zarr, which takes longer than most commands.
    from icefloe.repository import Repository  # noqa: PLC0415

    return Repository.open(storage_from_url(repository))


def _resolve_snapshot_id(repository: str, ref: str) -> str:
    return str(resolve_ref(open_refs(storage_from_url(repository)).at_opening, ref))


def _describe_ref(ref: VirtualRef) -> dict[str, object]:
    modified_at = None if ref.last_modified is None else ref.last_modified.isoformat()
    return asdict(ref) | {"index": list(ref.index), "last_modified": modified_at}
