"""Options and questions of commands that delete or move something."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from icefloe.errors import InvalidInputError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")
]


def require_confirmation(question: str, *, yes: bool) -> None:
    """Ask on the terminal, and exit with code 1 unless the answer is yes.

    Without a terminal, ``yes`` is required.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInputError(
            f"not confirmed: {question} Standard input is not a terminal: pass --yes to confirm, "
            "or --dry-run to see what would change"
        )
    typer.confirm(question, abort=True, err=True)
