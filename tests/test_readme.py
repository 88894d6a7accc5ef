"""What README.md and the documents show, runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
BLOCKS = re.findall(r"```python\n(.*?)```", README + DOCUMENTS, re.DOTALL)


def examples() -> list[str]:
    """Return the Python examples; a block that imports nothing goes on with the one before it."""
    found: list[str] = []
    for block in BLOCKS:
        if block.startswith(("import ", "from ")):
            found.append(block)
        else:
            found[-1] += block
    return found


@pytest.mark.parametrize("example", examples())
def test_examples_run(example: str) -> None:
    """Each Python example runs as it stands, from the project's root."""
    subprocess.run([sys.executable, "-c", example], cwd=ROOT, check=True, capture_output=True)


def test_commands_exist() -> None:
    """Each command and option of the console examples is in the help."""
    icefloe = Path(sys.executable).with_name("icefloe")
    environment = {**os.environ, "COLUMNS": "200"}
    for command, rest in re.findall(r"\$ icefloe (\w+) ([^\n#]*)", README + DOCUMENTS):
        done = subprocess.run(
            [icefloe, command, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        for option in re.findall(r"--\w+", rest):
            assert option in done.stdout
    targets = re.findall(r"\$ make (\w+)", README)
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert all(f"\n{target}:" in makefile for target in targets)


def test_links_lead_somewhere() -> None:
    """Each file that README.md, ARCHITECTURE.md and the notes name is there."""
    for document in (
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        *ROOT.glob("design/*.md"),
        *ROOT.glob("docs/*.md"),
    ):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} names {target}"


def test_architecture_is_true() -> None:
    """Each source file and each test that ARCHITECTURE.md names in code style is there."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    names = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text)) | set(
        re.findall(r"`((?:tests|fuzz|bench)/[\w/.]*)`", text)
    )
    assert len(names) > 25
    sources = [path.as_posix() for path in (ROOT / "src").rglob("*.py")]
    for name in sorted(names):
        found = (ROOT / name).exists() or any(path.endswith("/" + name) for path in sources)
        assert found, f"ARCHITECTURE.md names {name}"
