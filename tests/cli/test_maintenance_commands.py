"""The commands ``gc``, ``expire``, ``stats`` and ``upgrade``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import typer

import icefloe
from cli.test_commands import GOLDEN
from cli.test_commands import icefloe as run
from icefloe.cli.maintenance_commands import parse_time
from icefloe.cli.progress import show_phases
from icefloe.maintenance.progress import Phase, Step
from support.histories import make_history

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)


def list_files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def test_garbage_collection(tmp_path: Path) -> None:
    """Nothing is deleted in a dry run, or without confirmation; then what no ref needs."""
    make_history(tmp_path, "v2")
    before = list_files(tmp_path)
    plan = json.loads(run("gc", tmp_path, "--older-than", "0h", "--dry-run", "--json").stdout)
    assert plan["snapshots_deleted"] > 0
    message = run("gc", tmp_path, "--older-than", "0h", code=1).stderr
    assert "pass --yes" in message
    assert list_files(tmp_path) == before
    done = json.loads(run("gc", tmp_path, "--older-than", "0h", "--yes", "--json").stdout)
    assert done == plan | {"dry_run": False}
    assert len(list_files(tmp_path)) < len(before)
    assert "deleted nothing" in run("gc", tmp_path, "--older-than", "0h").stdout


def test_expiration(tmp_path: Path, generation: str) -> None:
    """A dry run names the snapshots that the expiration removes, and changes nothing."""
    repository, _ = make_history(tmp_path, generation)
    before = [info.id for info in repository.ancestry(branch="main")]
    options = ("--older-than", "0h", "--json")
    plan = json.loads(run("expire", tmp_path, *options, "--dry-run").stdout)
    assert len(plan["expired"]) > 1
    assert "from history?" in run("expire", tmp_path, *options, code=1).stderr
    assert [info.id for info in repository.ancestry(branch="main")] == before
    done = json.loads(run("expire", tmp_path, *options, "-y").stdout)
    assert done == plan | {"dry_run": False}
    reopened = icefloe.Repository.open(repository.storage)
    assert len(list(reopened.ancestry(branch="main"))) < len(before)


def test_expiration_of_branches(tmp_path: Path) -> None:
    """Branches whose tips expire are deleted on request only."""
    repository, _ = make_history(tmp_path, "v2")
    run("expire", tmp_path, "--older-than", "0h", "--delete-branches", "-y")
    assert repository.list_branches() == {"main"}


def test_statistics() -> None:
    """The sizes of all chunks are summed by kind."""
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(str(GOLDEN.repository)))
    found = repository.chunk_storage_stats()
    assert json.loads(run("stats", GOLDEN.repository, "--json").stdout) == {
        "native_bytes": found.native_bytes,
        "virtual_bytes": found.virtual_bytes,
        "inlined_bytes": found.inlined_bytes,
        "total_bytes": found.total_bytes(),
    }
    assert run("stats", GOLDEN.repository).stdout.splitlines()[-1].split()[0] == "total"


def test_upgrade(tmp_path: Path) -> None:
    """A repository of version 1 is upgraded after confirmation; no other can be."""
    repository, _ = make_history(tmp_path, "v1")
    assert "dry run: upgraded" in run("upgrade", tmp_path, "--dry-run").stdout
    assert "pass --yes" in run("upgrade", tmp_path, code=1).stderr
    assert icefloe.Repository.fetch_spec_version(repository.storage) == 1
    run("upgrade", tmp_path, "--yes")
    assert icefloe.Repository.fetch_spec_version(repository.storage) == 2
    assert "nothing to upgrade" in run("upgrade", tmp_path, "--yes", code=1).stderr


@pytest.mark.parametrize(
    "text, expected",
    [
        ("30min", NOW - timedelta(minutes=30)),
        ("12h", NOW - timedelta(hours=12)),
        ("14d", NOW - timedelta(days=14)),
        ("2w", NOW - timedelta(weeks=2)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00+01:00", datetime(2026, 1, 31, 11, tzinfo=UTC)),
    ],
)
def test_ages_and_times(text: str, expected: datetime) -> None:
    """An age counts from now, and a time without a zone is in UTC."""
    assert parse_time(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "d", "14", "14 days", "-1d", "999999w", "2026-13-01"])
def test_ages_that_mean_nothing(text: str) -> None:
    """Anything else is refused, before the repository is opened."""
    with pytest.raises(typer.BadParameter, match="expected an age"):
        parse_time(text, NOW)
    assert "expected an age" in run("gc", "no/such/place", f"--older-than={text}", code=2).stderr


def test_progress_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe gets a line for each phase, and nothing if the work was quick."""
    steps = [
        Step(Phase.READ_SNAPSHOTS, 1, 2),
        Step(Phase.READ_SNAPSHOTS, 2, 2),
        Step(Phase.DELETE_CHUNKS, 5, 5),
    ]
    for quiet_s in (0, 1000):
        with show_phases(quiet_s=quiet_s) as progress:
            for step in steps:
                progress(step)
    assert capsys.readouterr().err == "reading snapshots: 2 of 2\nchunks: 5 of 5\n"
