"""Run scripts in processes forked from one that has already imported zarr and icefloe.

`run` is ``subprocess.run([python, *arguments])`` for scripts, ``-c`` and ``-m`` without the second
that imports take. The parent has done nothing but import: it has no threads, event loop or
connections. There is one parent per interpreter, which lives as long as the calling process. Not
for tests of imports.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

# Not Icechunk: it starts threads when imported, which do not survive a fork.
_IMPORTS = ("zarr", "icefloe.repository")
# A script that hangs is killed, which gives an exit code.
_MAX_SECONDS = 300


def run(python: str | Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script as a process and return its exit code and outputs.

    It can import from its own folder, and `support` itself.
    """
    command = [str(argument) for argument in arguments]
    parent = _parent(str(python), os.getpid())
    with tempfile.TemporaryDirectory(prefix="icefloe-run-") as folder:
        out, errors = Path(folder, "out"), Path(folder, "errors")
        task = {
            "arguments": command,
            "folder": str(Path.cwd()),
            "environment": dict(os.environ),
            "outputs": [str(out), str(errors)],
        }
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(json.dumps(task) + "\n")
        parent.stdin.flush()
        answer = parent.stdout.readline()
        assert answer, f"{python} failed to import {_IMPORTS}"
        code = int(answer)
        texts = [file.read_text("utf-8", errors="replace") for file in (out, errors)]
    return subprocess.CompletedProcess([str(python), *command], code, *texts)


@cache
def _parent(python: str, _pid: int) -> subprocess.Popen[str]:
    """Start the parent; forked processes get another one, by their process id."""
    parent = subprocess.Popen(
        [python, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, parent)
    return parent


def _end(parent: subprocess.Popen[str]) -> None:
    with parent:  # closing its input stops it
        pass


def _serve() -> None:
    for name in _IMPORTS:
        with suppress(ModuleNotFoundError):
            import_module(name)
    while line := sys.stdin.readline():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # OpenBLAS threads survive forks
            child = os.fork()
        if child == 0:
            _become(json.loads(line))
            if "icechunk" in sys.modules:
                # Icechunk's threads may call Python while it shuts down, which aborts the process.
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(task: dict[str, object]) -> None:
    """Run the script of a task in this forked process."""
    arguments, outputs, environment = task["arguments"], task["outputs"], task["environment"]
    assert isinstance(arguments, list)
    assert isinstance(outputs, list)
    assert isinstance(environment, dict)
    signal.alarm(_MAX_SECONDS)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in enumerate(outputs, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(str(task["folder"]))
    os.environ.clear()
    os.environ.update(environment)
    match arguments:
        case ["-c", code, *rest]:
            sys.argv = ["-c", *rest]
            sys.path.insert(0, "")
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
        case ["-m", module, *rest]:
            sys.argv = [module, *rest]
            sys.path.insert(0, "")
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *rest]:
            sys.argv = [script, *rest]
            sys.path[:0] = [str(Path(script).parent), str(Path(__file__).parents[1])]
            runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _serve()
