"""Both generations, and the real Icechunk in its own process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import SUPPORT, warm_python

Operation = tuple[str, dict[str, Any]]
Icechunk = Callable[..., list[Any]]

SCRIPT = SUPPORT / "icechunk_maintenance.py"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def spec_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


@pytest.fixture(params=["wheel-v1", "icechunk2-v1", "icechunk2-v2"])
def icechunk_and_version(request: pytest.FixtureRequest) -> tuple[Icechunk, int]:
    """Return a function that runs operations with the real Icechunk, and a generation for it.

    The wheel is that of this environment: 1.1.21 on Python 3.11.
    """
    which, _, version = request.param.partition("-v")
    if which == "icechunk2":
        return _runner(request.getfixturevalue("icechunk2")), int(version)
    return _runner(Path(sys.executable)), int(version)


@pytest.fixture
def run_icechunk2(icechunk2: Path) -> Icechunk:
    """Return a function that runs operations with Icechunk 2.x."""
    return _runner(icechunk2)


@pytest.fixture
def run_wheel() -> Icechunk:
    """Return a function that runs operations with the wheel of this environment."""
    return _runner(Path(sys.executable))


def _runner(python: Path) -> Icechunk:
    def run(root: Path, *operations: Operation) -> list[Any]:
        done = warm_python.run(python, SCRIPT, root, json.dumps(operations, default=str))
        assert done.returncode == 0, f"Icechunk failed:\n{done.stderr[-4000:]}"
        answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
        return answers

    return run
