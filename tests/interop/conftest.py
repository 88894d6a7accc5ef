"""The real Icechunk, in its own process: a crash or a log of it is no crash or log of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Reader = Callable[[Path, str | None], dict[str, Any]]


def _reader(python: Path) -> Reader:
    def read(repository: Path, virtual_prefix: str | None = None) -> dict[str, Any]:
        script = Path(__file__).with_name("icechunk_reader.py")
        arguments = [repository] if virtual_prefix is None else [repository, virtual_prefix]
        done = subprocess.run(
            [python, script, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"Icechunk could not read it:\n{done.stderr[-4000:]}"
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return read


@pytest.fixture
def read_with_wheel() -> Reader:
    """Read a repository with the ``icechunk`` of this environment: 1.1.21 on Python 3.11."""
    return _reader(Path(sys.executable))


@pytest.fixture
def read_with_icechunk2(icechunk2: Path) -> Reader:
    """Read a repository with Icechunk 2.x."""
    return _reader(icechunk2)
