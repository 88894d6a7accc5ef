"""The commands ``dependencies``, ``dependents`` and ``locations``: files of virtual chunks."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from icefloe.cli import output
from icefloe.cli.arguments import AsJson, Ref, RepositoryArgument  # noqa: TC001 - typer reads them
from icefloe.cli.output import print_json, print_renderable
from icefloe.cli.repositories import open_repository, resolve_snapshot_id
from icefloe.display import escape_unsafe, format_container_name, format_size

if TYPE_CHECKING:
    from icefloe.containers.virtual_refs import VirtualRef

commands = typer.Typer(rich_markup_mode="rich")
_PANEL = "Virtual chunks"


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe dependencies s3://bucket/weather\n\n"
    "  icefloe dependencies weather --ref v1.0 --files --json | jq -r .files[].location",
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
    opened = open_repository(repository)
    snapshot_id = None if ref is None else resolve_snapshot_id(opened, ref)
    summary = opened.dependencies(snapshot_id=snapshot_id)
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


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe dependents weather s3://archive/2019.nc\n\n"
    "  icefloe dependents weather s3://archive/2019/ && aws s3 rm --recursive s3://archive/2019/",
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
    result = open_repository(repository).find_dependents(location)
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


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe locations weather --prefix s3://archive/2019/\n\n"
    "  icefloe locations weather --array t2m --glob '*.nc' --json",
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
    opened = open_repository(repository)
    session = opened.readonly_session(snapshot_id=resolve_snapshot_id(opened, ref))
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


def _describe_ref(ref: VirtualRef) -> dict[str, object]:
    modified_at = None if ref.last_modified is None else ref.last_modified.isoformat()
    return asdict(ref) | {"index": list(ref.index), "last_modified": modified_at}
