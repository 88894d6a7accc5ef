"""Arguments and options shared by several commands."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

import typer

from icefloe.cli.user_file import resolve_name


def parse_json(text: str) -> Any:
    """Parse the value of a JSON option."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"invalid JSON {text!r}: {error}") from error


json_option = partial(typer.Option, parser=parse_json, metavar="JSON")
execution_option = partial(typer.Option, rich_help_panel="Execution")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RepositoryArgument = Annotated[
    str,
    typer.Argument(
        metavar="REPOSITORY",
        parser=resolve_name,
        help="Directory, URL such as s3://bucket/prefix, gs://, az://, https://, or a name from "
        "the user file.",
    ),
]
Ref = Annotated[
    str, typer.Option("--ref", "-r", metavar="NAME", help="Branch, tag or snapshot id.")
]
Group = Annotated[
    str, typer.Option("--group", "-g", metavar="PATH", help="Path of the dataset's group.")
]
Containers = Annotated[
    list[str] | None,
    typer.Option(
        "--container",
        metavar="PREFIX",
        help="URL prefix or directory of virtual chunks to add and authorize; may be repeated.",
    ),
]
Master = Annotated[
    str | None,
    execution_option(
        metavar="URL", help="Spark cluster, such as spark://host:7077; by default all local cores."
    ),
]
Remote = Annotated[
    str | None,
    execution_option(metavar="URL", help="Spark Connect server, such as sc://host:15002."),
]
