"""The generations that tests run over, and how much of each.

The fields of `icefloe.format.generation.Generation` say what a generation lacks: tests ask them,
and assert the refusal.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import pytest

from icefloe.format.generation import GENERATIONS
from support.hypothesis_examples import examples

GENERATION_NAMES: Final = ("draft", "sequence", "v1", "v2")
"""The generations that tests run over."""

ICECHUNK_NAMES: Final = [name for name in GENERATION_NAMES if GENERATIONS[name].spec_version]
"""Those that Icechunk reads: metadata in flatbuffers, and a log of each commit."""

OLDER: Final = tuple(name for name in GENERATION_NAMES if not GENERATIONS[name].spec_version)
"""The others."""

WITHOUT_REPO_INFO: Final = [
    name for name in GENERATION_NAMES if not GENERATIONS[name].has_repo_info
]
"""Those without amendments, a status, feature flags and an ops log."""

V1_AND_OLDER_IN_FULL: Final = [
    "v1",
    *[pytest.param(name, marks=pytest.mark.full) for name in OLDER],
]
"""Parameters for tests that are run over one generation in ``make test``."""


STORES_STRINGS: Final = ["v1", pytest.param("draft", marks=pytest.mark.full)]
"""The same, without ``sequence``, which has no data type for strings."""


def examples_of(generation: str, usual: int, *, thorough: int) -> int:
    """Return the number of Hypothesis examples; a third for the older generations."""
    number = examples(usual, thorough=thorough)
    return max(1, number // 3) if generation in OLDER else number


def find_kind(key: str, generation: str) -> str:
    """Return which files of a generation have such a key: ``manifests``, say; else the key."""
    layout = GENERATIONS[generation].layout
    for field in fields(layout):
        kind = getattr(layout, field.name)
        if kind is not None and kind.parse_name(key):
            return field.name
    return key
