"""Arguments and options that commands share."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer

WHERE_IT_RUNS: Final = "Where it runs"
"""The panel of options about Spark."""


def read_json(text: str) -> Any:
    """Read an option that is JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no JSON: {error}") from error


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
RepositoryPlace = Annotated[
    str,
    typer.Argument(
        metavar="REPOSITORY",
        help="A directory, or a URL such as s3://bucket/prefix, gs://, az://, https://.",
    ),
]
Ref = Annotated[
    str, typer.Option("--ref", "-r", metavar="NAME", help="A branch, a tag or a snapshot id.")
]
Group = Annotated[
    str,
    typer.Option("--group", "-g", metavar="PATH", help="The dataset's place in the repository."),
]
Containers = Annotated[
    list[str] | None,
    typer.Option(
        "--container",
        metavar="PREFIX",
        help="A URL prefix or folder that virtual chunks may be in: is added, and may be read.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        rich_help_panel=WHERE_IT_RUNS,
        help="A Spark cluster, as spark://host:7077; else all cores of this machine.",
    ),
]
Remote = Annotated[
    str | None,
    typer.Option(
        "--remote",
        metavar="URL",
        rich_help_panel=WHERE_IT_RUNS,
        help="A Spark Connect server, as sc://host:15002.",
    ),
]
