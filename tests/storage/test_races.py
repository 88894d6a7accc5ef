"""Real processes race for one object, on storages that processes can share."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from icefloe.storage import LocalStorage, Storage

PROCESSES = 8


@pytest.fixture(params=["local", "s3"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path / "repository")
    found: Storage = request.getfixturevalue("s3")
    return found


def run_racing(storage: Storage, command: str, numbers: list[int]) -> list[int]:
    program = str(Path(__file__).parent / "racing_process.py")
    racing = [
        subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in numbers
    ]
    # All are ready before the first gets its task, so that they meet.
    for process in racing:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    for process, number in zip(racing, numbers, strict=True):
        assert process.stdin is not None
        process.stdin.write(pickle.dumps((storage, command, number)))
        process.stdin.close()
    results = []
    for process in racing:
        assert process.stdout is not None
        with process, process.stdout:
            results.append(process.stdout.read())
    assert [process.returncode for process in racing] == [0] * len(numbers)
    return [int(result) for result in results]


def test_no_update_is_lost(shared: Storage) -> None:
    """Eight processes count up one object by compare-and-swap, and every step counts."""
    shared.put("counter", b"0")
    times = 20
    refused = run_racing(shared, "increment", [times] * PROCESSES)
    assert bytes(shared.get("counter").data) == str(times * PROCESSES).encode()
    # Without a single refusal they did not race, and the test would have shown nothing.
    assert sum(refused) > 0


def test_one_creator_wins(shared: Storage) -> None:
    """Of eight processes that create one object exactly one succeeds, and it is its content."""
    results = run_racing(shared, "create", list(range(PROCESSES)))
    assert sum(results) == 1
    winner = results.index(1)
    assert bytes(shared.get("refs/tag.v1/ref.json").data) == str(winner).encode()
