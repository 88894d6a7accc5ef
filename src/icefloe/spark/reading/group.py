"""The variables of a group, from the metadata in the snapshot, without opening arrays."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import NodeNotFoundError
from icefloe.model.node import ArrayNodeData, NodeSnapshot
from icefloe.model.path import Path
from icefloe.session import Session, contents
from icefloe.spark.option_parsing import input_error, suggest_name
from icefloe.spark.reading.axes import Edges, RegularEdges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import zarr


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """An array as a variable of xarray; unnamed dimensions are ``dim_0``, ``dim_1``, and so on."""

    name: str
    path: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    attributes: Mapping[str, Any]

    @property
    def is_index(self) -> bool:
        """Whether the variable has the labels of the dimension of the same name."""
        return self.dims == (self.name,)

    def list_names(self, *attributes: str) -> set[str]:
        """Return the names of variables in attributes such as ``coordinates``."""
        return _split_names(self.attributes.get(attribute) for attribute in attributes)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A group of a snapshot: its attributes and its child arrays."""

    path: str
    attributes: Mapping[str, Any]
    variables: Mapping[str, Variable]

    @classmethod
    def fetch(cls, session: Session, path: str) -> Group:
        """Look up a group; raise `NodeNotFoundError` if there is none."""
        node = contents.get_node(session, Path(path))
        if node is None:
            nodes = contents.iter_nodes_below(session, Path("/"))
            groups = [node.path.value for node in nodes if not node.is_array]
            raise NodeNotFoundError(
                f"there is no group {path!r} in snapshot {session.snapshot_id} of "
                f"{session.connection.storage.url}: {suggest_name(path, ['/', *groups])}"
            )
        if node.is_array:
            raise input_error(
                f"{path!r} is an array: set 'group' to its group, and 'variables' to its name"
            )
        arrays = (node for node in contents.list_child_nodes(session, node.path) if node.is_array)
        variables = {array.path.name: _make_variable(array) for array in arrays}
        return cls(path, _parse_attributes(node), variables)

    def get_variable(self, name: str) -> Variable:
        """Return a variable; raise `NodeNotFoundError` if there is none."""
        if name not in self.variables:
            raise NodeNotFoundError(
                f"there is no variable {name!r} in group {self.path!r}: "
                f"{suggest_name(name, self.variables)}"
            )
        return self.variables[name]

    @property
    def coordinates(self) -> set[str]:
        """Names in the group's attribute ``coordinates``."""
        return _split_names([self.attributes.get("coordinates")])

    def has_labels(self, dimension: str) -> bool:
        """Whether the positions along a dimension have labels."""
        return dimension in self.variables and self.variables[dimension].is_index

    def get_sizes(
        self, variables: Iterable[Variable], *, dims: Sequence[str] | None = None
    ) -> dict[str, int]:
        """Return the lengths of dimensions (by default all); raise if variables disagree."""
        sizes: dict[str, tuple[int, str]] = {}
        for variable in variables:
            for name, length in zip(variable.dims, variable.shape, strict=True):
                if dims is not None and name not in dims:
                    continue
                expected, other = sizes.setdefault(name, (length, variable.name))
                if length != expected:
                    raise input_error(
                        f"dimension {name!r} has {expected} positions in {other!r} and {length} in "
                        f"{variable.name!r}: choose one with the option 'variables'"
                    )
        return {name: length for name, (length, _) in sizes.items()}


def has_arrays(session: Session, path: str) -> bool:
    """Whether a path has child arrays; the path itself need not exist."""
    return any(node.is_array for node in contents.list_child_nodes(session, Path(path)))


def get_chunk_edges(array: zarr.Array[Any]) -> tuple[Edges, ...]:
    """Return the edges of the chunks of an array, or of its shards if it is sharded."""
    grid = array.metadata.chunk_grid
    # A rectilinear grid lists the sizes of all chunks of a dimension.
    shapes = getattr(grid, "chunk_shape", getattr(grid, "chunk_shapes", None))
    if shapes is None:
        raise input_error(f"the chunk grid of {array.path!r} is not supported: {grid}")
    return tuple(
        RegularEdges(array.path, length, max(sizes, 1))
        if isinstance(sizes, int)
        else np.concatenate([[0], np.cumsum(sizes)]).clip(max=length).astype(np.int64)
        for length, sizes in zip(array.shape, shapes, strict=True)
    )


def _make_variable(node: NodeSnapshot) -> Variable:
    data = node.node_data
    assert isinstance(data, ArrayNodeData)  # noqa: S101 - the caller checked
    names = data.dimension_names or (None,) * len(data.shape)
    return Variable(
        node.path.name,
        node.path.value,
        tuple(name or f"dim_{number}" for number, name in enumerate(names)),
        tuple(dimension.array_length for dimension in data.shape),
        _parse_attributes(node),
    )


def _parse_attributes(node: NodeSnapshot) -> dict[str, Any]:
    attributes = json.loads(node.user_data).get("attributes") if node.user_data else None
    return attributes if isinstance(attributes, dict) else {}


def _split_names(texts: Iterable[Any]) -> set[str]:
    return {name for text in texts if isinstance(text, str) for name in text.split()}
