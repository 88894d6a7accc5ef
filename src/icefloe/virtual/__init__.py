"""Virtual datasets: parse files into references, combine them, and write them to a session.

Containers, authorization and fetching are in `icefloe.containers`.
"""

from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.model.containers import VirtualChunkContainer
from icefloe.model.virtual_chunk_spec import VirtualChunkSpec
from icefloe.virtual.agreement import Disagreement
from icefloe.virtual.arrays import LoadedArray, VirtualArray
from icefloe.virtual.combining import combine
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.parsing import parse
from icefloe.virtual.sources import SourceFile
from icefloe.virtual.writer import append, write

__all__ = [
    "Disagreement",
    "LoadedArray",
    "SourceFile",
    "VirtualArray",
    "VirtualChunkContainer",
    "VirtualChunkSpec",
    "VirtualChunks",
    "VirtualDataset",
    "append",
    "combine",
    "parse",
    "write",
]
