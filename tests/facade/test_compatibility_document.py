"""`docs/compatibility.md` says what the tests say."""

from __future__ import annotations

from pathlib import Path

import pytest

from facade import test_done_right
from support import ROOT
from support.api_differences import DIFFERENCES, Difference

DOCUMENT = (ROOT / "docs" / "compatibility.md").read_text()


def rows(heading: str) -> list[list[str]]:
    section = DOCUMENT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda one: one.what[:30])
def test_every_difference_is_documented(difference: Difference) -> None:
    """With its reason."""
    assert [difference.what, difference.why] in rows("API differences")


def test_no_difference_is_documented_that_is_none() -> None:
    """The tables have the same rows."""
    assert len(rows("API differences")) == len(DIFFERENCES)


def test_what_is_done_right_is_tested() -> None:
    """One test for each row; the two about prefixes share theirs."""
    tests = {name for name in vars(test_done_right) if name.startswith("test_")}
    tests.remove("test_what_differs_in_behaviour")
    assert len(rows("Corrected behaviour")) - 1 == len(tests)


def test_the_versions_are_those_of_the_tests() -> None:
    """Of the golden repositories, and of the list of names."""
    golden = {path.name for path in (ROOT / "tests" / "golden").iterdir()}
    assert golden == {"v1-by-1.1.21", "v1-by-2.3.0", "v2-by-2.3.0"}
    assert (Path(__file__).parent / "icechunk-2.3.0.json").exists()
    for row in rows("Versions")[:2]:
        for name in golden:
            version, _, release = name.partition("-by-")
            if row[0].endswith(version[1:]):
                assert release in row[1]
