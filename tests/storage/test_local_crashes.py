"""A writer that is killed leaves the old object or the new one, never anything else."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from icefloe.storage import LocalStorage

HERE = Path(__file__).parent


@pytest.mark.parametrize("kind", ["create", "overwrite", "update"])
def test_killed_before_any_system_call(tmp_path: Path, kind: str) -> None:
    """Whichever call is the last, a survivor finds old or new, lists only it, and can write."""
    done = subprocess.run(
        [sys.executable, str(HERE / "dying_writer.py"), str(tmp_path / "repository"), kind],
        check=True,
        capture_output=True,
        timeout=60,
    )
    deaths = json.loads(done.stdout)
    # The last run is the one that survived; before it lie the system calls of a put.
    assert [death["killed"] for death in deaths] == [True] * (len(deaths) - 1) + [False]
    assert len(deaths) > 8
    before = {"content": "", "size": 0} if kind == "create" else {"content": "old", "size": 3000}
    after = {"content": "new", "size": 6000}
    contents = [{"content": d["content"], "size": d["size"]} for d in deaths]
    switch = contents.index(after)
    assert contents == [before] * switch + [after] * (len(deaths) - switch)
    assert 0 < switch < len(deaths)
    assert all(death["listed"] in ([], ["refs/branch.main/ref.json"]) for death in deaths)
    assert all(death["later"] for death in deaths)


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Killed at random moments, a writer of large objects never leaves a mixture."""
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


def test_what_dead_writers_left_can_be_swept_up(tmp_path: Path) -> None:
    """Abandoned staged files are found and deleted once they are old, and nothing else is."""
    storage = LocalStorage(tmp_path)
    storage.put("chunks/A", b"kept")
    (tmp_path / "chunks" / "staged#123").write_bytes(b"left by a dead writer")
    assert [info.key for info in storage.list()] == ["chunks/A"]
    now = datetime.now(UTC)
    assert storage.delete_abandoned(before=now - timedelta(hours=1)) == 0
    assert storage.delete_abandoned(before=now + timedelta(hours=1)) == 1
    assert sorted(path.name for path in (tmp_path / "chunks").iterdir()) == ["A"]
