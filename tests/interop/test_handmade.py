"""What icefloe's format layer writes from nothing opens in the real Icechunk, with equal data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe.model.ids import INITIAL_SNAPSHOT_ID
from support.handmade_repositories import MESSAGE, METADATA, Handmade, write_handmade

Reader = Callable[[Path, str | None], dict[str, Any]]


def _check(found: dict[str, Any], made: Handmade) -> None:
    snapshot_id = str(made.snapshot_id)
    assert found["branches"] == {"main": snapshot_id, "dev": str(INITIAL_SNAPSHOT_ID)}
    assert found["tags"] == {"v1": str(INITIAL_SNAPSHOT_ID)}
    newest = found["ancestry"]["main"][0]
    assert (newest["message"], newest["metadata"]) == (MESSAGE, METADATA)
    assert len(found["ancestry"]["main"]) == 2
    nodes = found["snapshots"][snapshot_id]
    assert {path: node["sha256"] for path, node in nodes.items() if "sha256" in node} == {
        path: hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
        for path, values in made.arrays.items()
    }
    assert nodes["/deep/ähre"] == {"attributes": {"made": "by hand"}, "type": "group"}
    assert found["config"] == {
        "inline_chunk_threshold_bytes": 77,
        "containers": [made.virtual_prefix],
    }
    assert set(found["diffs"]["main"]["new_arrays"]) == set(made.arrays)
    assert len(found["diffs"]["main"]["updated_chunks"]["/many"]) == 1200


def test_icechunk_1_reads_version_1(tmp_path: Path, read_with_icechunk1: Reader) -> None:
    """Icechunk 1.1 opens a version 1 repository: native, packed, inline and virtual chunks."""
    made = write_handmade(tmp_path / "repo", tmp_path / "virtual", spec_version=1)
    _check(read_with_icechunk1(tmp_path / "repo", made.virtual_prefix), made)


@pytest.mark.parametrize("kind", ["version 1", "version 2", "both versions mixed"])
def test_icechunk_2_reads(kind: str, tmp_path: Path, read_with_icechunk2: Reader) -> None:
    """Icechunk 2.x opens repositories of each version, and one whose files have either."""
    made = write_handmade(
        tmp_path / "repo",
        tmp_path / "virtual",
        spec_version=1 if kind == "version 1" else 2,
        mixed=kind == "both versions mixed",
    )
    found = read_with_icechunk2(tmp_path / "repo", made.virtual_prefix)
    _check(found, made)
    if kind != "version 1":
        assert found["ops"] == [
            "MetadataChanged",
            "BranchReset",
            "BranchCreated",
            "TagDeleted",
            "TagCreated",
            "TagCreated",
            "NewCommit",
            "RepoInitialized",
        ]
        assert found["repo_metadata"] == {"owner": "icefloe"}
