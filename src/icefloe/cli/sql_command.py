"""The ``sql`` command: query a dataset with Spark SQL."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from icefloe.cli import arguments
from icefloe.cli.job_runner import Engine, show_progress
from icefloe.cli.output import make_table, print_json, print_renderable
from icefloe.display import escape_unsafe

commands = typer.Typer(rich_markup_mode="rich")


@commands.command(
    rich_help_panel="Jobs on Spark",
    epilog="Examples:\n\n"
    "  icefloe sql weather 'DESCRIBE data'\n\n"
    "  icefloe sql weather 'SELECT month(time), avg(t2m) FROM data GROUP BY 1 ORDER BY 1'\n\n"
    "  icefloe sql weather 'SELECT * FROM data' --sel '{\"lat\": 52.5, \"lon\": 12.5}' --json",
)
def sql(
    repository: arguments.RepositoryArgument,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Spark SQL; the dataset is the table `data`.")
    ],
    *,
    group: arguments.Group = "/",
    ref: arguments.Ref = "main",
    variables: Annotated[
        list[str] | None,
        typer.Option("--variable", metavar="NAME", help="Variable to read; may be repeated."),
    ] = None,
    sel: Annotated[
        Any,
        arguments.json_option(
            help='Labels to read, faster than WHERE; ranges as {"lat": {"start": 40, "stop": 60}}.'
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")
    ] = 100,
    containers: arguments.Containers = None,
    as_json: arguments.AsJson = False,
    master: arguments.Master = None,
    remote: arguments.Remote = None,
) -> None:
    """Query a dataset with SQL: a row per cell, a column per dimension and variable."""
    from icefloe import pipeline  # noqa: PLC0415 - imports zarr
    from icefloe.inspection.repository import resolve_ref  # noqa: PLC0415
    from icefloe.refs import open_refs  # noqa: PLC0415
    from icefloe.spark.sql_query import run_query  # noqa: PLC0415 - imports Arrow

    opened = pipeline.open_repository(repository, containers=containers or ())
    snapshot_id = str(resolve_ref(open_refs(opened.storage).opening_refs, ref))
    session = opened.readonly_session(snapshot_id=snapshot_id)
    scope = {"group": group, "variables": variables or None, "sel": sel}
    with (
        show_progress() as progress,
        Engine(master, remote, use_spark=True).open_session(progress.enter_phase) as spark,
    ):
        assert spark is not None  # noqa: S101 - because use_spark=True
        names, rows = run_query(spark, session, query, limit=limit + 1, progress=progress, **scope)
    if as_json:
        print_json([dict(zip(names, map(_to_json, row), strict=True)) for row in rows[:limit]])
    else:
        table = make_table(*names)
        for row in rows[:limit]:
            cells = ("NULL" if cell is None else str(cell) for cell in row)
            table.add_row(*(Text(escape_unsafe(cell)) for cell in cells))
        print_renderable(table)
    if len(rows) > limit:
        Console(stderr=True).print(f"[dim]first {limit} rows; use --limit for more[/]")


def _to_json(cell: object) -> object:
    return cell if isinstance(cell, bool | int | float | str | None) else str(cell)
