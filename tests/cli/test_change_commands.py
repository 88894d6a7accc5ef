"""The commands ``mv``, ``rm``, ``attrs`` and ``restore``."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

import icefloe
from cli.test_commands import GOLDEN
from cli.test_commands import icefloe as run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN.repository, tmp_path / "my weather ☔")


def list_paths(repository: Path) -> set[str]:
    found = json.loads(run("ls", repository, "-R", "--json").stdout)
    return {node["path"] for node in found}


def get_messages(repository: Path) -> list[str]:
    opened = icefloe.Repository.open(icefloe.local_filesystem_storage(str(repository)))
    return [info.message for info in opened.ancestry(branch="main")]


def test_move(repository: Path) -> None:
    """A node moves in a commit with a default message; a dry run commits nothing."""
    run("mv", repository, "scalar", "a/scalar", "--dry-run")
    assert "/scalar" in list_paths(repository)
    run("mv", repository, "scalar", "a/scalar")
    assert "/a/scalar" in list_paths(repository)
    assert get_messages(repository)[0] == "Move /scalar to /a/scalar"
    assert (
        "parent group /new does not exist"
        in run("mv", repository, "sharded", "new/x", code=1).stderr
    )


def test_remove(repository: Path) -> None:
    """Groups with contents need ``--recursive``, and the commit a confirmation."""
    before = list_paths(repository)
    assert "pass --recursive" in run("rm", repository, "coords", code=1).stderr
    assert "pass --yes" in run("rm", repository, "coords", "-r", code=1).stderr
    run("rm", repository, "coords", "scalar", "-r", "--dry-run")
    assert "root group" in run("rm", repository, "/", "-r", code=1).stderr
    assert "no group or array at /x" in run("rm", repository, "scalar", "x", code=1).stderr
    assert list_paths(repository) == before
    done = json.loads(run("rm", repository, "coords", "scalar", "-ry", "--json").stdout)
    assert done["changes"]["deleted_arrays"] == 2
    assert before - list_paths(repository) == {"/coords", "/coords/time", "/scalar"}
    assert get_messages(repository)[0] == "Delete /coords, /scalar"


def test_attributes(repository: Path) -> None:
    """Attributes are shown, set as JSON or text, and removed, each time in one commit."""
    assert 'title: "golden"' in run("attrs", repository).stdout
    options = ("--set", "units=K", "--set", "range=[1, 2]", "-m", "Describe")
    run("attrs", repository, "scalar", *options)
    found = json.loads(run("attrs", repository, "scalar", "--json").stdout)
    assert (found["units"], found["range"]) == ("K", [1, 2])
    assert get_messages(repository)[0] == "Describe"
    run("attrs", repository, "scalar", "--unset", "units")
    assert "units" not in json.loads(run("attrs", repository, "scalar", "--json").stdout)
    assert "it has: range" in run("attrs", repository, "scalar", "--unset", "u", code=1).stderr
    old = json.loads(run("attrs", repository, "scalar", "--ref", "v1.0", "--json").stdout)
    assert "range" not in old
    assert "KEY=VALUE" in run("attrs", repository, "--set", "x", code=2).stderr


def test_restore(repository: Path) -> None:
    """An old state comes back as a new commit, whole or in part; equal states commit nothing."""
    run("rm", repository, "coords", "-r", "-y")
    num_commits = len(get_messages(repository))
    run("restore", repository, "v1.0", "coords", "--dry-run")
    assert "/coords" not in list_paths(repository)
    run("restore", repository, "v1.0", "coords")
    assert {"/coords", "/coords/time", "/kinds"} <= list_paths(repository)
    assert get_messages(repository)[0] == "Restore /coords of v1.0"
    run("restore", repository, "v1.0")
    paths = list_paths(repository)
    tag = GOLDEN.expected["tags"]["v1.0"]
    assert paths == set(GOLDEN.expected["snapshots"][tag]) - {"/"}
    assert run("restore", repository, "v1.0").stdout == "nothing changed\n"
    assert len(get_messages(repository)) == num_commits + 2
