"""The command ``icefloe``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say how to install what it needs."""
    try:
        from icefloe.cli.app import run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(
            f"the command line needs {error.name}, which is not installed: "
            "pip install 'icefloe[cli]'"
        )
    run()
