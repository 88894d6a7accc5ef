"""The commands ``log``, ``show`` and ``diff``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import icefloe
from cli.test_commands import GOLDEN
from cli.test_commands import icefloe as run
from icefloe.inspection.ancestry import fetch_commits
from support.histories import make_history

if TYPE_CHECKING:
    from pathlib import Path

MAIN = [info["id"] for info in GOLDEN.expected["ancestry"]["main"]]
DEV = [info["id"] for info in GOLDEN.expected["ancestry"]["dev"]]


def test_log_draws_all_branches_and_tags() -> None:
    """Each commit has its line in the graph, and lines below it continue the lanes."""
    lines = run("log", GOLDEN.repository).stdout.splitlines()
    assert [line.split("commit ")[1].split()[0] for line in lines if "commit " in line].count(
        DEV[0]
    ) == 1
    assert {*MAIN, *DEV} == {line.split("commit ")[1][:20] for line in lines if "commit " in line}
    dev = next(index for index, line in enumerate(lines) if DEV[0] in line)
    assert lines[dev : dev + 4] == [
        f"│ ● commit {DEV[0]} (dev)",
        f"│ │ {lines[dev + 1][4:]}",
        "│ │     on dev",
        "│ │",
    ]


def test_log_in_one_line_and_with_counts() -> None:
    """``--oneline`` has a line per commit, ``--stat`` counts the changes of each."""
    lines = run("log", GOLDEN.repository, "--oneline", "--ref", "main").stdout.splitlines()
    assert [line.split()[1] for line in lines] == [snapshot_id[:8] for snapshot_id in MAIN]
    assert lines[0].startswith("● ")
    shown = run("log", GOLDEN.repository, "--oneline", "--stat", "-n", "1")
    assert shown.stdout.splitlines()[1].strip() == "4 updated chunks in 1 array"
    assert "--limit" in shown.stderr


def test_log_as_json() -> None:
    """JSON has the fields of ``history --json``, and counts with ``--stat``."""
    (newest,) = json.loads(run("log", GOLDEN.repository, "-n", "1", "--stat", "--json").stdout)
    (entry,) = json.loads(run("history", GOLDEN.repository, "-n", "1", "--json").stdout)
    assert newest.pop("changes")["updated_chunks"] == 4
    assert newest == entry


def test_limited_log_is_the_beginning_of_the_whole(tmp_path: Path, generation: str) -> None:
    """The newest commits of all branches come first, whatever their branch."""
    repository, _ = make_history(tmp_path, generation)
    refs = repository._connection.refs
    everything = fetch_commits(refs)
    newest = sorted(everything, key=lambda commit: commit.written_at, reverse=True)
    found = [commit.written_at for commit in fetch_commits(refs, limit=5)]
    assert found == [commit.written_at for commit in newest[:5]]
    assert {commit.id for commit in fetch_commits(refs, limit=1000)} == {
        commit.id for commit in everything
    }


def test_show() -> None:
    """A commit is shown with its refs, message and changes, by default the tip of main."""
    text = run("show", GOLDEN.repository).stdout
    assert text.splitlines()[0].split() == ["commit", MAIN[0]]
    assert "branches main" in text
    assert "/coords/time: [0] [1] [2] [3]" in text
    found = json.loads(run("show", GOLDEN.repository, "v1.0", "--json").stdout)
    assert found["id"] == GOLDEN.expected["tags"]["v1.0"]
    assert found["tags"] == ["v1.0"]
    first = json.loads(run("show", GOLDEN.repository, MAIN[-1], "--json").stdout)
    assert first["changes"]["new_groups"] == []


def test_diff_down_to_chunks() -> None:
    """Changes are listed by kind, and ``--chunks`` lists every chunk on a line of its own."""
    assert "/dtypes -> /kinds" in run("diff", GOLDEN.repository, "v1.0").stdout
    lines = run("diff", GOLDEN.repository, "v1.0", "main", "--chunks").stdout.splitlines()
    assert lines[-4:] == [f"/coords/time [{index}]" for index in range(4)]
    shown = run("diff", GOLDEN.repository, "v1.0", "--stat").stdout
    assert shown.startswith("1 deleted array, ")
    found = json.loads(run("diff", GOLDEN.repository, "v1.0", "--json").stdout)
    assert found["updated_chunks"] == {"/coords/time": [[0], [1], [2], [3]]}
    assert {"from": "/dtypes", "to": "/kinds"} in found["moved_nodes"]


def test_diff_of_a_range_as_in_git() -> None:
    """``A..B`` means from A to B, and ``A..`` up to main."""
    for words in (("v1.0..main",), ("v1.0..",)):
        assert run("diff", GOLDEN.repository, *words).stdout == (
            run("diff", GOLDEN.repository, "v1.0", "main").stdout
        )
    assert "FROM is empty" in run("diff", GOLDEN.repository, "..main", code=1).stderr


def test_messages_cannot_control_the_terminal(tmp_path: Path) -> None:
    """Escape sequences in messages, metadata, names and paths are shown escaped."""
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    session = repository.writable_session("main")
    session.commit("\x1b[31mred\nsecond", {"k\x1b": "v\x1b"}, allow_empty=True)
    for command in (("log",), ("log", "--oneline"), ("show",), ("diff", "main")):
        shown = run(command[0], tmp_path, *command[1:]).stdout
        assert "\x1b" not in shown
    assert "    second" in run("show", tmp_path).stdout.splitlines()
    assert "\\x1b[31mred" in run("log", tmp_path).stdout


@pytest.mark.parametrize("command", ["log", "show"])
def test_history_at_a_time_zone(command: str, tmp_path: Path) -> None:
    """Times are in UTC."""
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    (first,) = repository.ancestry(branch="main")
    shown = run(command, tmp_path).stdout
    assert f"{first.written_at.astimezone(UTC):%Y-%m-%d %H:%M}" in shown
    assert datetime.now(UTC) - first.written_at < timedelta(days=1)


def test_ancestors_of_refs() -> None:
    """``main~N`` is the N-th ancestor; the error for one that does not exist names it."""

    def show(ref: str) -> str:
        entry: dict[str, str] = json.loads(run("show", GOLDEN.repository, ref, "--json").stdout)
        return entry["id"]

    assert [show(ref) for ref in ("main~0", "main~", "main~~", "main~2")] == [
        *MAIN[:3],
        MAIN[2],
    ]
    assert show(f"{MAIN[1]}~1") == MAIN[2]
    error = run("show", GOLDEN.repository, "main~99", code=1).stderr
    assert "'main' has no ancestor number 99" in " ".join(error.split())
