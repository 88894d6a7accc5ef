"""icefloe and the real Icechunk change the references of one repository in turn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from icefloe.format.generation import V1, find_generation
from icefloe.refs import create_refs, open_refs
from icefloe.storage import LocalStorage
from support import SUPPORT, warm_python
from support.ref_snapshots import write_snapshot

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ["größe", "a#1", "100%", "plain one", "深い"]


def _take_turns(root: Path, spec_version: int, python: Path) -> None:
    storage = LocalStorage(root)
    create_refs(storage, generation=find_generation(spec_version))
    expected = ["Repository initialized"]
    for turn in range(3):
        script = SUPPORT / "icechunk_committer.py"
        done = warm_python.run(python, script, root, f"theirs-{turn}")
        assert done.returncode == 0, done.stderr[-3000:]
        refs = open_refs(storage).refs
        tip = refs.fetch_branch("main")
        assert str(tip) == done.stdout.split()[-1]
        assert refs.fetch_tag(f"by-theirs-{turn}") == tip
        ours = write_snapshot(storage, refs.generation, tip, f"ours-{turn}")
        refs.commit("main", tip, ours)
        refs.create_tag(f"ours-{turn}", ours.id)
        expected += [f"theirs-{turn}", f"ours-{turn}"]
        history = refs.fetch_ancestry(refs.fetch_branch("main"))
        assert [info.message for info in history] == expected[::-1]
    if spec_version == 2:
        kinds = [type(update.kind).__name__ for update in open_refs(storage).refs.fetch_ops_log()]
        assert kinds == ["TagCreated", "NewCommit"] * 6 + ["RepoInitialized"]


def test_icechunk_1(tmp_path: Path, icechunk1: Path) -> None:
    """Format version 1, in turns with Icechunk 1.x."""
    _take_turns(tmp_path, 1, icechunk1)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_icechunk_2(tmp_path: Path, icechunk2: Path, spec_version: int) -> None:
    """Both generations, in turns with Icechunk 2.x; the ops log has the changes of both."""
    _take_turns(tmp_path, spec_version, icechunk2)


def test_names_that_icechunk_encodes(tmp_path: Path) -> None:
    """Branches and tags that Icechunk stores percent-encoded are found, moved and deleted."""
    create_refs(LocalStorage(tmp_path), generation=V1)
    script = f"""
import icechunk
repository = icechunk.Repository.open(icechunk.local_filesystem_storage({str(tmp_path)!r}))
tip = repository.lookup_branch("main")
for name in {NAMES!r}:
    repository.create_branch(name, tip)
    repository.create_tag(name, tip)
"""
    warm_python.run(sys.executable, "-c", script).check_returncode()
    storage = LocalStorage(tmp_path)
    refs = open_refs(storage).refs
    assert set(refs.fetch_branches()) == {"main", *NAMES}
    assert set(refs.fetch_tags()) == set(NAMES)
    for name in NAMES:
        tip = refs.fetch_branch(name)
        ours = write_snapshot(storage, V1, tip, "ours")
        refs.commit(name, tip, ours)
        assert refs.fetch_branch(name) == ours.id
        refs.delete_branch(name)
        refs.delete_tag(name)
    assert set(open_refs(storage).refs.fetch_branches()) == {"main"}
    assert open_refs(storage).refs.fetch_tags() == {}
    assert open_refs(storage).refs.fetch_deleted_tags() == set(NAMES)
