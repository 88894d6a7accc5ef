"""Processes that write one object concurrently, on storages that processes can share."""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING

import pytest

from icefloe.storage import LocalStorage, Storage
from support import SUPPORT, warm_python

if TYPE_CHECKING:
    from pathlib import Path

PROCESSES = 8


@pytest.fixture(params=["local", "s3"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path / "repository")
    found: Storage = request.getfixturevalue("s3")
    return found


def run_racing(storage: Storage, folder: Path, command: str, numbers: list[int]) -> list[int]:
    """Run a process for each number concurrently; return the result of each."""
    (folder / "task.pickle").write_bytes(pickle.dumps((storage, command, numbers)))
    program = SUPPORT / "racing_storage_process.py"
    done = warm_python.run(sys.executable, program, folder / "task.pickle")
    assert done.returncode == 0, done.stderr
    lines = sorted([int(word) for word in line.split()] for line in done.stdout.splitlines())
    assert [racer for racer, _ in lines] == list(range(len(numbers)))
    return [result for _, result in lines]


def test_no_update_is_lost(shared: Storage, tmp_path: Path) -> None:
    """Eight processes increment one object by compare-and-swap, and no increment is lost."""
    shared.put("counter", b"0")
    times = 20
    refused = run_racing(shared, tmp_path, "increment", [times] * PROCESSES)
    assert bytes(shared.get("counter").data) == str(times * PROCESSES).encode()
    # Without a single refusal they did not race, and the test would have shown nothing.
    assert sum(refused) > 0


def test_one_creator_wins(shared: Storage, tmp_path: Path) -> None:
    """Of eight processes that create one object, one succeeds, and the object is its own."""
    results = run_racing(shared, tmp_path, "create", list(range(PROCESSES)))
    assert sum(results) == 1
    winner = results.index(1)
    assert bytes(shared.get("refs/tag.v1/ref.json").data) == str(winner).encode()
