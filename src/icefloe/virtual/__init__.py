"""Virtual chunks: byte ranges of files outside the repository, read where the user allowed it.

Seed `002`. `locations` reads URLs, `container_table` finds the container of each, `authorization`
says which of them the user opened, `stores` and `local_files` fetch bytes; `virtual_chunks` is the
one object that sessions hold. `files` turns files of arrays into references: `parse` and `combine`,
and `write` and `append` to bring them into a session. Those are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from icefloe.model.containers import VirtualChunkContainer
from icefloe.model.virtual_chunk_spec import VirtualChunkSpec
from icefloe.virtual.virtual_chunks import VirtualChunks

if TYPE_CHECKING:
    from icefloe.virtual.files.agreement import Disagreement
    from icefloe.virtual.files.combining import combine
    from icefloe.virtual.files.dataset import LoadedArray, SourceFile, VirtualArray, VirtualDataset
    from icefloe.virtual.files.parsing import parse
    from icefloe.virtual_writer import append, write

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

_MODULE_OF_NAME: Final = {
    "Disagreement": "icefloe.virtual.files.agreement",
    "LoadedArray": "icefloe.virtual.files.dataset",
    "SourceFile": "icefloe.virtual.files.dataset",
    "VirtualArray": "icefloe.virtual.files.dataset",
    "VirtualDataset": "icefloe.virtual.files.dataset",
    "append": "icefloe.virtual_writer",
    "combine": "icefloe.virtual.files.combining",
    "parse": "icefloe.virtual.files.parsing",
    "write": "icefloe.virtual_writer",
}
"""Where what is loaded late is: the writer lies above this package, as it knows sessions."""


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value
    return value
