"""A fixed history gives the same files in every release."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import SUPPORT

RECORDED = Path(__file__).with_name("same-bytes.sha256")


def test_a_fixed_history_gives_the_recorded_files(tmp_path: Path) -> None:
    """Files have the recorded names and, apart from compression, the recorded bytes.

    A change of the format on purpose records new digests:
    ``python tests/support/fixed_history.py --content FOLDER > tests/interop/same-bytes.sha256``.
    """
    script = SUPPORT / "fixed_history.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path / "repositories", "--content"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written, recorded = parse_digests(done.stdout), parse_digests(RECORDED.read_text())
    assert written.keys() == recorded.keys()
    assert [path for path in recorded if written[path] != recorded[path]] == []


def parse_digests(text: str) -> dict[str, str]:
    lines = [line.split("  ", 1) for line in text.splitlines()]
    return {path: digest for digest, path in lines}
