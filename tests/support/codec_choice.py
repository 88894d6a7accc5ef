"""Makes small metadata files take the path of large ones."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from icefloe.format import size_choice

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def columnar_codecs() -> Iterator[None]:
    """Read and write files of any size with the columnar codecs."""
    with patch.multiple(size_choice, _MAX_DIRECT_BYTES=-1, _MAX_DIRECT_ROWS=-1):
        yield
