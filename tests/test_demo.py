"""The demo runs as in `make demo`, with fewer days."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "demo"
DAYS = 35
OLDER = ("draft", "sequence")

pytest.importorskip("pyspark", reason="SPARK IS NOT TESTED ON THIS MACHINE: no pyspark")


@pytest.mark.parametrize(
    "generation", ["v1", *[pytest.param(name, marks=pytest.mark.full) for name in OLDER]]
)
def test_demo(tmp_path: Path, generation: str) -> None:
    """The output and the report list all steps with the right numbers."""
    # A copy, because the demo deletes and writes its output folder.
    shutil.copytree(DEMO, tmp_path / "demo", ignore=shutil.ignore_patterns("output"))
    done = subprocess.run(
        [sys.executable, "demo/demo.py", str(DAYS), generation],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output = tmp_path / "demo" / "output"
    picture, report = (output / "weather.png").read_bytes(), (output / "report.md").read_text()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000
    assert report.startswith(
        f"# {DAYS + 1} days of weather\n\n![A map and a time series](weather.png)"
    )
    steps = {
        "Archive": f"{DAYS} NetCDF4 files",
        "Spark": "cores",
        "Repository": f"generation {generation} of",
        "Virtualize": f"{DAYS} files",
        "Ingest": f"{DAYS} files",
        "Append a day": "1 file",
        "Append it again": "nothing",
        "Rechunk": "chunks",
        # 18 latitudes of 144 cells each; two latitudes have 21 missing cells each.
        "Spark SQL": f"of {(DAYS + 1) * (18 * 144 - 2 * 21):,} cells north of 45°, November is",
        "Time travel": f"{DAYS} days at the tag, {DAYS + 1} now",
        "Plot": "output/weather.png",
    }
    for step, result in steps.items():
        assert result in next(line for line in report.splitlines() if f"| {step} |" in line)
        assert step in done.stdout
    commits = re.findall(r"^- `[0-9A-Z]{20,26}` (.+)$", report, re.MULTILINE)
    assert len(commits) == 5, "one per job with changes, and the initial commit"
