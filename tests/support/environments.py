"""The two environments of the tests: ``.venv`` and ``.venv-oldest``.

``.venv`` has the newest libraries, with Icechunk 2.x, on Python 3.12 or later; the Makefile creates
it. ``.venv-oldest`` has Python 3.11 and the oldest libraries that ``pyproject.toml`` allows
(``tests/oldest.txt``), with Icechunk 1.1; this module creates it on first use.

``python environments.py COMMAND …`` runs a command with the interpreter of ``.venv-oldest``.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import ROOT
from support.find_python import find_python

if TYPE_CHECKING:
    from collections.abc import Iterator

MAIN, OLDEST = ROOT / ".venv", ROOT / ".venv-oldest"
_PINS = ROOT / "tests" / "oldest.txt"
_HAS_ICECHUNK_2 = "import sys; sys.exit(sys.version_info < (3, 12))"


class NoEnvironmentError(Exception):
    """The machine lacks the Python version of an environment."""


@cache
def icechunk1_python() -> Path:
    """Return an interpreter that has Icechunk 1.x."""
    return oldest_python() if _runs_icechunk_2(sys.executable) else Path(sys.executable)


@cache
def icechunk2_python() -> Path:
    """Return an interpreter that has Icechunk 2.x."""
    for python in (Path(sys.executable), MAIN / "bin" / "python"):
        if python.exists() and _runs_icechunk_2(python):
            return python
    raise NoEnvironmentError(f"neither this Python nor {MAIN} is Python 3.12 or later")


def _runs_icechunk_2(python: str | Path) -> bool:
    return subprocess.run([python, "-c", _HAS_ICECHUNK_2], check=False).returncode == 0


@cache
def oldest_python() -> Path:
    """Return the interpreter of ``.venv-oldest``; create or update the environment if needed."""
    python, ready = OLDEST / "bin" / "python", OLDEST / ".ready"
    with _lock():
        requirements = _read_requirements()
        if not ready.exists() or ready.read_text() != requirements:
            base = find_python("3.11")
            if base is None:
                raise NoEnvironmentError("Python 3.11 was not found on this machine")
            _run(base, "-m", "venv", "--clear", OLDEST)
            install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            _run(*install, "--editable", f"{ROOT}[test,demo]", "--constraint", _PINS)
            ready.write_text(requirements)
    return python


def _read_requirements() -> str:
    """Return the inputs of the environment; other changes of the project do not rebuild it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    inputs = [project["dependencies"], project["optional-dependencies"], _PINS.read_text()]
    return json.dumps(inputs)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stdout}\n{done.stderr}")


@contextmanager
def _lock() -> Iterator[None]:
    """Let one of several test processes create the environment while the others wait."""
    with (ROOT / ".venv-oldest.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Run a command with the oldest libraries, or print why that is impossible."""
    try:
        python = oldest_python()
    except NoEnvironmentError as error:
        sys.stderr.write(f"!!! THE OLDEST VERSIONS ARE NOT TESTED ON THIS MACHINE: {error}\n")
        return 0
    return subprocess.run([python, *sys.argv[1:]], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
