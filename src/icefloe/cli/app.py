"""The command-line application: global options, error handling and exit codes.

`command_table` lists the commands; a module for each family has their options and output. The work
is done by methods of `Repository` and `Session` and by functions of the packages below.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Final

import typer

from icefloe import __version__
from icefloe.cli import output
from icefloe.cli.lazy_group import LazyGroup
from icefloe.errors import ConflictError, IcefloeError

EXIT_FAILURE: Final = 1
EXIT_CONFLICT: Final = 4

app = typer.Typer(
    name="icefloe",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Transactional, versioned storage for Zarr arrays, in the Icechunk format.",
    epilog="Exit codes: 0 success, 1 failure, 2 wrong usage, 3 files are still in use "
    "(dependents), 4 another writer committed first, 130 interrupted.",
)


def run() -> None:
    """Run the command line; errors print a message and exit with a code above 0."""
    # Terminals that cannot encode a character show its escape sequence.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reading process, such as `head`, closed the pipe. Python would raise again at exit.
        _exit(EXIT_FAILURE)
    except (IcefloeError, OSError) as error:
        output.print_error(error.message if isinstance(error, IcefloeError) else str(error))
        _exit(EXIT_CONFLICT if isinstance(error, ConflictError) else EXIT_FAILURE)


def _exit(code: int) -> None:
    """Exit and discard buffered output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


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
