"""Virtual chunks: byte ranges of files outside the repository, read where the user allowed it.

Seed `002`. `locations` reads URLs, `container_table` finds the container of each, `authorization`
says which of them the user opened, `stores` and `local_files` fetch bytes; `virtual_chunks` is the
one object that sessions hold.
"""

from icefloe.model.containers import VirtualChunkContainer
from icefloe.model.virtual_chunk_spec import VirtualChunkSpec
from icefloe.virtual.virtual_chunks import VirtualChunks

__all__ = ["VirtualChunkContainer", "VirtualChunkSpec", "VirtualChunks"]
