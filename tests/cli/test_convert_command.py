"""The command convert: its report, its refusals and its help."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import zarr

from cli.test_commands import icefloe
from icefloe.repository import Repository
from icefloe.storage import LocalStorage
from support.histories import make_history, read_everything

if TYPE_CHECKING:
    from pathlib import Path


def test_convert(tmp_path: Path) -> None:
    """A dry run prints the plan; the conversion prints a report, and the repository opens."""
    repository, _ = make_history(tmp_path / "source", "v2")
    arguments = ("convert", tmp_path / "source", tmp_path / "target", "--to", "sequence")
    plan = icefloe(*arguments, "--dry-run").stdout.splitlines()
    assert plan[0].startswith("would convert file://")
    assert plan[1] == "  all branches and tags: 3 branches, 3 tags, 10 snapshots"
    assert "  not converted: the ops log" in plan
    assert not (tmp_path / "target").exists()
    report = icefloe(*arguments).stdout
    assert report.startswith("converted file://")
    assert "30 chunk files of 24.0 kB, 30 copied by this run" in report
    converted = Repository.open(LocalStorage(tmp_path / "target"))
    assert converted.generation == "sequence"
    ids = json.loads((tmp_path / "target" / "conversion.json").read_bytes())["snapshots"]
    expected = {ids[old]: data for old, data in read_everything(repository).items()}
    assert read_everything(converted) == expected
    assert icefloe(*arguments).stdout.startswith("nothing to do: an earlier run converted ")


def test_json(tmp_path: Path) -> None:
    """With --json the report has the map of snapshots and what was not converted."""
    _, ids = make_history(tmp_path / "source", "v1")
    target = tmp_path / "target"
    options = ("--to", "v2", "--branch", "dev", "--newest", "--json")
    report = json.loads(icefloe("convert", tmp_path / "source", target, *options).stdout)
    assert report["snapshots"] == {ids[0]: ids[0], ids[8]: ids[8]}
    assert report["branches"] == ["dev", "main"]
    assert report["is_new"] is True
    assert report["not_converted"] == []


def test_refusal(tmp_path: Path) -> None:
    """What the target cannot express is listed, with exit code 1, and nothing is written."""
    repository = Repository.create(LocalStorage(tmp_path / "source"), spec_version=2)
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a")
    tip = session.commit("root")
    repository.create_branch("feature/x", tip)
    repository.create_branch("feature/y", tip)
    arguments = ("convert", tmp_path / "source", tmp_path / "target", "--to", "v1")
    errors = icefloe(*arguments, code=1).stderr
    assert "nothing was written" in errors
    assert "'feature/x'" in errors
    assert "'feature/y'" in errors
    assert not (tmp_path / "target").exists()


def test_unknown_generation(tmp_path: Path) -> None:
    """An unknown generation is refused with the known ones."""
    make_history(tmp_path / "source", "v1")
    arguments = ("convert", tmp_path / "source", tmp_path / "target", "--to", "v3")
    assert "one of: draft, sequence, v1, v2" in icefloe(*arguments, code=1).stderr


def test_help() -> None:
    """The help has examples."""
    assert (
        "icefloe convert weather weather-v1 --to v1 --dry-run"
        in icefloe("convert", "--help").stdout
    )


def test_store_root(tmp_path: Path) -> None:
    """URLs with ``?store_root=`` name a target with two roots, which other commands then read."""
    repository, _ = make_history(tmp_path / "source", "v2")
    root = (tmp_path / "data").as_uri()
    target = f"{(tmp_path / 'state').as_uri()}?store_root={root}"
    assert icefloe("convert", tmp_path / "source", target, "--to", "draft").stdout.startswith(
        "converted file://"
    )
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"config.yaml", "state.json"}
    back = tmp_path / "back"
    icefloe("convert", target, back, "--to", "v2")
    converted = Repository.open(LocalStorage(back))
    assert list(read_everything(converted).values()) == list(read_everything(repository).values())
    commits = json.loads(icefloe("history", target, "--json").stdout)
    assert len(commits) == len(list(repository.ancestry(branch="main")))
    error = icefloe("history", tmp_path / "state", code=1).stderr
    assert "?store_root=" in error
