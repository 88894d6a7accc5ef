"""The ``convert`` command: convert a repository to another generation of the specification."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from icefloe.cli import arguments
from icefloe.cli.job_runner import Engine
from icefloe.cli.output import print_json
from icefloe.cli.progress import show_phases
from icefloe.cli.user_file import resolve_name
from icefloe.display import escape_unsafe
from icefloe.format.generation import GENERATIONS

commands = typer.Typer(rich_markup_mode="rich")


@commands.command(
    rich_help_panel="Jobs on Spark",
    epilog="Examples:\n\n"
    "  icefloe convert s3://bucket/weather s3://bucket/weather-draft --to draft\n\n"
    "  icefloe convert weather weather-v1 --to v1 --dry-run\n\n"
    "  icefloe convert weather small --to sequence --branch dev --newest\n\n"
    "  icefloe convert weather weather --to v2     # in place, between v1 and v2",
)
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            parser=resolve_name,
            help="Directory, URL or name of the repository.",
        ),
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="New directory or URL; must be empty.")
    ],
    *,
    to: Annotated[
        str, typer.Option(metavar="GENERATION", help=f"One of: {', '.join(GENERATIONS)}.")
    ],
    branch: Annotated[
        str | None,
        typer.Option("--branch", "-b", metavar="NAME", help="Convert only this branch."),
    ] = None,
    newest: Annotated[
        bool,
        typer.Option("--newest", help="Convert only the newest snapshot of the branch (or main)."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be converted and write nothing.")
    ] = False,
    as_json: arguments.AsJson = False,
    spark: Annotated[
        bool,
        arguments.execution_option("--spark", help="Copy chunk files on Spark, for many of them."),
    ] = False,
    master: arguments.Master = None,
    remote: arguments.Remote = None,
) -> None:
    """Convert a repository to another generation of the specification.

    Keeps branches, tags, history, attributes and data; the source does not change. What the
    generation cannot express is listed before anything is written. If it is interrupted, the same
    command continues it.
    """
    from icefloe.pipeline import convert_repository  # noqa: PLC0415 - imports zarr

    use_spark = spark or master is not None or remote is not None
    with (
        show_phases() as progress,
        Engine(master, remote, use_spark=use_spark).open_session() as session,
    ):
        report = convert_repository(
            source,
            target,
            to=to,
            branch=branch,
            newest=newest,
            spark=session,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        print_json(report.to_json())
        return
    for line in str(report).split("\n"):
        sys.stdout.write(escape_unsafe(line) + "\n")
