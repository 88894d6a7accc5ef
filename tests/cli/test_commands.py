"""The ``icefloe`` command: output, errors and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from icefloe.assets import Assets
from icefloe.cli import main
from icefloe.format.generation import V1
from icefloe.model.ids import INITIAL_SNAPSHOT_ID, NodeId, SnapshotId
from icefloe.model.node import ArrayNodeData, DimensionShape, NodeSnapshot
from icefloe.model.path import Path as NodePath
from icefloe.model.snapshot import Snapshot
from icefloe.refs import create_refs
from icefloe.storage import LocalStorage
from support.golden_repositories import Golden
from support.web_servers import web_server

GOLDEN = Golden("v2-by-2.3.0")


COMMAND = Path(sys.executable).with_name("icefloe")


@dataclass(frozen=True)
class CommandResult:
    """Output and exit code of a command."""

    stdout: str
    stderr: str


def icefloe(*arguments: str | Path, code: int = 0) -> CommandResult:
    """Run the command in this process, to save a second of imports.

    Its outputs are files and no pipes of Python's, because it replaces what is behind their
    numbers when it fails. What it does not catch is raised here, where a user sees a traceback.
    """
    with (
        tempfile.NamedTemporaryFile("w", encoding="utf-8") as out,
        tempfile.NamedTemporaryFile("w", encoding="utf-8") as errors,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", ["icefloe", *map(str, arguments)])
        patch.setattr(sys, "stdout", out.file)
        patch.setattr(sys, "stderr", errors.file)
        ended = 0
        try:
            main()
        except SystemExit as end:
            ended = end.code if isinstance(end.code, int) else int(end.code is not None)
        out.file.flush()
        errors.file.flush()
        found = CommandResult(
            Path(out.name).read_text("utf-8"), Path(errors.name).read_text("utf-8")
        )
    assert ended == code, found.stderr
    assert "Traceback" not in found.stderr
    return found


def test_installed_script() -> None:
    """The installed ``icefloe`` script has the same output and exit codes."""
    for arguments, code in (
        (("tree", GOLDEN.repository), 0),
        (("history", GOLDEN.repository, "--ref", "nope"), 1),
    ):
        done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
        here = icefloe(*arguments, code=code)
        assert (done.stdout, done.stderr, done.returncode) == (here.stdout, here.stderr, code)


def test_history() -> None:
    """History shows each commit with its refs, newest first."""
    lines = icefloe("history", GOLDEN.repository).stdout.splitlines()
    ids = [info["id"] for info in GOLDEN.expected["ancestry"]["main"]]
    assert [line.split()[0] for line in lines[1:]] == ids
    assert "v1.0" in next(line for line in lines if "fill the rest" in line)
    assert "main" in lines[1]


def test_history_as_json() -> None:
    """``--json`` prints the same as JSON, for any branch, tag or snapshot."""
    found = json.loads(icefloe("history", GOLDEN.repository, "--json", "--ref", "dev").stdout)
    assert [entry["id"] for entry in found] == [
        info["id"] for info in GOLDEN.expected["ancestry"]["dev"]
    ]
    assert found[0]["branches"] == ["dev"]
    limited = icefloe("history", GOLDEN.repository, "--json", "-n", "1", "--ref", found[1]["id"])
    assert [entry["id"] for entry in json.loads(limited.stdout)] == [found[1]["id"]]


def test_tree() -> None:
    """The tree shows every node at a tag, and arrays with type and shape."""
    text = icefloe("tree", GOLDEN.repository, "--ref", "v1.0").stdout
    assert "split_me  float64 (y: 40, x: 30, 4) in 60 chunks" in text
    found = json.loads(icefloe("tree", GOLDEN.repository, "--ref", "v1.0", "--json").stdout)
    tag = GOLDEN.expected["tags"]["v1.0"]
    assert {node["path"] for node in found} == set(GOLDEN.expected["snapshots"][tag])


def test_inspect() -> None:
    """Inspect prints JSON for a file given as a path or as a URL."""
    path = GOLDEN.repository / "repo"
    assert json.loads(icefloe("inspect", path).stdout)["branches"] == GOLDEN.expected["branches"]
    assert icefloe("inspect", path.resolve().as_uri()).stdout == icefloe("inspect", path).stdout


def test_inspect_reports_damage(tmp_path: Path) -> None:
    """A damaged file gives one line that names it and the damage, and exit code 1."""
    damaged = tmp_path / "repo"
    damaged.write_bytes((GOLDEN.repository / "repo").read_bytes()[:-100])
    message = icefloe("inspect", damaged, code=1).stderr
    assert message.startswith("error: ")
    assert str(damaged) in message
    assert "zstd frame is damaged" in message


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("history", "no/such/place"), "there is no repository at"),
        (("tree", GOLDEN.repository, "--ref", "nope"), "available: dev, main, v1.0"),
        (("inspect", GOLDEN.repository), "is a directory"),
        (("inspect", ""), "is not a file"),
        (("inspect", "s3://bucket"), "is not a file"),
        (("inspect", "https://127.0.0.1:1/repo?sig=1"), "https://127.0.0.1:1/repo: a query"),
        (("inspect", "x" * 5000), "is not a valid storage key"),
        (("inspect", "no/such/file"), "no/such"),
        (("history", "ftp://host/x"), "unknown scheme 'ftp'"),
    ],
)
def test_errors_say_what_to_do(arguments: tuple[str | Path, ...], words: str) -> None:
    """Errors print a message with the next step, never a traceback."""
    assert words in " ".join(icefloe(*arguments, code=1).stderr.split())


def test_closed_pipe() -> None:
    """A reader such as ``head`` may close the pipe early."""
    command = f"{COMMAND} inspect {GOLDEN.repository}/repo | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_help_shows_examples() -> None:
    """Help lists the commands, and each command shows an example."""
    assert "inspect" in icefloe("--help").stdout
    for command in ("inspect", "history", "tree"):
        assert f"icefloe {command} " in icefloe(command, "--help").stdout
    assert icefloe("--version").stdout.startswith("icefloe ")


def _repository(root: Path, message: str, user_data: bytes) -> Path:
    """Write a repository with a hostile commit message and node metadata."""
    storage = LocalStorage(root)
    refs = create_refs(storage, generation=V1)
    data = ArrayNodeData((DimensionShape.regular(4, 2),), None, ())
    node = NodeSnapshot(NodeId.random(), NodePath("/a\x1b[31m"), user_data, data)
    snapshot = Snapshot(
        SnapshotId.random(), INITIAL_SNAPSHOT_ID, datetime.now(UTC), message, {}, (node,), ()
    )
    Assets(storage, V1).write_snapshot(snapshot)
    refs.commit("main", INITIAL_SNAPSHOT_ID, snapshot.get_info())
    return root


@pytest.mark.parametrize(
    "user_data",
    [b"", b"{}", b'{"data_type": {}}', b"[" * 100_000, b'{"data_type": "\\ud800"}', b"\xff"],
)
def test_a_hostile_repository(tmp_path: Path, user_data: bytes) -> None:
    """Hostile data causes neither a traceback nor terminal escape sequences."""
    root = _repository(tmp_path, "\x1b]0;owned\x07 multi\nline", user_data)
    for command in ("history", "tree"):
        for options in ((), ("--json",)):
            shown = icefloe(command, root, *options).stdout
            assert "\x1b" not in shown
    assert "\\x1b]0;owned" in icefloe("history", root).stdout
    assert "a\\x1b[31m" in icefloe("tree", root).stdout


def test_unprintable_characters_in_json(tmp_path: Path) -> None:
    """JSON escapes what controls a terminal or the direction of text, and keeps the values."""
    message = "\x7f\x85\x9b1m\u200b\u2028\u202e\u2066\ufeff\U000e0041 é深"
    root = _repository(tmp_path, message, b'{"x": "\xe2\x80\xae"}')
    (snapshot,) = (file for file in (root / "snapshots").iterdir() if "1CECH" not in file.name)
    outputs = [icefloe(command, root, "--json").stdout for command in ("history", "tree")]
    outputs.append(icefloe("inspect", snapshot).stdout)
    for shown in outputs:
        assert shown.replace("\n", "").isprintable()
    assert json.loads(outputs[0])[0]["message"] == message
    assert "é深" in outputs[0]
    assert "\\u202e" in outputs[1]
    assert json.dumps(message)[1:20] in outputs[2]


def test_piped_output_is_neither_wrapped_nor_padded(tmp_path: Path) -> None:
    """Long messages stay on one line in a pipe."""
    shown = icefloe("history", _repository(tmp_path, "long " * 100 + "end", b"{}")).stdout
    lines = shown.splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("end")
    assert all(line == line.rstrip() for line in lines)


def test_ascii_terminal() -> None:
    """Characters that the terminal cannot encode are escaped."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command: list[str | Path] = [COMMAND, "tree", GOLDEN.repository]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "gr\\xf6\\xdfe" in done.stdout


def test_a_full_disk() -> None:
    """A failing write to stdout prints an error."""
    command = f"{COMMAND} tree {GOLDEN.repository} > /dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: [Errno 28] No space left on device\n"


def test_inspect_follows_symbolic_links(tmp_path: Path) -> None:
    """A link to a metadata file shows that file."""
    link = tmp_path / "link"
    link.symlink_to((GOLDEN.repository / "repo").resolve())
    assert json.loads(icefloe("inspect", link).stdout)["branches"] == GOLDEN.expected["branches"]


def test_inspect_does_not_read_large_files_that_are_not_metadata(tmp_path: Path) -> None:
    """A huge file that is not metadata is rejected without being read."""
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    assert "it has 1099511627776 bytes" in icefloe("inspect", huge, code=1).stderr


@pytest.mark.parametrize("name", ["v1-by-2.3.0", "v2-by-2.3.0"])
def test_over_http(name: str) -> None:
    """History and tree work for a repository on a web server."""
    golden = Golden(name)
    with web_server(golden.repository) as url:
        history = json.loads(icefloe("history", url, "--json").stdout)
        assert [entry["id"] for entry in history] == [
            info["id"] for info in golden.expected["ancestry"]["main"]
        ]
        assert "split_me" in icefloe("tree", url, "--ref", "v1.0").stdout
