"""The commands ``branch``, ``tag`` and ``reset``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cli.test_commands import icefloe as run
from support.histories import make_history

if TYPE_CHECKING:
    from pathlib import Path

    import icefloe


@pytest.fixture
def history(tmp_path: Path) -> tuple[icefloe.Repository, list[str]]:
    return make_history(tmp_path, "v2")


def test_branches(tmp_path: Path, history: tuple[icefloe.Repository, list[str]]) -> None:
    """Branches are created at main or at any ref, listed, and deleted after confirmation."""
    repository, ids = history
    run("branch", tmp_path, "new")
    run("branch", tmp_path, "old", ids[2])
    assert repository.lookup_branch("new") == repository.lookup_branch("main")
    listed = json.loads(run("branch", tmp_path, "--json").stdout)
    assert {"name": "old", "snapshot_id": ids[2]} in listed
    lines = run("branch", tmp_path).stdout.splitlines()
    assert ["old", ids[2]] in [line.split() for line in lines]
    assert "pass --yes" in run("branch", tmp_path, "-d", "old", code=1).stderr
    run("branch", tmp_path, "-d", "old", "--dry-run")
    assert "old" in repository.list_branches()
    run("branch", tmp_path, "-d", "old", "--yes")
    assert "old" not in repository.list_branches()
    assert "cannot be deleted" in run("branch", tmp_path, "-d", "main", "--dry-run", code=1).stderr


def test_tags(tmp_path: Path, history: tuple[icefloe.Repository, list[str]]) -> None:
    """Tags are created, listed, and deleted after a warning that the name is lost."""
    repository, ids = history
    run("tag", tmp_path, "release 1", ids[1])
    assert repository.lookup_tag("release 1") == ids[1]
    assert "release 1" in run("tag", tmp_path).stdout
    message = run("tag", tmp_path, "-d", "release 1", code=1).stderr
    assert "cannot be used again" in " ".join(message.split())
    run("tag", tmp_path, "-d", "release 1", "-y")
    assert "release 1" not in repository.list_tags()


@pytest.mark.parametrize(
    "words, problem",
    [
        (("-d",), "--delete needs a NAME"),
        (("a", "b", "-d"), "takes one NAME"),
        (("a", "--dry-run"), "--dry-run needs --delete"),
    ],
)
def test_options_that_do_not_fit(words: tuple[str, ...], problem: str) -> None:
    """Wrong combinations are refused before the repository is opened, with exit code 2."""
    for command in ("branch", "tag"):
        message = run(command, "no/such/place", *words, code=2).stderr
        assert problem in " ".join(message.split())


def test_reset(tmp_path: Path, history: tuple[icefloe.Repository, list[str]]) -> None:
    """A reset lists the commits that leave the branch, and moves it after confirmation."""
    repository, _ = history
    tip, parent = [info.id for info in repository.ancestry(branch="main")][:2]
    plan = run("reset", tmp_path, parent, "--dry-run").stdout
    assert f"- {tip} " in plan
    assert "1 commit would leave" in run("reset", tmp_path, parent, code=1).stderr
    assert repository.lookup_branch("main") == tip
    done = json.loads(run("reset", tmp_path, parent, "--yes", "--json").stdout)
    assert done == {
        "branch": "main",
        "from": tip,
        "to": parent,
        "dropped": [tip],
        "dry_run": False,
    }
    assert repository.lookup_branch("main") == parent
    # Moving forward drops nothing and asks nothing.
    run("reset", tmp_path, tip)
    assert repository.lookup_branch("main") == tip
