"""The variables of a group, from the snapshot alone: no array is opened, no chunk is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import NodeNotFoundError
from icefloe.model.node import ArrayNodeData
from icefloe.model.path import Path
from icefloe.session import contents
from icefloe.spark.reading.axes import RegularEdges
from icefloe.spark.reading.read_options import invalid_input, suggest_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import zarr

    from icefloe.model.node import NodeSnapshot
    from icefloe.session import Session
    from icefloe.spark.reading.axes import Edges


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """An array of a group, as the conventions of xarray see it.

    A dimension without a name is called ``dim_0``, ``dim_1``, …, by its place.
    """

    name: str
    path: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    attributes: Mapping[str, Any]

    @property
    def is_index(self) -> bool:
        """Whether it has the labels of the dimension that it is named after."""
        return self.dims == (self.name,)

    def names_in(self, *attributes: str) -> set[str]:
        """Tell the names in attributes that list other variables, such as ``coordinates``."""
        texts = [self.attributes.get(attribute) for attribute in attributes]
        return {name for text in texts if isinstance(text, str) for name in text.split()}


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A group of a snapshot: its attributes, and the arrays right below it."""

    path: str
    attributes: Mapping[str, Any]
    variables: Mapping[str, Variable]

    @classmethod
    def fetch(cls, session: Session, path: str) -> Group:
        """RowSummary a group up.

        Raises
        ------
        NodeNotFoundError
            If there is none; the message names one that may have been meant.
        """
        place = Path(path)
        node = contents.get_node(session, place)
        if node is None:
            groups = [
                node.path.value
                for node in contents.iter_nodes_below(session, Path("/"))
                if not node.is_array
            ]
            raise NodeNotFoundError(
                f"there is no group {path!r} in snapshot {session.snapshot_id} of "
                f"{session.connection.storage.url}: {suggest_name(path, ['/', *groups])}"
            )
        if node.is_array:
            raise invalid_input(
                f"{path!r} is an array: name its group as 'group', and it in 'variables'"
            )
        arrays = [child for child in contents.child_nodes(session, place) if child.is_array]
        return cls(path, _attributes(node), {array.path.name: _variable(array) for array in arrays})

    def variable(self, name: str) -> Variable:
        """Return a variable; the message where there is none names one that may be meant."""
        try:
            return self.variables[name]
        except KeyError:
            raise NodeNotFoundError(
                f"there is no variable {name!r} in group {self.path!r}: "
                f"{suggest_name(name, self.variables)}"
            ) from None

    def has_labels(self, dimension: str) -> bool:
        """Whether the positions along a dimension have labels."""
        return dimension in self.variables and self.variables[dimension].is_index

    def sizes(
        self, variables: Iterable[Variable], *, along: Iterable[str] | None = None
    ) -> dict[str, int]:
        """Tell the length of each dimension of some variables, which must agree about it.

        ``along`` names the dimensions that matter, where not all of them do.
        """
        wanted = None if along is None else set(along)
        first: dict[str, Variable] = {}
        found: dict[str, int] = {}
        for variable in variables:
            for name, length in zip(variable.dims, variable.shape, strict=True):
                if wanted is not None and name not in wanted:
                    continue
                if found.setdefault(name, length) != length:
                    raise invalid_input(
                        f"dimension {name!r} has {found[name]} positions in "
                        f"{first[name].name!r} and {length} in {variable.name!r}: choose one of "
                        "them with the option 'variables'"
                    )
                first.setdefault(name, variable)
        return found


def has_arrays(session: Session, path: str) -> bool:
    """Whether there are arrays right below a path, which need not be there itself."""
    return any(node.is_array for node in contents.child_nodes(session, Path(path)))


def chunk_edges(array: zarr.Array[Any]) -> tuple[Edges, ...]:
    """Say where the chunks of an array begin and end along each dimension.

    Of a sharded array these are its shards: what is stored, and found, as one.
    """
    grid = array.metadata.chunk_grid
    lengths = getattr(grid, "chunk_shape", None)
    if lengths is None:
        # Chunks that are not all of one size tell the size of each of them.
        shapes = getattr(grid, "chunk_shapes", None)
        if shapes is None:
            raise invalid_input(f"the chunk grid of {array.path!r} is not understood: {grid}")
        return tuple(
            RegularEdges(array.path, length, max(sizes, 1))
            if isinstance(sizes, int)
            else np.concatenate([[0], np.cumsum(sizes)]).clip(max=length).astype(np.int64)
            for length, sizes in zip(array.shape, shapes, strict=True)
        )
    return tuple(
        RegularEdges(array.path, length, max(size, 1))
        for length, size in zip(array.shape, lengths, strict=True)
    )


def _variable(node: NodeSnapshot) -> Variable:
    data = node.node_data
    assert isinstance(data, ArrayNodeData)  # noqa: S101 - the caller asked
    names = data.dimension_names or (None,) * len(data.shape)
    return Variable(
        node.path.name,
        node.path.value,
        tuple(name or f"dim_{place}" for place, name in enumerate(names)),
        tuple(dimension.array_length for dimension in data.shape),
        _attributes(node),
    )


def _attributes(node: NodeSnapshot) -> dict[str, Any]:
    found = json.loads(node.user_data).get("attributes") if node.user_data else None
    return found if isinstance(found, dict) else {}
