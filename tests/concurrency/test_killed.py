"""A committer that is killed at any storage call leaves the old snapshot or the new one, whole."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support import SUPPORT, warm_python

if TYPE_CHECKING:
    from concurrency.conftest import Place

SCRIPT = SUPPORT / "dying_committer.py"
LOCAL = "local"
S3_IN_FULL = pytest.param("s3", marks=pytest.mark.full)


def deaths_of(place: Place, scenario: str, generation: str, settings: str) -> list[dict[str, Any]]:
    """Tell what is found after a killing at each call; the last of each kind survived."""
    done = warm_python.run(sys.executable, SCRIPT, place.name, scenario, generation, settings)
    assert done.returncode == 0, done.stderr[-3000:]
    deaths: list[dict[str, Any]] = json.loads(done.stdout)
    for torn in {death["torn"] for death in deaths}:
        killed = [death["killed"] for death in deaths if death["torn"] is torn]
        assert killed == [True] * (len(killed) - 1) + [False]
    return deaths


@pytest.mark.parametrize("settings", ["plain", "packed split"])
@pytest.mark.parametrize("place", [LOCAL, S3_IN_FULL], indirect=True)
def test_killed_in_a_commit(place: Place, generation: str, settings: str) -> None:
    """Whichever call is the last, a survivor sees one state, all of it, and commits the next."""
    deaths = deaths_of(place, "commit", generation, settings)
    old = ["old", "base", "Repository initialized"]
    for death in deaths:
        assert death["content"] in {"old", "new"}, death
        assert death["history"] == ([] if death["content"] == "old" else ["new"]) + old
        assert death["goes_on"], death
    before = [death["content"] for death in deaths if not death["torn"]]
    switch = before.index("new")
    # The commit shows with its last write and not earlier.
    assert before == ["old"] * switch + ["new"] * (len(before) - switch)
    assert switch > 8
    torn = [death["content"] for death in deaths if death["torn"]]
    if place.is_s3:
        assert not torn
        return
    assert torn == ["old"] * (len(torn) - 1) + ["new"]
    assert len(torn) > 4


@pytest.mark.parametrize("place", [LOCAL, S3_IN_FULL], indirect=True)
def test_killed_in_an_amendment(place: Place) -> None:
    """History has the commit or the one in its place, and never both or none."""
    for death in deaths_of(place, "amend", "v2", "plain"):
        assert death["content"] in {"old", "new"}, death
        assert death["history"] == [death["content"], "base", "Repository initialized"]
        assert death["goes_on"], death


@pytest.mark.parametrize("place", [LOCAL, S3_IN_FULL], indirect=True)
def test_killed_in_creation(place: Place, generation: str) -> None:
    """There is a repository with its configuration, or a place where one can be created."""
    deaths = deaths_of(place, "create", generation, "split")
    assert {death["content"] for death in deaths if not death["torn"]} == {"old", "new"}
    assert all(death["goes_on"] for death in deaths), deaths
