"""Data of the manifest benchmarks: a million virtual references into a thousand files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILES, CHUNKS_PER_FILE = 1000, 1000
GRID = (FILES, 10, CHUNKS_PER_FILE // 10)
PATTERNS = ("regular", "compressed")


def format_location(number: int) -> str:
    """Return the location of a file."""
    return f"s3://example-bucket/data/era5/t2m_{number:05d}.nc"


def make_ranges(pattern: str) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return offsets and lengths: chunks of equal size, or of varying size as if compressed."""
    shape = (FILES, CHUNKS_PER_FILE)
    if pattern == "regular":
        lengths = np.full(shape, 40_000, np.uint64)
    else:
        lengths = np.random.default_rng(0).integers(20_000, 60_000, shape).astype(np.uint64)
    offsets = np.cumsum(lengths, axis=1, dtype=np.uint64) - lengths + np.uint64(4096)
    return offsets.reshape(-1), lengths.reshape(-1)


def make_indices() -> NDArray[np.uint32]:
    """Return the chunk index of each reference."""
    numbers = np.arange(FILES * CHUNKS_PER_FILE)
    return np.stack(np.unravel_index(numbers, GRID), 1).astype(np.uint32)
