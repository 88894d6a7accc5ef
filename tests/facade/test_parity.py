"""icefloe offers what Icechunk offers; what differs is in one table, and in the documentation."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.api_comparison import compare, problems
from support.api_differences import DIFFERENCES, explained
from support.api_inventory import describe, dumps, inventory

RELEASE = "2.3.0"
FROZEN = Path(__file__).parent / f"icechunk-{RELEASE}.json"
ICECHUNK = json.loads(FROZEN.read_text())
SUBMODULES_OF_ICECHUNK = ("testing", "vendor")


def findings(module: str, names: dict[str, Any]) -> list[str]:
    suffix = "" if module in {".", "compiled"} else module
    ours = importlib.import_module(f"icefloe{suffix}")
    prefix = f"{suffix.lstrip('.')}." if suffix else ""
    found = []
    for name, theirs in names.items():
        if not hasattr(ours, name):
            found.append(f"{prefix}{name} is missing")
        else:
            found += compare(name, theirs, describe(getattr(ours, name)))
    return found


def all_findings() -> list[str]:
    found = [finding for module, names in ICECHUNK.items() for finding in findings(module, names)]
    missing = [name for name in SUBMODULES_OF_ICECHUNK if not find_spec(f"icefloe.{name}")]
    return [*found, *(f"{name} is missing" for name in missing)]


@pytest.mark.parametrize("module", ICECHUNK)
def test_every_name_and_call_of_icechunk_is_here(module: str) -> None:
    """Names, members, and parameters with their order and defaults."""
    assert [text for text in findings(module, ICECHUNK[module]) if not explained(text)] == []


def test_every_difference_is_one() -> None:
    """What is no longer different leaves the table."""
    found = all_findings()
    unused = [
        pattern
        for difference in DIFFERENCES
        for pattern in difference.patterns
        if not any(fnmatchcase(finding, pattern) for finding in found)
    ]
    assert unused == []


def test_the_frozen_list_is_icechunks() -> None:
    """The list that is compared with was not written by hand."""
    installed = importlib.metadata.version("icechunk")
    if installed != RELEASE:
        pytest.skip(f"icechunk {installed} is installed, and the list is of {RELEASE}")
    assert dumps(inventory("icechunk")) == FROZEN.read_text()


@pytest.mark.parametrize(
    "theirs, ours, expected",
    [
        ("a, b=1", "a, b=1", []),
        ("a", "a, more=None", []),
        ("a, *, b=1", "a, b=1", []),
        ("a", "b", ["a is b at this position", "a is not taken", "b is asked for besides"]),
        ("a, b=1", "a, *, b=1", ["b cannot be given by position"]),
        ("a=1", "a", ["a has no default"]),
        ("a=1", "a=2", ["a has the default 2, not 1"]),
        ("a", "a, b", ["b is asked for besides"]),
        ("_0", "credentials", []),
        ("a, b", "*args, **kwargs", []),
    ],
)
def test_what_counts_as_a_difference(theirs: str, ours: str, expected: list[str]) -> None:
    """The comparison finds what would break a call."""
    assert problems(_parameters(theirs), _parameters(ours)) == expected


def _parameters(signature: str) -> list[list[str]]:
    scope: dict[str, Any] = {}
    exec(f"def call({signature}): ...", scope)  # noqa: S102
    described: list[list[str]] = describe(scope["call"])["call"]
    return described
