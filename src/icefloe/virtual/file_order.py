"""Checks the order of files along the combined dimensions, and sorts them by coordinates.

Pure, no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.virtual.agreement import Disagreement, raise_disagreements
from icefloe.virtual.arrays import LoadedArray, VirtualArray, are_arrays_equal, find_coordinate
from icefloe.virtual.cf_time import format_coordinate, parse_time_units, reconcile_units
from icefloe.virtual.contiguous import align_chunk_lengths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.virtual.dataset import VirtualDataset


def check_sequence(parts: list[VirtualDataset], dim: str) -> Iterator[Disagreement]:
    """Find what prevents compatible files from being joined in this order along a dimension."""
    if len(parts) < 2:
        return
    for path, array in parts[0].arrays.items():
        if dim not in array.dimension_names:
            yield from _check_static_values(parts, path)
        elif isinstance(array, VirtualArray):
            yield from _check_chunks(parts, path, dim)
        elif path.rpartition("/")[2] == dim and array.dimension_names == (dim,):
            yield from _check_coordinate(parts, path)


def check_units(parts: list[VirtualDataset], path: str) -> Iterator[Disagreement]:
    """Find files whose time units cannot be converted to those of the first file."""
    first = parts[0].arrays[path].attributes
    for part in parts[1:]:
        attributes = part.arrays[path].attributes
        if _get_calendar(attributes) != _get_calendar(first):
            calendar = f"has calendar {_get_calendar(attributes)!r}, but {_get_calendar(first)!r}"
            text = f"{calendar} in {parts[0].label}"
        elif attributes.get("units") != first.get("units"):
            units = f"has units {attributes.get('units')!r}, which cannot be converted to"
            text = f"{units} {first.get('units')!r} of {parts[0].label}"
        else:
            continue
        yield Disagreement(part.label, path, "attribute", text)


def arrange_by_coordinates(datasets: list[VirtualDataset], dims: tuple[str, ...]) -> Any:
    """Arrange files in a grid by their first coordinates; return it as nested lists.

    Raises
    ------
    InvalidInputError
        If a file has no loaded coordinate, or the files do not form a complete grid.
    FilesDisagreeError
        If two files have the same position.
    """
    positions = np.empty((len(datasets), len(dims)), np.int64)
    starts_by_dim = []
    for column, dim in enumerate(dims):
        path = find_coordinate(datasets[0].arrays, "", dim)
        values = None if path is None else reconcile_values(datasets, path)
        if values is None or not all(map(len, values)):
            raise InvalidInputError(
                f"files cannot be ordered along {dim}: they have no comparable, loaded coordinate "
                "of that name; pass them as nested lists in order",
                kind=ErrorKind.NOT_ALLOWED,
            )
        # If each file has one step, the order of the files implies no direction: it is arbitrary.
        descends = any(len(coordinate) > 1 for coordinate in values) and _find_direction(values) < 0
        firsts = np.array([coordinate[0] for coordinate in values])
        starts, indices = np.unique(firsts, return_inverse=True)
        positions[:, column] = len(starts) - 1 - indices if descends else indices
        starts_by_dim.append(starts[::-1] if descends else starts)
    sizes = positions.max(axis=0) + 1
    grid = np.full(tuple(sizes), -1, np.int64)
    duplicates: list[Disagreement] = []
    for number, position in enumerate(map(tuple, positions.tolist())):
        if grid[position] >= 0:
            other = datasets[int(grid[position])].label
            text = f"starts at the same position along {', '.join(dims)} as {other}"
            duplicates.append(Disagreement(datasets[number].label, "", "overlap", text))
        grid[position] = number
    raise_disagreements(duplicates, "combining")
    gaps = np.argwhere(grid < 0)
    if len(gaps):
        first = ", ".join(
            f"{dim} {starts[position].item()}"
            for dim, starts, position in zip(dims, starts_by_dim, gaps[0], strict=True)
        )
        raise InvalidInputError(
            f"{len(datasets)} files, the first of them {datasets[0].label}, do not fill a grid of "
            f"{' x '.join(map(str, sizes))} along {', '.join(dims)}: {len(gaps)} are missing, the "
            f"first missing file starts at {first}; add them, or combine a complete grid",
            kind=ErrorKind.FILES_DISAGREE,
        )
    return _nest(grid, datasets)


def reconcile_values(parts: list[VirtualDataset], path: str) -> list[NDArray[Any]] | None:
    """Return the values of a coordinate in common units; None if not loaded or convertible."""
    arrays = [part.arrays[path] for part in parts]
    loaded = [array for array in arrays if isinstance(array, LoadedArray)]
    if len(loaded) < len(arrays):
        return None
    values = [array.values for array in loaded]
    units = [parse_time_units(array.attributes) for array in loaded]
    if len(set(units)) == 1:
        return values
    time_units = [unit for unit in units if unit is not None]
    if len(time_units) < len(units):
        is_same = len({str(array.attributes.get("units")) for array in loaded}) == 1
        return values if is_same else None
    common = reconcile_units(list(zip(values, time_units, strict=True)))
    return None if common is None else common[1]


def _check_static_values(parts: list[VirtualDataset], path: str) -> Iterator[Disagreement]:
    """Find files whose values differ in an array without the combined dimension."""
    values = reconcile_values(parts, path)
    if values is None:
        return
    for part, part_values in zip(parts[1:], values[1:], strict=True):
        if not are_arrays_equal(values[0], part_values):
            text = f"has other values than in {parts[0].label}"
            yield Disagreement(part.label, path, "values", text)


def _check_chunks(parts: list[VirtualDataset], path: str, dim: str) -> Iterator[Disagreement]:
    arrays = [part.arrays[path] for part in parts]
    axis = arrays[0].dimension_names.index(dim)
    aligned = align_chunk_lengths([a for a in arrays if isinstance(a, VirtualArray)], axis)
    for part, array in zip(parts[:-1], aligned[:-1], strict=True):
        chunk = array.chunk_shape
        if chunk is None:
            text = f"has chunks of several lengths along {dim}"
        elif array.shape[axis] % chunk[axis]:
            text = (
                f"has {array.shape[axis]} steps along {dim}, not a multiple of its chunk length "
                f"{chunk[axis]}: only the last file may end within a chunk"
            )
        else:
            continue
        yield Disagreement(part.label, path, "chunks", text)


def _check_coordinate(parts: list[VirtualDataset], path: str) -> Iterator[Disagreement]:
    values = reconcile_values(parts, path)
    if values is None:
        yield from check_units(parts, path)
        return
    if values[0].dtype.kind not in "iuf":
        yield from _check_labels(parts, values, path)
        return
    sign = _find_direction(values)
    for part, coordinate in zip(parts, values, strict=True):
        if len(coordinate) > 1 and not (np.diff(coordinate) * sign > 0).all():
            text = "is not sorted, or has duplicates, within the file"
            yield Disagreement(part.label, path, "order", text)
    for number in range(1, len(parts)):
        before, after = values[number - 1], values[number]
        if not len(before) or not len(after) or (after[0] - before[-1]) * sign > 0:
            continue
        low, high = max(after.min(), before.min()), min(after.max(), before.max())
        text = f"goes from {_format_range(parts[number], path)},"
        other = f"{_format_range(parts[number - 1], path)} of {parts[number - 1].label}"
        if low <= high:
            yield Disagreement(parts[number].label, path, "overlap", f"{text} and overlaps {other}")
        else:
            text += f" before {other}: sort the files, or combine with order='coordinates'"
            yield Disagreement(parts[number].label, path, "order", text)


def _format_range(part: VirtualDataset, path: str) -> str:
    array = part.arrays[path]
    assert isinstance(array, LoadedArray)  # noqa: S101 - narrows the type: its values were compared
    ends = (format_coordinate(array.values[index], array.attributes) for index in (0, -1))
    return " to ".join(ends)


def _check_labels(
    parts: list[VirtualDataset], values: list[NDArray[Any]], path: str
) -> Iterator[Disagreement]:
    file_of_label: dict[Any, str] = {}
    for part, labels in zip(parts, values, strict=True):
        for label in labels.tolist():
            if label in file_of_label:
                text = f"has {label!r}, which {file_of_label[label]} has too"
                yield Disagreement(part.label, path, "overlap", text)
            file_of_label[label] = part.label


def _find_direction(values: list[NDArray[Any]]) -> int:
    """Return 1 if a coordinate ascends, -1 if it descends."""
    for coordinate in values:
        if len(coordinate) > 1:
            return 1 if coordinate[1] > coordinate[0] else -1
    starts = [coordinate[0] for coordinate in values if len(coordinate)]
    return -1 if len(starts) > 1 and starts[-1] < starts[0] and starts[1] < starts[0] else 1


def _nest(grid: NDArray[np.int64], datasets: list[VirtualDataset]) -> Any:
    if grid.ndim == 0:
        return datasets[int(grid)]
    return [_nest(row, datasets) for row in grid]


def _get_calendar(attributes: dict[str, Any]) -> str:
    return str(attributes.get("calendar", "standard"))
