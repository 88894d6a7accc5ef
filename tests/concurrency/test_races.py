"""Processes that commit to one branch at once: what reported success is there, exactly once."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icefloe.repository import Repository
from support import SUPPORT
from support.generations import GENERATION_NAMES, ICECHUNK_NAMES, OLDER

if TYPE_CHECKING:
    from pathlib import Path

    from concurrency.conftest import Place

SCRIPT = SUPPORT / "racing_committer.py"
PROCESSES, COMMITS, CHUNK = 8, 2, 2
OLDER_ON_S3_IN_FULL = [
    *[("local", name) for name in GENERATION_NAMES],
    *[("s3", name) for name in ICECHUNK_NAMES],
    *[pytest.param("s3", name, marks=pytest.mark.full) for name in OLDER],
]


@dataclass(frozen=True)
class Racers:
    """Processes with a library, which an interpreter has; each commits some times."""

    numbers: range
    commits: int
    solver: str
    library: str = "icefloe"
    python: str | Path = sys.executable


def race(place: Place, *racers: Racers) -> list[str]:
    """Run processes that start at once; returns the lines of all."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [
                        racer.python,
                        SCRIPT,
                        racer.library,
                        place.name,
                        ",".join(map(str, racer.numbers)),
                        str(racer.commits),
                        racer.solver,
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for racer in racers
        ]
        for process in running:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "ready\n", process.stderr.read()[-3000:]
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=200) for process in running]
    for process, (_, errors) in zip(running, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [line for output, _ in outputs for line in output.split()]


def prepare(place: Place, generation: str) -> None:
    repository = Repository.create(place.storage, generation=generation)
    session = repository.writable_session("main")
    shape = (CHUNK * (1 + PROCESSES * COMMITS),)
    zarr.create_array(session.store, name="a", shape=shape, chunks=(CHUNK,), dtype="int64")
    session.commit("prepared")


def check(place: Place, reported: list[str]) -> None:
    """Require that history has the reported commits, no others, and what they wrote."""
    repository = Repository.open(place.storage)
    history = list(repository.ancestry(branch="main"))
    made = history[:-2]
    assert sorted(info.id for info in made) == sorted(reported)
    assert [info.parent_id for info in history[:-1]] == [info.id for info in history[1:]]
    session = repository.readonly_session("main")
    values: Any = zarr.open_array(session.store, path="a", mode="r")[:]
    expected = np.zeros_like(values)
    for info in reversed(made):
        chunk, value = map(int, info.message.split())
        expected[chunk * CHUNK : (chunk + 1) * CHUNK] = value
    assert values[CHUNK:].tolist() == expected[CHUNK:].tolist()


def test_disjoint_chunks(place: Place, generation: str) -> None:
    """Eight processes that write chunks of their own all succeed, however often they meet."""
    prepare(place, generation)
    solver = "BasicConflictSolver" if generation in {"v1", "draft"} else "ConflictDetector"
    reported = race(place, Racers(range(PROCESSES), COMMITS, solver))
    assert "lost" not in reported
    assert len(reported) == PROCESSES * COMMITS
    check(place, reported)


@pytest.mark.parametrize("place, generation", OLDER_ON_S3_IN_FULL, indirect=["place"])
def test_one_chunk_that_all_want(place: Place, generation: str) -> None:
    """A write of a chunk that another writer wrote meanwhile is refused, without a trace."""
    prepare(place, generation)
    reported = race(place, Racers(range(4), 2, "contest"))
    winners = [line for line in reported if line != "lost"]
    assert len(reported) == 8
    assert winners
    check(place, winners)
    repository = Repository.open(place.storage)
    last = next(repository.ancestry(branch="main")).message.split()[1]
    array = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    assert array[:CHUNK].tolist() == [int(last)] * CHUNK  # type: ignore[union-attr]


@pytest.mark.parametrize("place, generation", OLDER_ON_S3_IN_FULL, indirect=["place"])
def test_two_creators(place: Place, generation: str) -> None:
    """One of several concurrent creators succeeds, and the others raise."""
    reported = race(place, Racers(range(4), 0, generation))
    assert sorted(reported) == ["created", "refused", "refused", "refused"]
    assert Repository.open(place.storage).generation == generation


def test_creators_of_different_generations(place: Place) -> None:
    """A concurrent creator of a repository of another generation is refused."""
    racers = [Racers(range(2), 0, generation) for generation in ("v1", "v2", "sequence")]
    assert sorted(race(place, *racers)) == ["created"] + ["refused"] * 5
    repository = Repository.open(place.storage)
    repository.writable_session("main").commit("still the only one", allow_empty=True)
    markers = {"repo", "refs/branch.main/ref.json", "r/main/ZZZZZZZZ.json"}
    assert len(markers & {info.key for info in place.storage.list()}) == 1


@pytest.mark.parametrize("generation", ICECHUNK_NAMES)
def test_beside_icechunk(
    s3_place: Place, generation: str, icechunk1: Path, icechunk2: Path
) -> None:
    """On S3 icefloe and Icechunk commit to one branch at once, and lose nothing."""
    prepare(s3_place, generation)
    python = icechunk1 if generation == "v1" else icechunk2
    ours = Racers(range(3), COMMITS, "ConflictDetector")
    theirs = Racers(range(3, 6), COMMITS, "ConflictDetector", "icechunk", python)
    reported = race(s3_place, ours, theirs)
    assert len(reported) == 6 * COMMITS
    check(s3_place, [line for line in reported if line != "lost"])
