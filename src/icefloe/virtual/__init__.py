"""Virtual datasets: parse files into references, combine them, and write them to a session.

Containers, authorization and fetching are in `icefloe.containers`.
"""

from icefloe.containers.virtual_chunks import VirtualChunks as VirtualChunks
from icefloe.model.containers import VirtualChunkContainer as VirtualChunkContainer
from icefloe.model.virtual_chunk_spec import VirtualChunkSpec as VirtualChunkSpec
from icefloe.virtual.agreement import Disagreement as Disagreement
from icefloe.virtual.arrays import LoadedArray as LoadedArray
from icefloe.virtual.arrays import VirtualArray as VirtualArray
from icefloe.virtual.combining import combine as combine
from icefloe.virtual.dataset import VirtualDataset as VirtualDataset
from icefloe.virtual.parsing import parse as parse
from icefloe.virtual.sources import SourceFile as SourceFile
from icefloe.virtual.writer import append as append
from icefloe.virtual.writer import write as write
