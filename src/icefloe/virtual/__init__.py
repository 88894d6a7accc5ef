"""Virtual datasets: parse files into references, combine them, and write them to a session.

Containers, authorization and fetching are in `icefloe.containers`.
"""

import typing as _typing
from inspect import ismodule as _ismodule

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

# Type checkers read the imports; at run time, submodules are not public names.
if not _typing.TYPE_CHECKING:
    __all__ = [name for name in dir() if name[0] != "_" and not _ismodule(globals()[name])]
