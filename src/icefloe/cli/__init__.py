"""The ``icefloe`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exit with installation advice if its packages are missing."""
    try:
        from icefloe.cli.app import run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f"the command line needs {error.name}: pip install 'icefloe[cli]'")
    run()
