"""icefloe and the real Icechunk commit to one repository in turns, and agree after each turn.

On the hierarchy and all documents, byte for byte; on the values of all arrays; on history; on the
differences between commits; and, before a commit, on the status of the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from icefloe.assets import Assets
from support.edited_manifests import edit_wherever_possible, note_insertions
from support.interop_alternation import Alternation, Setting, Side

if TYPE_CHECKING:
    from pathlib import Path


def start(root: Path, setting: Setting, by: Side = "us") -> Alternation:
    both = Alternation(root / "repository", setting.spec_version, setting.wheel)
    both.create(by)
    return both


def other(side: Side) -> Side:
    return "them" if side == "us" else "us"


SIDES: list[Side] = ["us", "them"]
A = ["array", "g/a", [10, 6], [3, 2], "int32"]


@pytest.mark.parametrize("first", SIDES)
def test_a_life(tmp_path: Path, setting: Setting, first: Side) -> None:
    """Groups, arrays, inline and native chunks, attributes, resizing, deletion, turn by turn."""
    second = other(first)
    both = start(tmp_path, setting, first)
    both.change(first, ["group", "", {"title": "ünïcode"}], ["group", "g", {}], A)
    both.change(second, ["write", "g/a", [[0, 10], [0, 6]], 1])
    both.change(first, ["write", "g/a", [[0, 4], [0, 6]], 2], inline=0)
    both.change(second, ["write", "g/a", [[2, 5], [1, 3]], 3], inline=0)
    both.change(first, ["attributes", "g/a", {"units": "K"}], ["attributes", "g", {"n": 1}])
    both.change(second, ["resize", "g/a", [14, 6]], ["write", "g/a", [[9, 14], [0, 6]], 4])
    both.change(first, ["resize", "g/a", [5, 6]])
    both.change(second, ["resize", "g/a", [12, 6]])
    both.change(first, ["delete_key", "g/a/c/0/0"], ["delete_key", "g/a/c/1/2"])
    both.change(second, ["array", "s", [], [], "float64"], ["write", "s", [], 5])
    both.change(first, ["write", "s", [], 6], ["array", "empty", [0], [5], "int8"])
    both.change(second, ["delete", "g/a"], ["delete_key", "s/c"])
    both.change(first, ["array", "g/a", [4], [2], "int64"], ["write", "g/a", [[0, 4]], 7])
    both.change(second, ["delete", "g"], ["group", "g", {"new": True}])
    both.change(first, ["delete", "g"], ["delete", "s"], ["delete", "empty"])


@pytest.mark.parametrize("first", SIDES)
def test_branches_and_tags(tmp_path: Path, setting: Setting, first: Side) -> None:
    """Each side finds, extends, moves and deletes what the other made."""
    second = other(first)
    both = start(tmp_path, setting, first)
    both.change(first, ["group", "", {}], A, ["write", "g/a", [[0, 9]], 1])
    both.refer(second, "create_branch", "dev", "0")
    both.change(first, ["write", "g/a", [[0, 2]], 2], branch="dev")
    both.refer(first, "create_tag", "v1", "1")
    both.change(second, ["write", "g/a", [[4, 9]], 3], branch="dev")
    both.change(second, ["write", "g/a", [[1, 2]], 4])
    both.refer(second, "create_tag", "v2", "0")
    both.refer(first, "delete_tag", "v2")
    both.refer(second, "create_tag", "v2", "0", must_succeed=False)
    assert "v2" not in both.last["tags"]
    both.refer(second, "reset_branch", "dev", "1")
    both.change(first, ["delete", "g"], branch="dev")
    both.refer(first, "delete_branch", "dev")
    both.refer(second, "create_branch", "dev", "0")
    both.refer(first, "delete_branch", "main", must_succeed=False)
    assert set(both.last["branches"]) == {"main", "dev"}


@pytest.mark.parametrize("first", SIDES)
def test_split_manifests(tmp_path: Path, setting: Setting, first: Side) -> None:
    """Manifests are split by rules that change from turn to turn, and are rewritten by both."""
    second = other(first)
    both = start(tmp_path, setting, first)
    box = [[0, 40], [0, 4]]
    both.change(first, ["array", "a", [40, 4], [2, 2], "int16"], ["write", "a", box, 1], split=4)
    both.change(second, ["write", "a", [[10, 14], [0, 4]], 2], split=4)
    both.change(first, ["write", "a", [[0, 3], [0, 4]], 3], split=3, inline=0)
    both.change(second, ["write", "a", [[30, 38], [1, 2]], 4], split=7, inline=0)
    both.change(first, ["resize", "a", [52, 4]], ["write", "a", [[39, 52], [0, 4]], 5], split=5)
    both.save_config(second, split=6, inline=3)
    both.change(first, ["write", "a", [[20, 28], [0, 4]], 6])
    both.change(second, ["resize", "a", [21, 4]])
    both.change(first, ["delete_key", "a/c/0/0"], ["write", "a", [[12, 13], [0, 4]], 7])
    both.rewrite_manifests(second, split=2)
    both.rewrite_manifests(first, split=9)
    both.change(second, ["write", "a", [[0, 21], [0, 4]], 8])
    both.change(first, ["write", "a", [[5, 6], [0, 4]], 9])


@pytest.mark.parametrize("first", SIDES)
def test_edited_manifests(tmp_path: Path, setting: Setting, first: Side) -> None:
    """Icechunk goes on from files that icefloe edited, be they its own or icefloe's."""
    both = start(tmp_path, setting, first)
    both.change(first, ["group", "", {}], A, ["write", "g/a", [[0, 10], [0, 6]], 1], inline=0)
    with edit_wherever_possible() as tries:
        both.change("us", ["write", "g/a", [[0, 3], [0, 2]], 2], inline=0)
        both.change("us", ["write", "g/a", [[3, 7], [2, 3]], 3])
        both.change("them", ["write", "g/a", [[9, 10], [5, 6]], 4])
        both.change("us", ["write", "g/a", [[0, 10], [3, 5]], 5], inline=0)
        assert tries == [True] * 3
        both.change("us", ["delete_key", "g/a/c/0/0"])
        both.change("us", ["write", "g/a", [[0, 1], [0, 1]], 6])
        assert tries == [True] * 3 + [False]
    both.change("them", ["resize", "g/a", [5, 6]])


@pytest.mark.parametrize("first", SIDES)
def test_inserted_references(tmp_path: Path, setting: Setting, first: Side) -> None:
    """Icechunk goes on from files into which icefloe inserted references, and the reverse."""
    both = start(tmp_path, setting, first)
    array = ["array", "a", [60], [1], "int16"]
    both.change(first, ["group", "", {}], array, ["write", "a", [[5, 45]], 1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Assets, "is_manifest_decoded", lambda *_: False)
        tries = note_insertions(patch)
        both.change("us", ["write", "a", [[45, 48]], 2], inline=0)
        both.change("us", ["write", "a", [[2, 4]], 3])
        both.change("them", ["write", "a", [[50, 52]], 4], inline=0)
        both.change("us", ["write", "a", [[48, 50]], 5])
        assert tries == [True] * 3
        both.change("us", ["write", "a", [[51, 53]], 6])
        assert tries == [True] * 3 + [False]
    both.change("them", ["write", "a", [[0, 60]], 7])


@pytest.mark.parametrize("first", SIDES)
def test_many_small_arrays(tmp_path: Path, setting: Setting, first: Side) -> None:
    """Arrays that share a manifest file, which only icefloe writes, are changed one by one."""
    second = other(first)
    both = start(tmp_path, setting, first)
    names = [f"n{number}" for number in range(12)]
    made = [["array", name, [6], [2], "int16"] for name in names]
    written = [["write", name, [[0, 6]], seed] for seed, name in enumerate(names)]
    both.change("us", *made, *written)
    both.change("them", ["write", "n3", [[0, 2]], 100], ["delete", "n4"])
    both.change("us", *[["write", name, [[2, 4]], 101] for name in names[5:9]], inline=0)
    both.change(first, ["resize", "n7", [3]], ["resize", "n8", [9]])
    both.change(second, *[["write", name, [[5, 6]], 102] for name in names[7:]])
    both.change(first, *[["delete", name] for name in names[::2] if name != "n4"])
    both.rewrite_manifests(second)
    both.change(first, *[["write", name, [[0, 6]], 103] for name in names[1::2]])


def test_packed_chunks(tmp_path: Path, setting: Setting) -> None:
    """Chunks that icefloe packed are read, replaced, kept and dropped by Icechunk."""
    both = start(tmp_path, setting)
    whole = [[0, 64], [0, 64]]
    both.change(
        "us",
        ["array", "a", [64, 64], [16, 16], "int64"],
        ["write", "a", whole, 1],
        pack=True,
    )
    # Sixteen of Icechunk, which wrote the same and dropped it again, and fewer of ours.
    assert len(list((both.root / "chunks").iterdir())) < 16 + 8
    both.change("them", ["write", "a", [[0, 16], [0, 64]], 2])
    both.change("us", ["write", "a", [[16, 40], [0, 64]], 3], pack=True, split=2)
    both.change("them", ["resize", "a", [40, 64]], ["delete_key", "a/c/1/1"], split=1)
    both.change("us", ["write", "a", [[0, 4], [0, 64]], 4])
    both.rewrite_manifests("them", split=3)
    both.change("us", ["write", "a", [[39, 40], [0, 64]], 5], pack=True)


@pytest.mark.parametrize("first", SIDES)
def test_moves_and_amends(tmp_path: Path, setting_v2: Setting, first: Side) -> None:
    """Version 2: nodes are moved, commits amended, chunks shifted, turn by turn."""
    second = other(first)
    both = start(tmp_path, setting_v2, first)
    both.change(
        first,
        ["group", "", {}],
        ["group", "g", {}],
        ["group", "h", {}],
        A,
        ["array", "g/b", [4], [2], "int8"],
        ["write", "g/a", [[0, 10], [0, 6]], 1],
    )
    both.change(second, ["move", "/g/a", "/h/a"])
    both.change(first, ["write", "h/a", [[0, 3], [0, 6]], 2])
    both.change(second, ["move", "/h", "/g/h"], ["move", "/g/b", "/b"])
    both.change(first, ["move", "/g/h/a", "/a"], ["move", "/b", "/g/b"], ["move", "/g", "/k"])
    for side in SIDES:  # a commit that moved nodes is amended by moves only
        both.change(side, ["write", "a", [[3, 6]], 3], how="amend", must_succeed=False)
        assert len(both.last["lines"]["main"]["history"]) == 6
    both.change(second, ["write", "a", [[3, 6], [0, 6]], 3])
    both.change(first, ["write", "a", [[2, 4], [0, 6]], 4], ["delete", "k/b"], how="amend")
    both.change(second, ["group", "z", {}], ["attributes", "a", {"x": 1}], how="amend")
    both.change(first, ["move", "/a", "/k/a"])
    both.change(second, ["move", "/k", "/z/k"], how="amend")
    both.change(first, ["shift", "/z/k/a", [1, 0]])
    both.change(second, ["shift", "/z/k/a", [-2, 1]])


def test_repository_metadata_and_flags(tmp_path: Path, setting_v2: Setting) -> None:
    """A repository whose file `repo` has been changed often by both has one ops log."""
    both = start(tmp_path, setting_v2)
    sides: list[Any] = ["us", "them"] * 4
    for number, side in enumerate(sides):
        both.change(side, ["group", f"g{number}", {}])
        both.refer(side, "create_tag", f"t{number}", "0")
    assert len(both.last["lines"]["main"]["history"]) == 9
