"""Files without permission raise `PermissionDeniedError`, and are not taken for absent files."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import icefloe
from icefloe.storage import LocalStorage

READS = ("get", "get_if_changed", "get_bytes", "head")
LISTINGS = ("list", "list_first")
WRITES = ("put", "delete_many")

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


STORAGE_SCRIPT = """
import os, sys
from icefloe.errors import PermissionDeniedError
from icefloe.storage import LocalStorage, Version

operations = {
    "get": lambda storage: storage.get("a/x"),
    "get_if_changed": lambda storage: storage.get_if_changed("a/x", Version("other")),
    "get_bytes": lambda storage: storage.get_bytes("a/x", 0, 1),
    "head": lambda storage: storage.head("a/x"),
    "list": lambda storage: list(storage.list("a/")),
    "list_first": lambda storage: storage.list_first("a/", 1),
    "put": lambda storage: storage.put("a/x", b"2"),
    "delete_many": lambda storage: storage.delete_many(["a/x"]),
}
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
storage = LocalStorage(sys.argv[1])
for name in sys.argv[2:]:
    try:
        operations[name](storage)
    except PermissionDeniedError as error:
        assert "no permission to" in str(error)
    else:
        raise AssertionError(name)
"""


@pytest.mark.parametrize(
    "mode, methods",
    [
        pytest.param(0o000, READS + LISTINGS + WRITES, id="none"),
        pytest.param(0o444, READS + LISTINGS + WRITES, id="names"),
        pytest.param(0o555, WRITES, id="read"),
        pytest.param(0o311, LISTINGS, id="write"),
    ],
)
def test_directories_without_permission(mode: int, methods: tuple[str, ...]) -> None:
    """Every operation on them raises the same class of error."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        LocalStorage(directory).put("a/x", b"1")
        Path(directory, "a").chmod(mode)
        try:
            command = [sys.executable, "-c", STORAGE_SCRIPT, directory, *methods]
            subprocess.run(command, check=True, timeout=60)
        finally:
            Path(directory, "a").chmod(0o700)
