"""The examples, commands and links of README.md and docs/ work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# Its examples need a repository: tests/format/test_draft_queries.py runs them.
QUERIES = "query-draft-metadata.md"
DOCUMENTS = "".join(
    path.read_text() for path in sorted((ROOT / "docs").glob("*.md")) if path.name != QUERIES
)
BLOCKS = re.findall(r"```python\n(.*?)```", README + DOCUMENTS, re.DOTALL)


def examples() -> list[str]:
    """Return the Python examples; a block without imports continues the previous one."""
    found: list[str] = []
    for block in BLOCKS:
        if block.startswith(("import ", "from ")):
            found.append(block)
        else:
            found[-1] += block
    return found


@pytest.mark.parametrize("example", examples())
def test_examples_run(example: str) -> None:
    """Each Python example runs unchanged from the root of the project."""
    subprocess.run([sys.executable, "-c", example], cwd=ROOT, check=True, capture_output=True)


def test_commands_exist() -> None:
    """The commands and options of the console examples are in the help."""
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
    guides = "".join((ROOT / name).read_text() for name in ("CONTRIBUTING.md", "RELEASING.md"))
    targets = re.findall(r"[$`] ?make ([\w-]+)", README + guides)
    makefile = (ROOT / "Makefile").read_text()
    assert len(targets) > 10
    assert all(f"\n{target}:" in makefile for target in targets)


def test_linked_files_exist() -> None:
    """Files that documents link to exist."""
    for document in (*ROOT.glob("*.md"), *ROOT.glob("design/*.md"), *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("name, at_least", [("ARCHITECTURE.md", 25), ("CONTRIBUTING.md", 10)])
def test_named_files_exist(name: str, at_least: int) -> None:
    """Source files and tests that the guides name in code style exist."""
    text = (ROOT / name).read_text()
    names = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text)) | set(
        re.findall(r"`((?:tests|fuzz|bench|docs)/[\w/.-]*)`", text)
    )
    assert len(names) >= at_least
    sources = [path.as_posix() for path in (ROOT / "src").rglob("*.py")]
    missing = [
        path
        for path in sorted(names)
        if not (ROOT / path).exists() and not any(found.endswith("/" + path) for found in sources)
    ]
    assert missing == []
