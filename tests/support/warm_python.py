"""Scripts in processes of their own, without the second of imports that each would begin with.

`run` is ``subprocess.run([python, *arguments])`` for scripts, ``-c`` and ``-m``. The process is
forked from one that has imported zarr and icefloe, and done nothing else: it has none of their
threads, no event loop and no connection. One such parent stays for each interpreter, as long as the
process that asked for it. A test of imports themselves has no use for this.
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

# What the scripts begin with. Not Icechunk: its threads start with it, and are lost in a fork.
_IMPORTS = ("zarr", "icefloe.repository")
# Whoever hangs is ended by the system, which is an exit code as any other.
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
        assert answer, f"{python} ended while it imported {_IMPORTS}"
        code = int(answer)
        texts = [file.read_text("utf-8", errors="replace") for file in (out, errors)]
    return subprocess.CompletedProcess([str(python), *command], code, *texts)


@cache
def _parent(python: str, _pid: int) -> subprocess.Popen[str]:
    """Start the process that forks; a process that was itself forked has one of its own."""
    parent = subprocess.Popen(
        [python, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, parent)
    return parent


def _end(parent: subprocess.Popen[str]) -> None:
    with parent:  # closes its input, which ends it
        pass


def _serve() -> None:
    for name in _IMPORTS:
        with suppress(ModuleNotFoundError):
            import_module(name)
    while line := sys.stdin.readline():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the threads of OpenBLAS are made for this
            child = os.fork()
        if child == 0:
            _become(json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(task: dict[str, object]) -> None:
    """Be the process that was asked for, from its first line to its end."""
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
