"""The steps of a stored group along a dimension, found by their coordinates.

New versions of files replace the steps of the old ones; they must have the same coordinates.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.virtual import stored_group
from icefloe.virtual.agreement import Disagreement
from icefloe.virtual.append_plan import convert_to_stored_units
from icefloe.virtual.arrays import LoadedArray, find_coordinate
from icefloe.virtual.dataset import VirtualDataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.session import Session


class StoredSteps:
    """The coordinate of a group along a dimension; the group need not have one."""

    def __init__(self, session: Session, *, dim: str, group: str = "/") -> None:
        self._dim = dim
        self._coordinate = fetch_coordinate(session, dim, group)
        values = [] if self._coordinate is None else self._coordinate.values.tolist()
        self._indices: dict[Any, int] = {value: index for index, value in enumerate(values)}
        self._has_duplicates = len(self._indices) < len(values)

    def find(self, dataset: VirtualDataset) -> NDArray[np.int64]:
        """Return the index of each step of a dataset that `find_problem` accepts."""
        values = _get_values(self._convert(dataset), self._dim).tolist()
        return np.array([self._indices.get(value, -1) for value in values], np.int64)

    def find_places(self, dataset: VirtualDataset) -> NDArray[np.int64]:
        """Return the stored index before which each step of a dataset belongs.

        The dataset has a numeric coordinate, of which no value is stored.
        """
        assert self._coordinate is not None  # noqa: S101 - narrows the type
        stored = self._coordinate.values
        values = _get_values(self._convert(dataset), self._dim)
        if len(stored) > 1 and stored[0] > stored[-1]:
            return len(stored) - np.searchsorted(stored[::-1], values)
        return np.searchsorted(stored, values)

    def is_late(self, dataset: VirtualDataset) -> bool:
        """Whether the steps of a dataset are not stored, and belong before a stored step."""
        array = dataset.arrays.get(self._dim)
        if self._coordinate is None or not isinstance(array, LoadedArray):
            return False
        if not self._has_one_coordinate(dataset):
            return False
        stored = self._coordinate.values
        if {stored.dtype.kind, array.values.dtype.kind} - set("iuf") or not len(stored):
            return False
        return bool(
            (self.find(dataset) < 0).all() and (self.find_places(dataset) < len(stored)).any()
        )

    def find_problem(self, dataset: VirtualDataset, num_steps: int | None) -> Disagreement | None:
        """Find why a new version of a file cannot replace the old one, which had ``num_steps``.

        ``num_steps`` is None if it is unknown.
        """
        text = self._describe_problem(dataset, num_steps)
        return None if text is None else Disagreement(dataset.label, self._dim, "values", text)

    def _describe_problem(self, dataset: VirtualDataset, num_steps: int | None) -> str | None:
        path = find_coordinate(dataset.arrays, "", self._dim)
        if path is None or not isinstance(dataset.arrays[path], LoadedArray):
            return "is not a coordinate in the file, so the steps to replace are unknown"
        if not self._has_one_coordinate(dataset):
            return "has another coordinate or length in some groups of the file: rewrite them"
        if self._coordinate is None:
            return "is not a coordinate in the repository, so the steps to replace are unknown"
        if self._has_duplicates:
            return "has duplicates in the repository, so the steps to replace are ambiguous"
        steps = self.find(dataset)
        count = f"{len(steps)} step{'' if len(steps) == 1 else 's'}"
        if num_steps is not None and len(steps) != num_steps:
            return f"has {count}, but had {num_steps} when the file was added: rewrite the group"
        missing = int((steps < 0).sum())
        if missing:
            return f"has {missing} of {count} that are not in the repository: rewrite the group"
        if (np.diff(steps) != 1).any():
            return "has its steps in another order than the repository: rewrite the group"
        return None

    def _has_one_coordinate(self, dataset: VirtualDataset) -> bool:
        """Whether the coordinate applies to all arrays along the dimension, in all groups."""
        length = dataset.arrays[self._dim].shape[0]
        return all(
            find_coordinate(dataset.arrays, path, self._dim) == self._dim
            and array.shape[array.dimension_names.index(self._dim)] == length
            for path, array in dataset.arrays.items()
            if self._dim in array.dimension_names
        )

    def _convert(self, dataset: VirtualDataset) -> VirtualDataset:
        """Return the coordinate of a dataset in stored units."""
        assert self._coordinate is not None  # noqa: S101 - narrows the type
        stored = VirtualDataset((), arrays={self._dim: self._coordinate})
        coordinate = replace(dataset, arrays={self._dim: dataset.arrays[self._dim]})
        return convert_to_stored_units(stored, coordinate)[0]


def fetch_coordinate(session: Session, dim: str, group: str) -> LoadedArray | None:
    """Fetch the coordinate of a group along a dimension; None if it has none."""
    base = stored_group.resolve_group(session, group)
    path = stored_group.join_path(base, dim)
    node = session.transaction.get_node(path)
    if node is None or not node.is_array:
        return None
    document = json.loads(node.user_data)
    if document.get("dimension_names") != [dim]:
        return None
    values = np.asarray(stored_group.open_stored_array(session, path)[...])
    return LoadedArray(document, values)


def _get_values(dataset: VirtualDataset, dim: str) -> NDArray[Any]:
    array = dataset.arrays[dim]
    assert isinstance(array, LoadedArray)  # noqa: S101 - narrows the type
    return array.values
