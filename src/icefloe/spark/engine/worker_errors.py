"""Explains errors that Spark raises, without the tracebacks of workers and the JVM."""

from __future__ import annotations

import re
import sys
from typing import Final

_EXCEPTION_LINE: Final = re.compile(r"(?!SQLSTATE)[A-Za-z_][\w.]*: ")
"""The last line of a traceback."""

_OWN_ERROR: Final = re.compile(r"^icefloe\.errors\.\w+: ")
_MISSING_MODULE: Final = re.compile(r"No module named '?([\w.]+)")
_MISSING_PYTHON: Final = re.compile(r'Cannot run program "([^"]*)"')
_WORKER_VERSION: Final = re.compile(r"Python in worker has different version: (\S+)")
_SETTING: Final = "PYSPARK_PYTHON, or spark.pyspark.python"


def find_setup_problem(error: Exception) -> str | None:
    """Explain an error of workers with another Python, or without a package; None for others."""
    text = str(error)
    if match := _WORKER_VERSION.search(text):
        version = ".".join(map(str, sys.version_info[:2]))
        return (
            f"the workers run Python {match[1].strip('().,')}, but this process runs {version}: "
            f"set {_SETTING}, to a Python {version} that all workers have, with icefloe"
        )
    if match := _MISSING_PYTHON.search(text):
        return f"the workers have no Python {match[1]}: set {_SETTING}, to one that has icefloe"
    if match := _MISSING_MODULE.search(text):
        return (
            f"the Python of the workers has no module {match[1]}: install it there, or set "
            f"{_SETTING}, to a Python that has it"
        )
    return None


def get_cause(error: Exception) -> str:
    """Extract the exception that a worker raised, without the traceback.

    Errors of icefloe lose the name of their class, as in `format_error`.
    """
    lines = str(error).partition("JVM stacktrace")[0].strip().splitlines()
    exceptions = [line for line in lines if _EXCEPTION_LINE.match(line)]
    if not exceptions:
        return lines[0] if lines else type(error).__name__
    return _OWN_ERROR.sub("", exceptions[-1])
