"""The repositories under tests/golden, which real Icechunk wheels wrote, and what is in them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = ("v1-by-1.1.21", "v1-by-2.3.0", "v2-by-2.3.0")


@dataclass(frozen=True)
class Golden:
    """One repository and the ``expected.json`` that was written beside it."""

    name: str

    @property
    def repository(self) -> Path:
        return GOLDEN / self.name / "repo"

    @property
    def expected(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((GOLDEN / self.name / "expected.json").read_bytes())
        return content

    def files(self) -> list[Path]:
        return sorted(path for path in self.repository.rglob("*") if path.is_file())


every_golden = pytest.mark.parametrize("golden", [Golden(name) for name in NAMES], ids=NAMES)
