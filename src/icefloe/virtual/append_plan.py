"""Plans of appends: where each array of a dataset goes in a stored group, and what prevents it.

Reads the session and changes nothing. `icefloe.virtual.writer` applies the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.model.manifest import NO_CODE, ArrayManifest, ChunkPayloads
from icefloe.model.node import ChunkIndexRange, ManifestExtents
from icefloe.virtual import stored_group
from icefloe.virtual.agreement import Disagreement, compare
from icefloe.virtual.arrays import LoadedArray, VirtualArray, are_equal, find_coordinate
from icefloe.virtual.cf_time import convert_times, parse_time_units

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.model.path import Path
    from icefloe.session import Session
    from icefloe.virtual.arrays import AnyArray
    from icefloe.virtual.dataset import VirtualDataset


@dataclass(frozen=True, slots=True)
class Placement:
    """The steps of a stored array that a dataset of ``length`` steps covers along a dimension.

    They begin at step ``start``; the first ``present`` of them are stored already.
    """

    dim: str
    start: int
    present: int
    length: int

    @property
    def added(self) -> int:
        """Number of new steps."""
        return self.length - self.present


def compare_with_group(
    dataset: VirtualDataset, session: Session, *, dim: str, group: str = "/"
) -> Iterator[Disagreement]:
    """Find differences between a dataset and a group, other than its steps along ``dim``."""
    base = stored_group.resolve_group(session, group)
    aligned = stored_group.align_with_stored(session, base, dataset, dim)
    stored = stored_group.fetch_stored(session, base, aligned)
    return compare(stored, aligned, dims=frozenset({dim}), stored=True)


def find_append_problems(
    datasets: Sequence[VirtualDataset], session: Session, *, dim: str, group: str = "/"
) -> Iterator[Disagreement]:
    """Find what prevents each file from being appended, by its loaded arrays alone.

    Unlike in `icefloe.virtual.append`, steps that the group has already are a problem: the
    references of these files are not at hand to be compared. The files agree with each other.
    """
    base = stored_group.resolve_group(session, group)
    session.transaction.require_node(base)
    stored: VirtualDataset | None = None
    for dataset in datasets:
        arrays = dataset.arrays.items()
        virtual = [path for path, array in arrays if isinstance(array, VirtualArray)]
        loaded = dataset.without(*virtual)
        if stored is None:
            stored = stored_group.fetch_stored(session, base, loaded)
            stored = stored.without(*(stored.arrays.keys() - loaded.arrays.keys()))
        problems = list(compare(stored, loaded, dims=frozenset({dim}), stored=True))
        if not problems:
            loaded, problems = convert_to_stored_units(stored, loaded)
        if not problems:
            placements, problems = plan_placements(session, base, stored, loaded, dim)
        if not problems:
            for path, place in placements.items():
                if place.present:
                    steps_present = f"has {place.present} of its {place.length} steps"
                    text = f"{steps_present} in the repository already, from step {place.start} on"
                    problems = [Disagreement(dataset.label, path, "overlap", text)]
                    break
        yield from problems


def is_descending(session: Session, *, dim: str, group: str = "/") -> bool:
    """Whether the stored coordinate of a dimension descends; False if there is none."""
    path = stored_group.join_path(stored_group.resolve_group(session, group), dim)
    if session.transaction.get_node(path) is None:
        return False
    array = stored_group.open_stored(session, path)
    return array.size > 1 and array.dtype.kind in "iuf" and bool(array[-1] < array[0])


def convert_to_stored_units(
    stored: VirtualDataset, dataset: VirtualDataset
) -> tuple[VirtualDataset, list[Disagreement]]:
    """Convert loaded values to the stored time units and data types."""
    arrays = dict(dataset.arrays)
    problems: list[Disagreement] = []
    for path, array in dataset.arrays.items():
        mine = stored.arrays.get(path)
        if not isinstance(array, LoadedArray) or not isinstance(mine, LoadedArray):
            continue
        owner = _find_units_owner(dataset, path)
        values, problem = _convert_units(array.values, owner, stored, dataset)
        cast = _cast_exactly(values, mine.values.dtype) if problem is None else values
        if cast is None:
            problem = f"has values that do not fit the repository's {mine.values.dtype}"
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

    Arrays of nested groups may have a coordinate of their own with the same name.
    """
    placements: dict[str, Placement] = {}
    by_owner: dict[str, Placement] = {}
    problems: list[Disagreement] = []
    for path, array in dataset.arrays.items():
        if dim not in array.dimension_names:
            continue
        axis = array.dimension_names.index(dim)
        coordinate = find_coordinate(dataset.arrays, path, dim)
        owner = f"{path.rpartition('/')[0]}/" if coordinate is None else coordinate
        placement = by_owner.get(owner)
        if placement is None and coordinate is None:
            length, stored_length = array.shape[axis], stored.arrays[path].shape[axis]
            start = _find_stored_refs(session, base, dataset, owner, dim)
            start = stored_length if start is None else start
            placement = Placement(dim, start, min(length, stored_length - start), length)
        elif placement is None and coordinate is not None:
            mine, theirs = stored.arrays[coordinate], dataset.arrays[coordinate]
            placement, problem = _place_by_coordinate(mine, theirs, dim)
            if problem is not None:
                problems.append(Disagreement(dataset.label, coordinate, "overlap", problem))
        assert placement is not None  # noqa: S101 - narrows the type: one branch has set it
        by_owner[owner] = placements[path] = placement
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
    """Find arrays whose stored steps have other references or values than the dataset."""
    for path, placement in placements.items():
        if not placement.present:
            continue
        array = dataset.arrays[path]
        last = placement.start + placement.present - 1
        axis = array.dimension_names.index(placement.dim)
        if isinstance(array, VirtualArray):
            there = fetch_refs_at(session, stored_group.join_path(base, path), array, placement)
            new = select_refs(array.refs, axis, 0, count_present_chunks(array, placement))
            coords = new.coords.astype(np.int64)
            coords[:, axis] += placement.start // _chunk_length(array, axis)
            if np.array_equal(there.coords, coords) and there.payloads == new.payloads:
                continue
        else:
            mine = stored.arrays[path]
            if isinstance(mine, LoadedArray) and are_equal(
                mine.values[slice_steps(axis, placement.start, last + 1)],
                array.values[slice_steps(axis, 0, placement.present)],
            ):
                continue
        text = (
            f"the repository has steps {placement.start} to {last} along {placement.dim} already, "
            "from another file or another version of it; pass if_present='replace' to take the "
            "new ones"
        )
        yield Disagreement(dataset.label, path, "references", text)


def fetch_refs_at(
    session: Session, path: Path, array: VirtualArray, placement: Placement
) -> ArrayManifest:
    """Fetch the stored references of the steps that are present."""
    axis = array.dimension_names.index(placement.dim)
    low = placement.start // _chunk_length(array, axis)
    high = low + count_present_chunks(array, placement)
    grid = session.transaction.get_grid(path)
    ranges = [ChunkIndexRange(0, count) for count in grid]
    ranges[axis] = ChunkIndexRange(low, high)
    found = session.transaction.fetch_chunk_refs(path, within=ManifestExtents(tuple(ranges)))
    parts = [select_refs(part, axis, low, high) for part in found]
    parts = parts or [ArrayManifest(np.zeros((0, len(grid)), np.uint32), stored_group.NO_PAYLOADS)]
    coords = np.concatenate([part.coords for part in parts])
    return ArrayManifest.of(coords, ChunkPayloads.concatenate([part.payloads for part in parts]))


def select_refs(refs: ArrayManifest, axis: int, low: int, high: int) -> ArrayManifest:
    """Return the references whose chunk index along an axis is in ``[low, high)``."""
    along = refs.coords[:, axis]
    rows = np.flatnonzero((along >= low) & (along < high))
    return ArrayManifest(refs.coords[rows], refs.payloads.rows(rows))


def count_present_chunks(array: VirtualArray, placement: Placement) -> int:
    """Return how many chunks along the dimension are stored already."""
    axis = array.dimension_names.index(placement.dim)
    return -(-placement.present // _chunk_length(array, axis))


def slice_steps(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    """Return the index of steps along an axis."""
    return (*(slice(None),) * axis, slice(start, stop))


def _convert_units(
    values: NDArray[Any], owner: str, stored: VirtualDataset, dataset: VirtualDataset
) -> tuple[NDArray[Any], str | None]:
    """Convert times, or return them unchanged with the reason why they cannot be converted."""
    if owner not in stored.arrays or owner not in dataset.arrays:
        return values, None
    target = parse_time_units(stored.arrays[owner].attributes)
    given = parse_time_units(dataset.arrays[owner].attributes)
    if target is None or given is None or target == given:
        return values, None
    converted = convert_times(values, given, target)
    if converted is not None:
        return converted, None
    if target.calendar != given.calendar:
        return values, f"has calendar {given.calendar!r}, the repository {target.calendar!r}"
    exact = f"that are not whole numbers of the repository's {target.text!r}"
    return values, f"has times in {given.text!r} {exact}"


def _find_units_owner(dataset: VirtualDataset, path: str) -> str:
    """Return the coordinate whose units apply: bounds have those of their coordinate."""
    group, _, name = path.rpartition("/")
    for other, array in dataset.arrays.items():
        if other.rpartition("/")[0] == group and array.attributes.get("bounds") == name:
            return other
    return path


def _cast_exactly(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Cast values to a data type; None if that changes them."""
    if values.dtype == dtype or dtype.kind not in "iuf" or values.dtype.kind not in "iuf":
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(dtype)
    return cast if dtype.kind == "f" or are_equal(cast, values) else None


def _place_by_coordinate(
    mine: AnyArray, theirs: AnyArray, dim: str
) -> tuple[Placement, str | None]:
    if isinstance(mine, LoadedArray) and isinstance(theirs, LoadedArray):
        start, present, problem = _place_values(mine.values, theirs.values)
        return Placement(dim, start, present, len(theirs.values)), problem
    return Placement(dim, mine.shape[0], 0, theirs.shape[0]), (
        "is not loaded, so its steps cannot be compared: parse with loadable_variables that "
        "include it"
    )


def _place_values(there: NDArray[Any], new: NDArray[Any]) -> tuple[int, int, str | None]:
    """Return the first step of new coordinates, how many are stored, and what is wrong."""
    start, present = len(there), 0
    if not len(there) or not len(new):
        return start, present, None
    matches = np.flatnonzero(there == new[0])
    if len(matches):
        start = int(matches[0])
        present = min(len(new), len(there) - start)
        if not are_equal(there[start : start + present], new[:present]):
            same = f"starts with {new[0]!s} as the repository does, but continues differently"
            return start, present, f"{same}: overlapping steps must be the same"
    rest = new[present:]
    known = np.isin(rest, there)
    if known.any():
        problem = f"has {rest[known][0]!s}, which the repository has too, after other steps"
        return start, present, problem
    if len(rest) and there.dtype.kind in "iuf":
        # A single stored step counts as ascending unless several new ones descend: an earlier
        # step, such as a late day, must not reverse the axis.
        descends = rest[-1] < rest[0] if len(there) == 1 else there[-1] < there[0]
        differences = np.diff(np.concatenate([there[-1:], rest]))
        if not (differences < 0 if descends else differences > 0).all():
            stored = f"what the repository has ({there[0]!s} to {there[-1]!s})"
            problem = f"goes from {rest[0]!s} to {rest[-1]!s}, which does not continue {stored}"
            return start, present, f"{problem}: steps are appended in order"
    return start, present, None


def _find_stored_refs(
    session: Session, base: Path, dataset: VirtualDataset, group: str, dim: str
) -> int | None:
    """Find the step from which a group has the first reference of a dataset already."""
    for path, array in dataset.arrays.items():
        is_here = f"{path.rpartition('/')[0]}/" == group and dim in array.dimension_names
        if not is_here or not isinstance(array, VirtualArray) or not len(array.refs):
            continue
        chunk = array.chunk_shape
        axis = array.dimension_names.index(dim)
        first, payloads = array.refs.coords[0], array.refs.payloads
        code = int(payloads.location[0])
        location = payloads.locations[code] if code >= 0 else ""
        for part in session.transaction.fetch_chunk_refs(stored_group.join_path(base, path)):
            there = part.payloads
            rows = np.flatnonzero(
                (there.offset == payloads.offset[0])
                & (there.length == payloads.length[0])
                & (there.location != NO_CODE)
            )
            for row in rows.tolist():
                if there.locations[int(there.location[row])] == location and chunk is not None:
                    return int(part.coords[row, axis] - first[axis]) * chunk[axis]
        return None
    return None


def _chunk_length(array: VirtualArray, axis: int) -> int:
    chunk = array.chunk_shape
    return 1 if chunk is None else chunk[axis]
