"""Files without permission raise `PermissionDeniedError`, and are not taken for absent files."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import icefloe

SCRIPT = """
import os, sys
import icefloe
from icefloe import Repository
from icefloe.errors import PermissionDeniedError

def try_all(path):
    storage = icefloe.local_filesystem_storage(path)
    for name in sys.argv[3:]:
        try:
            yield getattr(Repository, name)(storage)
        except icefloe.IcefloeError as error:
            yield error

list(try_all(sys.argv[1]))  # import everything, which another user may not be able to
if os.getuid() == 0:  # root may read everything
    os.setgid(65534)
    os.setuid(65534)
for result in try_all(sys.argv[2]):
    assert isinstance(result, PermissionDeniedError) and "permission" in str(result), result
"""


@pytest.mark.parametrize("generation", ["sequence", "v1", "v2"])
@pytest.mark.parametrize(
    "mode, methods",
    [
        pytest.param(0o000, ("open", "exists", "fetch_spec_version", "create"), id="directory"),
        pytest.param(0o555, ("open",), id="files"),
    ],
)
def test_unreadable_repositories(generation: str, mode: int, methods: tuple[str, ...]) -> None:
    """A directory whose files may not be read is not an empty directory."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        readable, unreadable = Path(directory, "readable"), Path(directory, "unreadable")
        for root in (readable, unreadable):
            icefloe.Repository.create(icefloe.local_filesystem_storage(root), generation=generation)
        for path in unreadable.rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0)
        unreadable.chmod(mode)
        try:
            command = [sys.executable, "-c", SCRIPT, str(readable), str(unreadable), *methods]
            subprocess.run(command, check=True, timeout=60)
        finally:
            unreadable.chmod(0o700)
