"""Print the path of the first Python interpreter on this machine that has one of some versions.

``python3 find_python.py 3.13 3.12``. Runs on any Python 3, before there is an environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def find_python(*versions: str) -> Path | None:
    """Return an interpreter with one of the versions, in order of preference, or None."""
    # Version managers keep interpreters outside of PATH.
    managed = (os.environ.get("PYENV_ROOT", "~/.pyenv"), "~/.local/share/uv/python", "/opt/python")
    for version in versions:
        name = f"python{version}"
        in_path = shutil.which(name)
        candidates = [Path(in_path)] if in_path else []
        for base in managed:
            candidates += sorted(Path(base).expanduser().glob(f"**/bin/{name}"))
        for candidate in candidates:
            if _has_version(candidate, version):
                return candidate
    return None


def _has_version(python: Path, version: str) -> bool:
    """Check that an interpreter runs; shims of version managers may lead nowhere."""
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


if __name__ == "__main__":
    found = find_python(*sys.argv[1:])
    if found is None:
        sys.exit(f"none of Python {', '.join(sys.argv[1:])} was found on this machine")
    sys.stdout.write(f"{found}\n")
