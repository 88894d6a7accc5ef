"""Reads the arrays of a snapshot through zarr, from the chunk payloads that icefloe decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import zarr
import zarr.core.buffer

from icefloe.model.chunk_payload import ChunkRef, InlineChunk
from icefloe.model.node import ArrayNodeData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.assets import Assets
    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.snapshot import Snapshot


def payloads(assets: Assets, node: NodeSnapshot) -> Iterator[tuple[list[int], ChunkPayload]]:
    """Yield every chunk of an array, from all of its manifests."""
    assert isinstance(node.node_data, ArrayNodeData)
    for ref in node.node_data.manifests:
        part = assets.fetch_manifest(ref.id).get_array(node.id)
        assert part is not None, f"{node.path} points at a manifest that does not know it"
        for row, coords in enumerate(part.coords.tolist()):
            assert ref.extents.contains(tuple(coords))
            yield coords, part.payloads[row]


def open_array(assets: Assets, snapshot: Snapshot, node: NodeSnapshot) -> zarr.Array[Any]:
    """Open an array whose chunks are all inside the repository."""
    contents = {"zarr.json": node.user_data}
    for coords, payload in payloads(assets, node):
        key = "/".join(["c", *map(str, coords)])
        match payload:
            case ChunkRef():
                contents[key] = bytes(assets.chunks.fetch(payload))
            case InlineChunk(data):
                contents[key] = data
            case _:
                raise AssertionError(f"{node.path} has a virtual chunk")
    buffers = {
        key: zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(data)
        for key, data in contents.items()
    }
    return zarr.open_array(zarr.storage.MemoryStore(buffers), mode="r")
