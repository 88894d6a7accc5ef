"""Plans appends: the position of each array of a dataset in a stored group, and the problems.

Reads the session without changing it. `icefloe.virtual.writer` applies the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.model.manifest import NO_CODE, ArrayManifest, ChunkPayloads
from icefloe.model.node import ChunkIndexRange, ManifestExtents
from icefloe.virtual import stored_group
from icefloe.virtual.agreement import Disagreement, compare
from icefloe.virtual.arrays import LoadedArray, VirtualArray, are_arrays_equal, find_coordinate
from icefloe.virtual.cf_time import convert_times, format_coordinate, parse_time_units

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.model.path import Path
    from icefloe.session import Session
    from icefloe.virtual.arrays import AnyArray
    from icefloe.virtual.dataset import VirtualDataset


@dataclass(frozen=True, slots=True)
class Placement:
    """The position of a dataset with ``length`` steps along a dimension of a stored array.

    It starts at step ``start``; the first ``num_stored`` steps are already stored.
    """

    dim: str
    start: int
    num_stored: int
    length: int

    @property
    def num_new(self) -> int:
        """Number of new steps."""
        return self.length - self.num_stored


def compare_with_group(
    dataset: VirtualDataset, session: Session, *, dim: str, group: str = "/"
) -> Iterator[Disagreement]:
    """Find differences between a dataset and a group, ignoring the steps along ``dim``."""
    base = stored_group.resolve_group(session, group)
    aligned = stored_group.align_with_stored(session, base, dataset, dim)
    stored = stored_group.fetch_stored_dataset(session, base, aligned)
    return compare(stored, aligned, dims=frozenset({dim}), is_stored=True)


def find_append_problems(
    datasets: Sequence[VirtualDataset], session: Session, *, dim: str, group: str = "/"
) -> Iterator[Disagreement]:
    """Find what prevents each file from being appended, considering only its loaded arrays.

    Unlike in `icefloe.virtual.append`, steps that are already stored are a problem, because no
    references are available for comparison. The files must agree with each other.
    """
    base = stored_group.resolve_group(session, group)
    session.transaction.require_node(base)
    stored: VirtualDataset | None = None
    for dataset in datasets:
        arrays = dataset.arrays.items()
        virtual = [path for path, array in arrays if isinstance(array, VirtualArray)]
        loaded = dataset.without(*virtual)
        if stored is None:
            stored = stored_group.fetch_stored_dataset(session, base, loaded)
            stored = stored.without(*(stored.arrays.keys() - loaded.arrays.keys()))
        problems = list(compare(stored, loaded, dims=frozenset({dim}), is_stored=True))
        if not problems:
            loaded, problems = convert_to_stored_units(stored, loaded)
        if not problems:
            placements, problems = plan_placements(session, base, stored, loaded, dim)
        if not problems:
            for path, placement in placements.items():
                if placement.num_stored:
                    steps = f"{placement.num_stored} of its {placement.length} steps"
                    text = f"has {steps} in the repository already, from step {placement.start} on"
                    problems = [Disagreement(dataset.label, path, "overlap", text)]
                    break
        yield from problems


def is_descending(session: Session, *, dim: str, group: str = "/") -> bool:
    """Return whether the stored coordinate of a dimension descends; False without a coordinate."""
    path = stored_group.join_path(stored_group.resolve_group(session, group), dim)
    if session.transaction.get_node(path) is None:
        return False
    array = stored_group.open_stored_array(session, path)
    return array.size > 1 and array.dtype.kind in "iuf" and bool(array[-1] < array[0])


def convert_to_stored_units(
    stored: VirtualDataset, dataset: VirtualDataset
) -> tuple[VirtualDataset, list[Disagreement]]:
    """Convert loaded values to the stored time units and data types."""
    arrays = dict(dataset.arrays)
    problems: list[Disagreement] = []
    for path, array in dataset.arrays.items():
        stored_array = stored.arrays.get(path)
        if not isinstance(array, LoadedArray) or not isinstance(stored_array, LoadedArray):
            continue
        coordinate, dtype = _find_units_source(dataset, path), stored_array.values.dtype
        values, problem = _convert_units(array.values, coordinate, stored, dataset)
        cast = _cast_exactly(values, dtype) if problem is None else values
        if cast is None:
            problem = f"has values that do not fit the repository's {dtype}"
        else:
            values = cast
        if problem is not None:
            problems.append(Disagreement(dataset.label, path, "dtype", problem))
        arrays[path] = LoadedArray(array.metadata, values)
    return replace(dataset, arrays=arrays), problems


def plan_placements(
    session: Session, base: Path, stored: VirtualDataset, dataset: VirtualDataset, dim: str
) -> tuple[dict[str, Placement], list[Disagreement]]:
    """Find the placement of each array along ``dim``, and what prevents it.

    Arrays share the placement of their coordinate, or of their group if they have none.
    """
    placements: dict[str, Placement] = {}
    shared: dict[str, Placement] = {}
    problems: list[Disagreement] = []
    for path, array in dataset.arrays.items():
        if dim not in array.dimension_names:
            continue
        axis = array.dimension_names.index(dim)
        coordinate = find_coordinate(dataset.arrays, path, dim)
        key = f"{path.rpartition('/')[0]}/" if coordinate is None else coordinate
        placement = shared.get(key)
        if placement is None and coordinate is None:
            length, stored_length = array.shape[axis], stored.arrays[path].shape[axis]
            start = _find_stored_start(session, base, dataset, key, dim)
            start = stored_length if start is None else start
            placement = Placement(dim, start, min(length, stored_length - start), length)
        elif placement is None and coordinate is not None:
            stored_coordinate, new = stored.arrays[coordinate], dataset.arrays[coordinate]
            placement, problem = _place_by_coordinate(stored_coordinate, new, dim)
            if problem is not None:
                problems.append(Disagreement(dataset.label, coordinate, "overlap", problem))
        assert placement is not None  # noqa: S101 - narrows the type: one branch has set it
        shared[key] = placements[path] = placement
        chunk = array.chunk_shape
        if isinstance(array, VirtualArray) and chunk is not None and placement.start % chunk[axis]:
            where = f"at step {placement.start} along {dim}, within a chunk of {chunk[axis]} steps"
            text = f"would start {where}: references can only be appended at a chunk boundary"
            problems.append(Disagreement(dataset.label, path, "chunks", text))
    return placements, problems


def find_changed_steps(
    session: Session,
    base: Path,
    stored: VirtualDataset,
    dataset: VirtualDataset,
    placements: dict[str, Placement],
) -> Iterator[Disagreement]:
    """Find arrays whose stored steps have references or values that differ from the dataset."""
    for path, placement in placements.items():
        if not placement.num_stored:
            continue
        array = dataset.arrays[path]
        last = placement.start + placement.num_stored - 1
        axis = array.dimension_names.index(placement.dim)
        if isinstance(array, VirtualArray):
            old = fetch_stored_refs(session, stored_group.join_path(base, path), array, placement)
            new = select_refs(array.refs, axis, 0, count_stored_chunks(array, placement))
            coords = new.coords.astype(np.int64)
            coords[:, axis] += placement.start // _get_chunk_length(array, axis)
            if np.array_equal(old.coords, coords) and old.payloads == new.payloads:
                continue
        else:
            stored_array = stored.arrays[path]
            if isinstance(stored_array, LoadedArray) and are_arrays_equal(
                stored_array.values[slice_steps(axis, placement.start, last + 1)],
                array.values[slice_steps(axis, 0, placement.num_stored)],
            ):
                continue
        text = (
            f"the repository has steps {placement.start} to {last} along {placement.dim} already, "
            "from another file or another version of it; pass if_present='replace' to overwrite "
            "them"
        )
        yield Disagreement(dataset.label, path, "references", text)


def fetch_stored_refs(
    session: Session, path: Path, array: VirtualArray, placement: Placement
) -> ArrayManifest:
    """Fetch the stored references of the steps that are already stored."""
    axis = array.dimension_names.index(placement.dim)
    low = placement.start // _get_chunk_length(array, axis)
    high = low + count_stored_chunks(array, placement)
    grid = session.transaction.get_grid(path)
    ranges = [ChunkIndexRange(0, count) for count in grid]
    ranges[axis] = ChunkIndexRange(low, high)
    stored = session.transaction.fetch_chunk_refs(path, within=ManifestExtents(tuple(ranges)))
    parts = [select_refs(part, axis, low, high) for part in stored]
    parts = parts or [ArrayManifest(np.zeros((0, len(grid)), np.uint32), stored_group.NO_PAYLOADS)]
    coords = np.concatenate([part.coords for part in parts])
    return ArrayManifest.of(coords, ChunkPayloads.concatenate([part.payloads for part in parts]))


def select_refs(refs: ArrayManifest, axis: int, low: int, high: int) -> ArrayManifest:
    """Return the references whose chunk index along an axis is in ``[low, high)``."""
    indices = refs.coords[:, axis]
    rows = np.flatnonzero((indices >= low) & (indices < high))
    return ArrayManifest(refs.coords[rows], refs.payloads.select_rows(rows))


def count_stored_chunks(array: VirtualArray, placement: Placement) -> int:
    """Return the number of chunks along the dimension that are already stored."""
    axis = array.dimension_names.index(placement.dim)
    return -(-placement.num_stored // _get_chunk_length(array, axis))


def slice_steps(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    """Return the index that selects steps along an axis."""
    return (*(slice(None),) * axis, slice(start, stop))


def _convert_units(
    values: NDArray[Any], coordinate: str, stored: VirtualDataset, dataset: VirtualDataset
) -> tuple[NDArray[Any], str | None]:
    """Convert times, or return them unchanged with the reason why they cannot be converted."""
    if coordinate not in stored.arrays or coordinate not in dataset.arrays:
        return values, None
    target = parse_time_units(stored.arrays[coordinate].attributes)
    units = parse_time_units(dataset.arrays[coordinate].attributes)
    if target is None or units is None or target == units:
        return values, None
    converted = convert_times(values, units, target)
    if converted is not None:
        return converted, None
    if target.calendar != units.calendar:
        return values, f"has calendar {units.calendar!r}, but {target.calendar!r} in the repository"
    problem = f"that are not integers in the repository's units {target.text!r}"
    return values, f"has times in {units.text!r} {problem}"


def _find_units_source(dataset: VirtualDataset, path: str) -> str:
    """Return the array whose units apply: bounds have the units of their coordinate."""
    group, _, name = path.rpartition("/")
    for other, array in dataset.arrays.items():
        if other.rpartition("/")[0] == group and array.attributes.get("bounds") == name:
            return other
    return path


def _cast_exactly(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Cast values to a data type; None if a cast to integers would change them."""
    if values.dtype == dtype or dtype.kind not in "iuf" or values.dtype.kind not in "iuf":
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(dtype)
    return cast if dtype.kind == "f" or are_arrays_equal(cast, values) else None


def _place_by_coordinate(stored: AnyArray, new: AnyArray, dim: str) -> tuple[Placement, str | None]:
    if isinstance(stored, LoadedArray) and isinstance(new, LoadedArray):
        start, num_stored, problem = _place_values(stored.values, new.values, stored.attributes)
        return Placement(dim, start, num_stored, len(new.values)), problem
    return Placement(dim, stored.shape[0], 0, new.shape[0]), (
        "is not loaded, so its steps cannot be compared: parse with loadable_variables that "
        "include it"
    )


def _place_values(
    stored: NDArray[Any], new: NDArray[Any], attributes: Mapping[str, Any]
) -> tuple[int, int, str | None]:
    """Return the start of new coordinates, the number of stored ones, and a problem if any.

    ``attributes`` have the units of both.
    """

    def show(value: Any) -> str:
        return format_coordinate(value, attributes)

    start, num_stored = len(stored), 0
    if not len(stored) or not len(new):
        return start, num_stored, None
    matches = np.flatnonzero(stored == new[0])
    if len(matches):
        start = int(matches[0])
        num_stored = min(len(new), len(stored) - start)
        if not are_arrays_equal(stored[start : start + num_stored], new[:num_stored]):
            problem = f"overlaps the repository from {show(new[0])} on, but continues differently"
            return start, num_stored, f"{problem}: overlapping steps must be the same"
    added = new[num_stored:]
    is_duplicate = np.isin(added, stored)
    if is_duplicate.any():
        duplicate = show(added[is_duplicate][0])
        problem = f"has {duplicate}, which the repository has too, after other steps"
        return start, num_stored, problem
    if len(added) and stored.dtype.kind in "iuf":
        # A single stored step counts as ascending unless several new steps descend: one earlier
        # step, such as a day that arrives late, must not reverse the axis.
        descends = added[-1] < added[0] if len(stored) == 1 else stored[-1] < stored[0]
        differences = np.diff(np.concatenate([stored[-1:], added]))
        if not (differences < 0 if descends else differences > 0).all():
            steps = f"the steps of the repository ({show(stored[0])} to {show(stored[-1])})"
            range_text = f"{show(added[0])} to {show(added[-1])}"
            problem = f"goes from {range_text}, which does not continue {steps}"
            return start, num_stored, f"{problem}: steps are appended in order"
    return start, num_stored, None


def _find_stored_start(
    session: Session, base: Path, dataset: VirtualDataset, group: str, dim: str
) -> int | None:
    """Find the stored step that has the first reference of a dataset; None if there is none."""
    for path, array in dataset.arrays.items():
        is_member = f"{path.rpartition('/')[0]}/" == group and dim in array.dimension_names
        if not is_member or not isinstance(array, VirtualArray) or not len(array.refs):
            continue
        chunk = array.chunk_shape
        axis = array.dimension_names.index(dim)
        first, payloads = array.refs.coords[0], array.refs.payloads
        code = int(payloads.location_codes[0])
        location = payloads.locations[code] if code >= 0 else ""
        for part in session.transaction.fetch_chunk_refs(stored_group.join_path(base, path)):
            stored = part.payloads
            rows = np.flatnonzero(
                (stored.offset == payloads.offset[0])
                & (stored.length == payloads.length[0])
                & (stored.location_codes != NO_CODE)
            )
            for row in rows.tolist():
                stored_location = stored.locations[int(stored.location_codes[row])]
                if stored_location == location and chunk is not None:
                    return int(part.coords[row, axis] - first[axis]) * chunk[axis]
        return None
    return None


def _get_chunk_length(array: VirtualArray, axis: int) -> int:
    chunk = array.chunk_shape
    return 1 if chunk is None else chunk[axis]
