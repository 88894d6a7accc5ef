"""The header and the content of metadata files, read without either library."""

from __future__ import annotations

import zstandard

HEADER_SIZE = 39  # of each metadata file; the rest is compressed


def unpack(data: bytes) -> tuple[bytes, bytearray]:
    """Return the header and the content of a metadata file."""
    content = zstandard.ZstdDecompressor().decompress(data[HEADER_SIZE:], 1 << 24)
    return data[:HEADER_SIZE], bytearray(content)
