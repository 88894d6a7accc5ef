"""Chooses between the two codecs of a metadata file by its size.

Columns (`flatbuffer_reader`, `flatbuffer_writer`) cost a fixed number of numpy calls and little per
row; the direct codecs (`direct_reader`, `direct_writer`) cost nothing in advance and some
microseconds per table. Both give equal values.
"""

from __future__ import annotations

_MAX_DIRECT_BYTES = 64 << 10
_MAX_DIRECT_ROWS = 128


def is_small_file(body: bytes) -> bool:
    """Whether a decompressed file is read row by row."""
    return len(body) <= _MAX_DIRECT_BYTES


def is_small(num_rows: int) -> bool:
    """Whether a file of nodes, references or changes is written row by row."""
    return num_rows <= _MAX_DIRECT_ROWS
