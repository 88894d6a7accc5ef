"""A directory for files and for a repository that refers to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.netcdf_archives import Place

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
