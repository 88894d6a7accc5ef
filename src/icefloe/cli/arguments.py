"""Arguments and options that commands share."""

from __future__ import annotations

from typing import Annotated

import typer

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
