"""The real Icechunk, in its own process: a crash or a log of it is no crash or log of ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import SUPPORT, warm_python
from support.interop_alternation import Setting
from support.interop_participant import Wheel, start_wheel

Reader = Callable[[Path, str | None], dict[str, Any]]


def _reader(python: Path) -> Reader:
    def read(repository: Path, virtual_prefix: str | None = None) -> dict[str, Any]:
        script = SUPPORT / "icechunk_reader.py"
        arguments = [repository] if virtual_prefix is None else [repository, virtual_prefix]
        done = warm_python.run(python, script, *arguments)
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


# The wheel of this environment is 1.1.21 on Python 3.11, and else the later one anyway.
SETTINGS = [("this", 1)] * (sys.version_info < (3, 12)) + [("later", 1), ("later", 2)]


@pytest.fixture(scope="session")
def wheel_here() -> Iterator[Wheel]:
    """Let the ``icechunk`` of this environment take part."""
    with start_wheel(Path(sys.executable)) as wheel:
        yield wheel


@pytest.fixture(scope="session")
def wheel_later(icechunk2: Path) -> Iterator[Wheel]:
    """Let Icechunk 2.x take part."""
    with start_wheel(icechunk2) as wheel:
        yield wheel


@pytest.fixture(params=SETTINGS, ids=lambda setting: f"{setting[0]}-v{setting[1]}")
def setting(request: pytest.FixtureRequest) -> Setting:
    """Combine each version of Icechunk with each version of the format that it knows."""
    name, spec_version = request.param
    wheel = request.getfixturevalue("wheel_here" if name == "this" else "wheel_later")
    return Setting(wheel, spec_version)


@pytest.fixture
def setting_v2(wheel_later: Wheel) -> Setting:
    """Take the one setting in which nodes can be moved and commits amended."""
    return Setting(wheel_later, 2)
