"""The keys of reference stores, where tests need to know them."""

from __future__ import annotations

from icefloe.format.generation import DRAFT, SEQUENCE, V1, V2

PUBLISHING_KEYS = {
    V2: "repo",
    V1: "refs/branch.main/ref.json",
    DRAFT: "state.json",
    SEQUENCE: "r/main/ZZZZZZZZ.json",
}
"""The file whose creation publishes a new repository; readers look for it in this order."""

GENERATIONS_WITH_REF_FILES = (SEQUENCE, V1)
"""Generations in which each branch and tag has its own files, whose keys contain its name."""
