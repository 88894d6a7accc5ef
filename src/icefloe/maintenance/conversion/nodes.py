"""Converts the nodes of snapshots, and finds what the target generation cannot express."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from icefloe.errors import FormatError, InvalidInputError
from icefloe.model.node import ArrayNodeData, ManifestRef, NodeSnapshot
from icefloe.transaction.zarr_metadata import parse_node_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.format.generation import Generation
    from icefloe.maintenance.conversion.object_ids import MapManifestId
    from icefloe.model.ids import NodeId
    from icefloe.model.node import NodeData

_MAX_CACHED_DOCUMENTS = 10_000


class NodeConverter:
    """Converts nodes to a generation; equal documents are converted once."""

    def __init__(self, target: Generation, map_manifest_id: MapManifestId) -> None:
        self._target = target
        self._map_manifest_id = map_manifest_id
        # Most nodes are the same in successive snapshots.
        self._convert_document = lru_cache(_MAX_CACHED_DOCUMENTS)(self._convert_new_document)

    def find_problem(self, node: NodeSnapshot) -> str | None:
        """Return why a node cannot be stored in the target, or None."""
        problem = self._convert_document(node.user_data, _get_key(node))[2]
        return problem if problem is None else problem.problem

    def convert(self, node: NodeSnapshot, ids: Mapping[NodeId, NodeId] | None) -> NodeSnapshot:
        """Convert a node, without the place of its attributes."""
        user_data, parsed, problem = self._convert_document(node.user_data, _get_key(node))
        if problem is not None:
            raise problem
        data = node.node_data
        if isinstance(data, ArrayNodeData):
            # The new shape has what only some generations store, such as chunk lengths.
            shape = parsed.shape if isinstance(parsed, ArrayNodeData) else data.shape
            manifests = tuple(
                ManifestRef(self._map_manifest_id(ref.id), ref.extents) for ref in data.manifests
            )
            data = replace(data, shape=shape, manifests=manifests)
        node_id = node.id if ids is None else ids[node.id]
        return NodeSnapshot(node_id, node.path, user_data, data)

    def _convert_new_document(
        self, data: bytes, key: str
    ) -> tuple[bytes, NodeData | None, FormatError | None]:
        """Return the document, its parsed form if it can be parsed, and the problem if any."""
        try:
            data = self._target.codec.normalize_document(data, key)
        except FormatError as error:
            return data, None, error
        except InvalidInputError as error:
            return data, None, FormatError(error.message, kind=error.kind)
        try:
            return data, parse_node_metadata(data, key=key, generation=self._target), None
        except FormatError as error:
            return data, None, error
        except InvalidInputError as error:
            # Icechunk stores some documents that icefloe would not; the cause is a feature that the
            # target lacks.
            cause = error.__cause__
            return data, None, cause if isinstance(cause, FormatError) else None


def _get_key(node: NodeSnapshot) -> str:
    return f"{node.path}/zarr.json".lstrip("/")
