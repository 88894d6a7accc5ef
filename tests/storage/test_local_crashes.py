"""A writer that is killed leaves the old object or the new one."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import StorageError
from icefloe.storage import LocalStorage
from icefloe.storage.directory_lock import LOCK_FILE_NAME
from support import SUPPORT, warm_python

if TYPE_CHECKING:
    from pathlib import Path

HERE = SUPPORT
KEY = "refs/branch.main/ref.json"


def deaths_of(kind: str, root: Path) -> list[dict[str, Any]]:
    """Return the state after a put that was killed before each of its system calls."""
    done = warm_python.run(sys.executable, HERE / "dying_writer.py", root, kind)
    assert done.returncode == 0, done.stderr
    deaths: list[dict[str, Any]] = json.loads(done.stdout)
    # The last run is the one that survived; before it lie the system calls of a put.
    assert [death["killed"] for death in deaths] == [True] * (len(deaths) - 1) + [False]
    assert len(deaths) > 8
    return deaths


@pytest.mark.parametrize("kind", ["create", "overwrite", "update"])
def test_killed_before_any_system_call(tmp_path: Path, kind: str) -> None:
    """After every call, other processes read the old or new object, list only it, and can write."""
    deaths = deaths_of(kind, tmp_path / "repository")
    before = {"content": "", "size": 0} if kind == "create" else {"content": "old", "size": 3000}
    after = {"content": "new", "size": 6000}
    contents = [{"content": d["content"], "size": d["size"]} for d in deaths]
    switch = contents.index(after)
    assert contents == [before] * switch + [after] * (len(deaths) - switch)
    assert 0 < switch < len(deaths)
    assert all(death["listed"] in ([], [KEY]) for death in deaths)
    assert all(death["later"] for death in deaths)


def test_killed_in_a_fresh_put(tmp_path: Path) -> None:
    """A partial object may remain under the random key; it is listed, so it can be collected."""
    deaths = deaths_of("fresh", tmp_path / "repository")
    sizes = [death["size"] for death in deaths]
    assert sizes == sorted(sizes)
    assert set(sizes) == {0, 100, 6000}
    listed = [death["listed"] for death in deaths]
    assert listed == sorted(listed)
    assert [] in listed
    assert all(death["listed"] == [KEY] for death in deaths if death["size"])
    assert all(death["later"] for death in deaths)


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """A writer of large objects that is killed at a random time never leaves a mixed object."""
    root = tmp_path / "repository"
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, str(HERE / "endless_writer.py"), str(root)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.read(1)
            time.sleep(random.uniform(0, 0.05))
            writer.kill()
        storage = LocalStorage(root)
        content = bytes(storage.get("repo").data)
        assert content == content[:1] * 2_000_000
        assert [info.key for info in storage.list()] == ["repo"]


def test_abandoned_uploads_are_deleted(tmp_path: Path) -> None:
    """Old staged files are deleted, and nothing else."""
    storage = LocalStorage(tmp_path)
    storage.put("chunks/A", b"kept")
    (tmp_path / "chunks" / "staged#123").write_bytes(b"left by a dead writer")
    (tmp_path / "chunks" / LOCK_FILE_NAME).write_bytes(b"")
    storage.put("refs/branch.a#1/ref.json", b"kept too")
    kept = ["chunks/A", "refs/branch.a#1/ref.json"]
    assert [info.key for info in storage.list()] == kept
    now = datetime.now(UTC)
    assert storage.delete_abandoned_uploads(before=now - timedelta(hours=1)).num_files == 0
    assert storage.delete_abandoned_uploads(before=now + timedelta(hours=1)).num_files == 1
    # Without its lock file, a held lock could be acquired again.
    assert sorted(path.name for path in (tmp_path / "chunks").iterdir()) == ["A", LOCK_FILE_NAME]
    assert [info.key for info in storage.list()] == kept


def test_errors_while_deleting_uploads_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of the file system raise `StorageError`; no directory is skipped."""
    storage = LocalStorage(tmp_path)
    storage.put("chunks/A", b"kept")
    (tmp_path / "chunks" / "staged#123").write_bytes(b"left by a dead writer")
    later = datetime.now(UTC) + timedelta(hours=1)
    assert LocalStorage(tmp_path / "nothing").delete_abandoned_uploads(before=later).num_files == 0

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for call in ("unlink", "scandir"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, broken)
            with pytest.raises(StorageError, match="Input/output error"):
                storage.delete_abandoned_uploads(before=later)
    assert storage.delete_abandoned_uploads(before=later).num_files == 1
