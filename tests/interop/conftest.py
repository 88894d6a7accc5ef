"""The real Icechunk, in its own process: a crash or a log of it is no crash or log of ours."""

from __future__ import annotations

import json
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
def read_with_icechunk1(icechunk1: Path) -> Reader:
    """Read a repository with Icechunk 1.x."""
    return _reader(icechunk1)


@pytest.fixture
def read_with_icechunk2(icechunk2: Path) -> Reader:
    """Read a repository with Icechunk 2.x."""
    return _reader(icechunk2)


SETTINGS = [("icechunk1", 1), ("icechunk2", 1), ("icechunk2", 2)]


@pytest.fixture(scope="session")
def participant1(icechunk1: Path) -> Iterator[Wheel]:
    """Start Icechunk 1.x as a participant."""
    with start_wheel(icechunk1) as wheel:
        yield wheel


@pytest.fixture(scope="session")
def participant2(icechunk2: Path) -> Iterator[Wheel]:
    """Start Icechunk 2.x as a participant."""
    with start_wheel(icechunk2) as wheel:
        yield wheel


@pytest.fixture(params=SETTINGS, ids=lambda setting: f"{setting[0]}-v{setting[1]}")
def setting(request: pytest.FixtureRequest) -> Setting:
    """Combine each version of Icechunk with each version of the format that it knows."""
    name, spec_version = request.param
    wheel = request.getfixturevalue("participant1" if name == "icechunk1" else "participant2")
    return Setting(wheel, spec_version)


@pytest.fixture
def setting_v2(participant2: Wheel) -> Setting:
    """Take the one setting in which nodes can be moved and commits amended."""
    return Setting(participant2, 2)
