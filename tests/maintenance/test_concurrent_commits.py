"""Garbage collections run while another process commits, and no data is lost."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

from icefloe.format.generation import get_generation
from icefloe.repository import Repository
from icefloe.storage import LocalStorage
from support.histories import read_everything

COMMITS = 25
# The clock of a file system lags slightly.
CLOCKS_DIFFER = timedelta(milliseconds=100)


def test_nothing_is_lost(tmp_path: Path, generation: str) -> None:
    """All commits are complete, and no garbage remains after the last collection."""
    root = tmp_path / "repo"
    storage = LocalStorage(root, durable=False)
    repository = Repository.create(storage, generation=generation)
    started = tmp_path / "started"
    committer = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "support.maintenance_committer",
            str(root),
            str(COMMITS),
            str(started),
        ],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deleted = rounds = 0
    while committer.poll() is None:
        if started.exists():
            # Every session that may still commit started later.
            cutoff = datetime.fromisoformat(started.read_text()) - CLOCKS_DIFFER
            summary = Repository.open(storage).garbage_collect(cutoff)
            deleted += summary.chunks_deleted
            rounds += 1
            assert summary.objects_failed_to_delete == 0
    output, errors = committer.communicate()
    assert committer.returncode == 0, errors
    assert rounds > 3
    assert deleted > COMMITS
    committed = output.split()
    repository = Repository.open(storage)
    history = [info.id for info in repository.ancestry(branch="main")]
    if not get_generation(generation).has_repo_info:
        assert history[:-1] == committed[::-1]
    found = read_everything(repository)
    assert set(found) == set(history)
    assert len(found) == COMMITS + 1
    repository.expire_snapshots(datetime.now().astimezone())
    repository.garbage_collect(datetime.now().astimezone())
    assert read_everything(Repository.open(storage)) == {
        snapshot_id: found[snapshot_id] for snapshot_id in (history[0], history[-1])
    }
