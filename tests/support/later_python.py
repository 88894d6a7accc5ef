"""A separate environment with a later Python than the oldest we support, and so with Icechunk 2.x.

Looks for Python 3.12 or later on the machine and makes ``.venv-later`` beside the project once.
``python later_python.py COMMAND …`` runs a command in it, as ``make later`` does with the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-later"
_MINORS = range(20, 11, -1)


class NoLaterPythonError(Exception):
    """There is no Python that Icechunk 2.x runs on."""


@cache
def icechunk2_python() -> Path:
    """Return an interpreter that has Icechunk 2.x; makes its environment if need be."""
    if sys.version_info >= (3, 12):
        return Path(sys.executable)
    python = ENVIRONMENT / "bin" / "python"
    ready = ENVIRONMENT / ".ready"
    with _lock():
        # What it was made from; other changes of pyproject.toml need no minutes with pip.
        needed = _needed_packages()
        if not ready.exists() or ready.read_text() != needed:
            _run(_find(), "-m", "venv", "--clear", ENVIRONMENT)
            _run(python, "-m", "pip", "install", "--quiet", "--editable", f"{ROOT}[test]")
            ready.write_text(needed)
    return python


def _needed_packages() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return json.dumps([project["dependencies"], project["optional-dependencies"]])


def _find() -> Path:
    names = [f"python3.{minor}" for minor in _MINORS]
    found = [Path(path) for name in names if (path := shutil.which(name))]
    # Version managers keep interpreters where PATH does not look.
    managed = (os.environ.get("PYENV_ROOT", "~/.pyenv"), "~/.local/share/uv/python", "/opt/python")
    for base in managed:
        for name in names:
            found += sorted(Path(base).expanduser().glob(f"**/bin/{name}"))
    for candidate in found:
        # A version manager's shim may be in the PATH and stand for nothing.
        answer = subprocess.run(
            [candidate, "-c", "import sys, venv; print(sys.version_info >= (3, 12))"],
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.stdout.strip() == "True":
            return candidate
    raise NoLaterPythonError("no Python 3.12 or later was found on this machine")


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stdout}\n{done.stderr}")


class _lock:  # noqa: N801
    """Lets one of several test processes make the environment, and the others wait."""

    def __enter__(self) -> None:
        import fcntl  # noqa: PLC0415

        self._file = (ROOT / ".venv-later.lock").open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()


if __name__ == "__main__":
    try:
        later = icechunk2_python()
    except NoLaterPythonError as error:
        sys.stderr.write(f"!!! ICEFLOE WAS NOT TESTED WITH A LATER PYTHON: {error}\n")
        sys.exit(0)
    sys.exit(subprocess.run([later, *sys.argv[1:]], cwd=ROOT, check=False).returncode)
