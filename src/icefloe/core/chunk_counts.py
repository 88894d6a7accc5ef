"""Numbers and sizes of the chunks of an array, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_payload import ChunkKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.model.manifest import ArrayManifest


@dataclass(frozen=True, slots=True)
class ChunkCounts:
    """The stored chunks of an array by kind, and their sizes."""

    native: int = 0
    virtual: int = 0
    inline: int = 0
    native_bytes: int = 0
    virtual_bytes: int = 0
    inline_bytes: int = 0

    @property
    def total(self) -> int:
        """Number of stored chunks."""
        return self.native + self.virtual + self.inline

    @property
    def total_bytes(self) -> int:
        """Size of all stored chunks, as encoded by their codecs."""
        return self.native_bytes + self.virtual_bytes + self.inline_bytes


def count_chunks(parts: Iterable[ArrayManifest]) -> ChunkCounts:
    """Count chunk references; each reference counts, also of a byte range that others share."""
    counts = np.zeros(len(ChunkKind) + 1, np.int64)
    sizes = np.zeros(len(ChunkKind) + 1, np.int64)
    for refs in parts:
        for kind in ChunkKind:
            is_kind = refs.payloads.kind == kind
            counts[kind] += np.count_nonzero(is_kind)
            sizes[kind] += int(refs.payloads.length[is_kind].sum())
    return ChunkCounts(*counts[1:].tolist(), *sizes[1:].tolist())
