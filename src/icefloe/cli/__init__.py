"""The ``icefloe`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; if its dependencies are missing, exit with an install command."""
    try:
        from icefloe.cli.app import run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f"the command line needs {error.name}: pip install 'icefloe[cli]'")
    run()
