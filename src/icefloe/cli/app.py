"""The command-line application: commands that read repositories, and error handling.

The logic of the commands is in `icefloe.inspection`. `pipeline_commands` has the commands that run
jobs, `sql_command` the one that runs a query, `convert_command` the one that converts repositories.
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
from icefloe.cli import convert_command, output, pipeline_commands, sql_command
from icefloe.cli.arguments import AsJson, Ref, RepositoryArgument  # noqa: TC001 - typer reads them
from icefloe.cli.output import print_json, print_renderable
from icefloe.display import escape_unsafe, format_container_name, format_size
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
app.add_typer(convert_command.commands)
app.add_typer(sql_command.commands)


def run() -> None:
    """Run the command line; errors print a message and exit with code 1."""
    # Terminals that cannot encode a character show its escape sequence.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reading process, such as `head`, closed the pipe. Python would raise again at exit.
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
def _parse_global_options(
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
    "  icefloe inspect weather/refs/branch.main/ref.json\n\n"
    "  icefloe inspect weather/state.json\n\n"
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

    Accepts all files of every generation except chunks: snapshots, manifests, attributes,
    transaction logs, references, config.yaml, state.json, conversion.json, and the repo file and
    its backups.
    """

    def read_file(file: str) -> bytes | memoryview:
        storage, name = _resolve_file(file)
        return inspection.fetch_metadata_file(storage, name, file)

    data = read_file(file)
    description = inspection.describe_layout_file(data, file, refs=refs, read_file=read_file)
    print_json(description or inspection.describe_file(data, file, refs=refs))


@app.command(epilog="Example:  icefloe history s3://bucket/weather --ref main --limit 20")
def history(
    repository: RepositoryArgument,
    *,
    ref: Ref = "main",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of commits.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Show the commits of a repository, newest first."""
    refs = open_refs(storage_from_url(repository)).opening_refs
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
    print_renderable(table)


@app.command(epilog="Example:  icefloe tree weather --ref v1.0")
def tree(repository: RepositoryArgument, *, ref: Ref = "main", as_json: AsJson = False) -> None:
    """Show the groups and arrays of a repository."""
    storage = storage_from_url(repository)
    refs = open_refs(storage).opening_refs
    snapshot = inspection.fetch_snapshot(storage, refs, ref)
    if as_json:
        print_json(describe_node(node, refs.generation) for node in snapshot.nodes)
        return
    root = Tree(Text(escape_unsafe(f"{repository} at {ref}"), "bold"))
    branches = {"/": root}
    for node in snapshot.nodes:
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
    if not snapshot.nodes:
        root.add(Text("(empty)", "dim"))
    print_renderable(root)


@app.command(
    epilog="Examples:\n\n"
    "  icefloe dependencies s3://bucket/weather\n\n"
    "  icefloe dependencies weather --ref v1.0 --files --json | jq -r .files[].location"
)
def dependencies(
    repository: RepositoryArgument,
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

    These files are not read. A byte range to which several chunks refer is counted once.
    """
    snapshot_id = None if ref is None else _resolve_snapshot_id(repository, ref)
    summary = _open_repository(repository).dependencies(snapshot_id=snapshot_id)
    if as_json:
        counts = ("num_files", "num_chunks", "num_arrays", "num_bytes")
        document: dict[str, object] = {name: getattr(summary, name) for name in counts}
        document["containers"] = [asdict(container) for container in summary.containers]
        if files:
            document["files"] = map(asdict, summary.files())
        print_json(document)
        return
    columns = ("files", "chunks", "arrays", "bytes")
    if files:
        rows = (
            (file.location, file.num_chunks, file.num_arrays, file.num_bytes)
            for file in summary.files()
        )
        output.print_rows(("location", *columns[1:]), rows)
        return
    table = output.make_table("container")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("")
    for container in summary.containers:
        is_authorized = container.is_authorized or container.url_prefix is None
        name = escape_unsafe(format_container_name(container))
        num_items = (container.num_files, container.num_chunks, container.num_arrays)
        table.add_row(
            Text(name, "cyan" if container.url_prefix else "dim"),
            *(f"{count:,}" for count in num_items),
            format_size(container.num_bytes),
            Text("" if is_authorized else "not authorized", "yellow"),
        )
    print_renderable(table if summary.containers else Text("no virtual chunks", "dim"))


@app.command(
    epilog="Examples:\n\n"
    "  icefloe dependents weather s3://archive/2019.nc\n\n"
    "  icefloe dependents weather s3://archive/2019/ && aws s3 rm --recursive s3://archive/2019/"
)
def dependents(
    repository: RepositoryArgument,
    location: Annotated[
        str,
        typer.Argument(metavar="LOCATION", help="URL of a file, or of a directory ending in /."),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Show which snapshots refer to a file outside the repository, to see if it may be deleted.

    Checks all snapshots in the history of branches and tags. The exit code is 0 if no snapshot
    refers to the file, and 3 otherwise.
    """
    result = _open_repository(repository).find_dependents(location)
    if as_json:
        print_json(
            {
                "location": result.location,
                "may_delete": result.may_delete,
                "snapshots": [
                    asdict(snapshot) | {"written_at": snapshot.written_at.isoformat()}
                    for snapshot in result.snapshots
                ],
            }
        )
    elif result.may_delete:
        print_renderable(Text(f"no snapshot refers to {escape_unsafe(location)}"))
    else:
        table = output.make_table("snapshot", "written at (UTC)", "refs", "message", "arrays")
        for snapshot in result.snapshots:
            table.add_row(
                Text(snapshot.id, "cyan"),
                f"{snapshot.written_at:%Y-%m-%d %H:%M:%S}",
                Text(escape_unsafe(" ".join([*snapshot.branches, *snapshot.tags])), "green"),
                Text(escape_unsafe(snapshot.message)),
                Text(escape_unsafe(", ".join(snapshot.arrays))),
            )
        print_renderable(table)
    if not result.may_delete:
        raise typer.Exit(3)


@app.command(
    epilog="Examples:\n\n"
    "  icefloe locations weather --prefix s3://archive/2019/\n\n"
    "  icefloe locations weather --array t2m --glob '*.nc' --json"
)
def locations(
    repository: RepositoryArgument,
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
    snapshot_id = _resolve_snapshot_id(repository, ref)
    session = _open_repository(repository).readonly_session(snapshot_id=snapshot_id)
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
    """Return the storage that contains a file, and its key there."""
    scheme, separator, host_and_path = file.partition("://")
    root, slash, name = file.rpartition("/")
    if os.path.isdir(file):  # noqa: PTH112 - unlike Path.is_dir, it never raises
        raise InvalidInputError(
            f"{file} is a directory; pass a file in it, or list the commits with: "
            f"icefloe history {file}"
        )
    if not name or (separator and "/" not in host_and_path.strip("/")):
        raise InvalidInputError(
            f"{file!r} is not a file: pass a file of a repository, such as weather/repo or "
            "s3://bucket/weather/repo"
        )
    if separator and scheme != "file":
        storage_from_url(file)  # rejects query strings: errors would print their signatures
        return storage_from_url(root), name
    # Symbolic links are followed, because the user named the file.
    path = file if not separator else storage_from_url(file).url.removeprefix("file://")
    folder, _, name = path.rpartition("/")
    return LocalStorage(folder or slash or ".", follow_symlinks=True), name


def _open_repository(repository: str) -> Repository:
    # Importing zarr takes longer than most commands.
    from icefloe.repository import Repository  # noqa: PLC0415

    return Repository.open(storage_from_url(repository))


def _resolve_snapshot_id(repository: str, ref: str) -> str:
    return str(resolve_ref(open_refs(storage_from_url(repository)).opening_refs, ref))


def _describe_ref(ref: VirtualRef) -> dict[str, object]:
    modified_at = None if ref.last_modified is None else ref.last_modified.isoformat()
    return asdict(ref) | {"index": list(ref.index), "last_modified": modified_at}
