"""Processes that are killed at random while others collect garbage lose no commit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "fuzz" / "stress.py"
IN_FULL = pytest.mark.full


@pytest.mark.parametrize(
    "place, generation",
    [
        ("local", "v2"),
        pytest.param("local", "v1", marks=IN_FULL),
        pytest.param("s3", "v1", marks=IN_FULL),
        pytest.param("s3", "v2", marks=IN_FULL),
    ],
)
def test_no_commit_is_lost(place: str, generation: str) -> None:
    """Eight writers of native and packed chunks, careless maintenance, and Icechunk on S3."""
    options = ["--seconds", "10", "--place", place, "--generation", generation]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "'committed': " in done.stdout
