"""`combine`: many parsed files as one dataset, along one or more dimensions. Pure, no I/O.

Work is done by the column: one pass of numpy over the references of each array, whatever the number
of chunks. Coordinates along a combined dimension are joined as values, and so are other loaded
arrays; a static array is that of the first file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.virtual.agreement import Disagreement, compare, raise_disagreements
from icefloe.virtual.cf_time import TimeUnits, convert_times, parse_time_units, reconcile_units
from icefloe.virtual.contiguous import align_chunk_lengths
from icefloe.virtual.dataset import (
    LoadedArray,
    VirtualArray,
    VirtualDataset,
    are_equal,
    find_coordinate,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.virtual.dataset import AnyArray

CombineAttributes: TypeAlias = Literal["drop_conflicts", "override", "identical"]

_SAME: Final = object()


def combine(
    datasets: Sequence[Any],
    dims: Sequence[str] | str,
    *,
    order: Literal["given", "coordinates"] = "given",
    combine_attrs: CombineAttributes = "drop_conflicts",
) -> VirtualDataset:
    """Join parsed files along dimensions that they have.

    Parameters
    ----------
    datasets
        For one dimension a list. For several either nested lists, as deep as there are dimensions
        and the first dimension outermost, or a list whose places are found by ``order``.
    dims
        The dimensions, as they are named in the files.
    order
        ``given``, or by the ``coordinates`` of the dimensions; with several dimensions those must
        make a complete grid of files.
    combine_attrs
        What becomes of attributes in which files differ, other than those that say what numbers
        mean, which may not: ``drop_conflicts`` leaves them out, ``override`` takes those of the
        first file, ``identical`` refuses.

    Raises
    ------
    FilesDisagreeError
        If files do not fit together: it names every file, the variable, and in what it disagrees.
    """
    names = (dims,) if isinstance(dims, str) else tuple(dims)
    if not names or len(set(names)) != len(names):
        raise InvalidInputError(
            f"dims={dims!r}: give the names of the dimensions along which to combine, each once",
            kind=ErrorKind.NOT_ALLOWED,
        )
    flat = list(_flat(datasets))
    if not flat:
        raise InvalidInputError("there is nothing to combine", kind=ErrorKind.NOT_ALLOWED)
    require_dims(flat, names)
    # One look at all of them, so that the message has all find_disagreements.
    first = flat[0]
    wanted = frozenset(names)
    found = [one for other in flat[1:] for one in find_disagreements(first, other, wanted)]
    if combine_attrs == "identical":
        found += _attribute_conflicts(flat)
    nested: Any = datasets
    if order == "coordinates":
        raise_disagreements(found, "combining")
        nested = _by_coordinates(flat, names)
    elif len(names) > 1 and not all(isinstance(one, list | tuple) for one in datasets):
        raise InvalidInputError(
            f"to combine along {', '.join(names)}, give nested lists, or order='coordinates'",
            kind=ErrorKind.NOT_ALLOWED,
        )
    blocked = {one.file for one in found}
    if len(names) == 1 and order == "given":
        # Also told together with the rest, as far as files can be compared at all.
        found += _check_sequence([one for one in flat if one.shown not in blocked], names[0])
    raise_disagreements(found, "combining")
    return _combine_nested(nested, names, combine_attrs)


def find_disagreements(
    first: VirtualDataset, other: VirtualDataset, dims: frozenset[str]
) -> list[Disagreement]:
    """Find what keeps a file from being combined with another along dimensions, in any order."""
    if _looks_alike(first, other, dims):
        return []
    found = list(compare(_aligned(first, other, dims), other, dims=dims))
    return found or list(_incomparable(first, other, dims))


def _incomparable(
    first: VirtualDataset, other: VirtualDataset, dims: frozenset[str]
) -> Iterator[Disagreement]:
    """Find times that no common units exist for."""
    for path, array in first.arrays.items():
        if (
            isinstance(array, LoadedArray)
            and dims & set(array.dimension_names)
            and reconcile_values([first, other], path) is None
        ):
            yield from _check_units([first, other], path)


def _combine_nested(
    nested: Any, names: tuple[str, ...], attributes: CombineAttributes
) -> VirtualDataset:
    if not names:
        single: VirtualDataset = nested
        return single
    if isinstance(nested, VirtualDataset):
        raise InvalidInputError(
            "nested lists are as deep as there are dimensions", kind=ErrorKind.NOT_ALLOWED
        )
    parts = [_combine_nested(one, names[1:], attributes) for one in nested]
    return _join(parts, names[0], attributes)


def _join(parts: list[VirtualDataset], dim: str, attributes: CombineAttributes) -> VirtualDataset:
    """Join along one dimension what was found to agree."""
    if len(parts) == 1:
        return parts[0]
    raise_disagreements(_check_sequence(parts, dim), f"combining along {dim}")
    first = parts[0]
    arrays: dict[str, AnyArray] = {}
    reconciled = _reconciled(parts, dim)
    for path, array in first.arrays.items():
        axis = _axis(array, dim)
        kept = _attributes([part.arrays[path].attributes for part in parts], attributes)
        if axis is None:
            arrays[path] = _with_attributes(array, kept)
            continue
        joined: AnyArray
        all_parts = [part.arrays[path] for part in parts]
        if isinstance(array, LoadedArray):
            values, units = reconciled.get(path, (None, None))
            if values is None:
                values = [one.values for one in all_parts if isinstance(one, LoadedArray)]
            if units is not None:
                kept = {**kept, "units": units}
            whole = _as_small(np.concatenate(values, axis), array.values.dtype)
            joined = LoadedArray.of(array.metadata, whole)
        else:
            joined = _join_refs([one for one in all_parts if isinstance(one, VirtualArray)], axis)
        arrays[path] = _with_attributes(joined, kept)
    return VirtualDataset(
        tuple(source for part in parts for source in part.sources),
        {
            path: _attributes([part.groups.get(path, {}) for part in parts], attributes)
            for path in first.groups
        },
        arrays,
    )


def _join_refs(parts: list[VirtualArray], axis: int) -> VirtualArray:
    parts = align_chunk_lengths(parts, axis)
    chunk = parts[0].chunk_shape or ()
    lengths = np.array([part.shape[axis] for part in parts], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) // chunk[axis]
    coords = np.concatenate([part.refs.coords for part in parts])
    rows = [len(part.refs) for part in parts]
    coords = coords.copy()
    coords[:, axis] += np.repeat(starts, rows).astype(np.uint32)
    shape = list(parts[0].shape)
    shape[axis] = int(lengths.sum())
    payloads = ChunkPayloads.concatenate([part.refs.payloads for part in parts])
    metadata = parts[0].with_shape(tuple(shape))
    return VirtualArray(metadata, ArrayManifest.of(coords, payloads))


def _as_small(joined: NDArray[Any], first: np.dtype[Any]) -> NDArray[Any]:
    """Keep whole numbers as small as the first file has them, where that is large enough."""
    if joined.dtype.kind in "iu" and first.kind in "iu" and joined.size:
        limits = np.iinfo(first)
        if limits.min <= int(joined.min()) and int(joined.max()) <= limits.max:
            return joined.astype(first)
    return joined


def _reconciled(
    parts: list[VirtualDataset], dim: str
) -> dict[str, tuple[list[NDArray[Any]], str | None]]:
    """Bring times that count from different references to common units, and their bounds along."""
    found: dict[str, tuple[list[NDArray[Any]], str | None]] = {}
    for path, array in parts[0].arrays.items():
        if not isinstance(array, LoadedArray) or _axis(array, dim) is None:
            continue
        units = [_units(part, path) for part in parts]
        known = [one for one in units if one is not None]
        if len(known) < len(units) or len(set(known)) == 1:
            continue
        bounds = _bounds_path(parts[0], path)
        pairs = [
            (np.concatenate([_values(part, one).reshape(-1) for one in (path, bounds) if one]), one)
            for part, one in zip(parts, known, strict=True)
        ]
        common = reconcile_units(pairs)
        if common is None:
            continue  # found to disagree before
        wanted, _ = common
        for one in (path, bounds):
            if one is not None:
                converted = [
                    convert_times(_values(part, one), given, wanted)
                    for part, given in zip(parts, known, strict=True)
                ]
                has_units = "units" in parts[0].arrays[one].attributes
                found[one] = (
                    [values for values in converted if values is not None],
                    wanted.text if has_units else None,
                )
    return found


def _check_sequence(parts: list[VirtualDataset], dim: str) -> Iterator[Disagreement]:
    """Find what keeps files that agree from standing in this order along a dimension."""
    if len(parts) < 2:
        return
    for path, array in parts[0].arrays.items():
        axis = _axis(array, dim)
        if axis is None:
            yield from _check_static(parts, path)
        elif isinstance(array, VirtualArray):
            yield from _check_grid(parts, path, axis, dim)
        elif path.rpartition("/")[2] == dim and array.dimension_names == (dim,):
            yield from _check_coordinate(parts, path)


def _check_static(parts: list[VirtualDataset], path: str) -> Iterator[Disagreement]:
    """Values that do not go along the dimension are the same in all files."""
    values = reconcile_values(parts, path)
    if values is None:
        return
    for part, one in zip(parts[1:], values[1:], strict=True):
        if not are_equal(values[0], one):
            yield Disagreement(
                part.shown, path, "values", f"has other values than in {parts[0].shown}"
            )


def _check_grid(
    parts: list[VirtualDataset], path: str, axis: int, dim: str
) -> Iterator[Disagreement]:
    arrays = [part.arrays[path] for part in parts]
    split = align_chunk_lengths([one for one in arrays if isinstance(one, VirtualArray)], axis)
    for part, array in zip(parts[:-1], split[:-1], strict=True):
        chunk = array.chunk_shape
        if chunk is None:
            yield Disagreement(
                part.shown, path, "chunks", f"has chunks of several lengths along {dim}"
            )
        elif array.shape[axis] % chunk[axis]:
            yield Disagreement(
                part.shown,
                path,
                "chunks",
                f"has {array.shape[axis]} steps along {dim}, no multiple of its chunks of "
                f"{chunk[axis]}: only the last file may end within a chunk",
            )


def _check_coordinate(parts: list[VirtualDataset], path: str) -> Iterator[Disagreement]:
    values = reconcile_values(parts, path)
    if values is None:
        yield from _check_units(parts, path)
        return
    if values[0].dtype.kind not in "iuf":
        yield from _check_labels(parts, values, path)
        return
    sign = _direction(values)
    for part, one in zip(parts, values, strict=True):
        if len(one) > 1 and not (np.diff(one) * sign > 0).all():
            yield Disagreement(
                part.shown, path, "order", "is not sorted, or repeats itself, within the file"
            )
    for number in range(1, len(parts)):
        before, here = values[number - 1], values[number]
        if not len(before) or not len(here) or (here[0] - before[-1]) * sign > 0:
            continue
        low, high = max(here.min(), before.min()), min(here.max(), before.max())
        text = f"{_shown(here[0])} to {_shown(here[-1])}"
        other = f"{_shown(before[0])} to {_shown(before[-1])} of {parts[number - 1].shown}"
        if low <= high:
            yield Disagreement(
                parts[number].shown, path, "overlap", f"goes from {text}, and overlaps {other}"
            )
        else:
            yield Disagreement(
                parts[number].shown,
                path,
                "order",
                f"goes from {text}, before {other}: put the files in order, or combine with "
                "order='coordinates'",
            )


def _check_units(parts: list[VirtualDataset], path: str) -> Iterator[Disagreement]:
    first = parts[0].arrays[path].attributes
    for part in parts[1:]:
        attributes = part.arrays[path].attributes
        if _calendar(attributes) != _calendar(first):
            yield Disagreement(
                part.shown,
                path,
                "attribute",
                f"counts in calendar {_calendar(attributes)!r}, and in {_calendar(first)!r} in "
                f"{parts[0].shown}",
            )
        elif attributes.get("units") != first.get("units"):
            yield Disagreement(
                part.shown,
                path,
                "attribute",
                f"has units {attributes.get('units')!r}, which cannot be brought to "
                f"{first.get('units')!r} of {parts[0].shown}",
            )


def _check_labels(
    parts: list[VirtualDataset], values: list[NDArray[Any]], path: str
) -> Iterator[Disagreement]:
    seen: dict[Any, str] = {}
    for part, one in zip(parts, values, strict=True):
        for label in one.tolist():
            if label in seen:
                yield Disagreement(
                    part.shown, path, "overlap", f"has {label!r}, which {seen[label]} has too"
                )
            seen[label] = part.shown


def _by_coordinates(flat: list[VirtualDataset], names: tuple[str, ...]) -> Any:
    """Find the place of each file in a grid of files, as nested lists."""
    keys = np.empty((len(flat), len(names)), np.int64)
    all_starts = []
    for column, dim in enumerate(names):
        path = find_coordinate(flat[0], "", dim)
        values = None if path is None else reconcile_values(flat, path)
        if values is None or any(not len(one) for one in values):
            raise InvalidInputError(
                f"files cannot be put in order along {dim}: they have no comparable, loaded "
                "coordinate of that name; give them as nested lists in order",
                kind=ErrorKind.NOT_ALLOWED,
            )
        starts = np.array([one[0] for one in values])
        # Files of one step each do not tell, and the order that they come in says nothing here.
        is_falling = any(len(one) > 1 for one in values) and _direction(values) < 0
        found_starts, places = np.unique(starts, return_inverse=True)
        keys[:, column] = len(found_starts) - 1 - places if is_falling else places
        all_starts.append(found_starts[::-1] if is_falling else found_starts)
    sizes = keys.max(axis=0) + 1
    grid = np.full(tuple(sizes), -1, np.int64)
    found: list[Disagreement] = []
    for number, place in enumerate(map(tuple, keys.tolist())):
        if grid[place] >= 0:
            found.append(
                Disagreement(
                    flat[number].shown,
                    "",
                    "overlap",
                    f"starts at the same place along {', '.join(names)} as "
                    f"{flat[int(grid[place])].shown}",
                )
            )
        grid[place] = number
    raise_disagreements(found, "combining")
    gaps = np.argwhere(grid < 0)
    if len(gaps):
        first = ", ".join(
            f"{name} {_shown(starts[place])}"
            for name, starts, place in zip(names, all_starts, gaps[0], strict=True)
        )
        raise InvalidInputError(
            f"{len(flat)} files, the first {flat[0].shown}, do not fill a grid of "
            f"{' x '.join(map(str, sizes))} along {', '.join(names)}: {len(gaps)} are missing, the "
            f"first is the one that starts at {first}. Add them, or combine what is complete",
            kind=ErrorKind.FILES_DISAGREE,
        )
    return _nested(grid, flat)


def _nested(grid: NDArray[np.int64], flat: list[VirtualDataset]) -> Any:
    if grid.ndim == 0:
        return flat[int(grid)]
    return [_nested(one, flat) for one in grid]


def reconcile_values(parts: list[VirtualDataset], path: str) -> list[NDArray[Any]] | None:
    """Return the values of a coordinate of some files in common units; None if there are none."""
    arrays = [part.arrays[path] for part in parts]
    loaded = [one for one in arrays if isinstance(one, LoadedArray)]
    if len(loaded) < len(arrays):
        return None
    values = [one.values for one in loaded]
    units = [_units(part, path) for part in parts]
    known = [one for one in units if one is not None]
    if len(set(units)) == 1:
        return values
    if len(known) < len(units):
        same = len({str(one.attributes.get("units")) for one in loaded}) == 1
        return values if same else None
    common = reconcile_units(list(zip(values, known, strict=True)))
    return None if common is None else common[1]


def _direction(values: list[NDArray[Any]]) -> int:
    """Tell whether a coordinate grows (1) or shrinks (-1)."""
    for one in values:
        if len(one) > 1:
            return 1 if one[1] > one[0] else -1
    ends = [one[0] for one in values if len(one)]
    return -1 if len(ends) > 1 and ends[-1] < ends[0] and ends[1] < ends[0] else 1


def _units(part: VirtualDataset, path: str) -> TimeUnits | None:
    return parse_time_units(part.arrays[path].attributes)


def _values(part: VirtualDataset, path: str) -> NDArray[Any]:
    array = part.arrays[path]
    if not isinstance(array, LoadedArray):
        raise InvalidInputError(
            f"{part.shown}: {path}: its units differ from file to file, so its values have to be "
            f"read: parse with loadable_variables that name it",
            kind=ErrorKind.FILES_DISAGREE,
        )
    return array.values


def _bounds_path(dataset: VirtualDataset, path: str) -> str | None:
    group, _, _ = path.rpartition("/")
    named = dataset.arrays[path].attributes.get("bounds")
    found = f"{group}/{named}" if group else str(named)
    return found if named and found in dataset.arrays else None


def _calendar(attributes: dict[str, Any]) -> str:
    return str(attributes.get("calendar", "standard"))


def _axis(array: AnyArray, dim: str) -> int | None:
    names = array.dimension_names
    return names.index(dim) if dim in names else None


def _with_attributes(array: AnyArray, attributes: dict[str, Any]) -> AnyArray:
    metadata = {**array.metadata, "attributes": attributes}
    if isinstance(array, LoadedArray):
        return LoadedArray(metadata, array.values)
    return VirtualArray(metadata, array.refs)


def _attributes(all_parts: list[dict[str, Any]], how: CombineAttributes) -> dict[str, Any]:
    first = all_parts[0]
    if how == "override":
        return first
    return {
        name: value
        for name, value in first.items()
        if all(part is first or _equal(part.get(name, _SAME), value) for part in all_parts)
    }


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - NaN


def _attribute_conflicts(flat: list[VirtualDataset]) -> Iterator[Disagreement]:
    first = flat[0]
    for other in flat[1:]:
        pairs = [("", first.attributes, other.attributes)]
        pairs += [
            (path, array.attributes, other.arrays[path].attributes)
            for path, array in first.arrays.items()
            if path in other.arrays
        ]
        for path, mine, theirs in pairs:
            for name in sorted({*mine, *theirs}):
                if not _equal(mine.get(name, _SAME), theirs.get(name, _SAME)):
                    yield Disagreement(
                        other.shown,
                        path,
                        "attribute",
                        f"has the attribute {name} = {theirs.get(name)!r}, and {mine.get(name)!r} "
                        f"in {first.shown}",
                    )


def _looks_alike(one: VirtualDataset, other: VirtualDataset, dims: frozenset[str]) -> bool:
    """Whether two files plainly agree, so that nobody has to look closer."""
    if one.arrays.keys() != other.arrays.keys():
        return False
    for path, mine in one.arrays.items():
        theirs = other.arrays[path]
        if type(mine) is not type(theirs) or mine.metadata != theirs.metadata:
            return False
        if (
            isinstance(mine, LoadedArray)
            and isinstance(theirs, LoadedArray)
            and not dims & set(mine.dimension_names)
            and not np.array_equal(mine.values, theirs.values)
        ):
            return False
    return True


def _aligned(first: VirtualDataset, other: VirtualDataset, dims: frozenset[str]) -> VirtualDataset:
    """Let contiguous arrays of different lengths count as cut alike, as they will be."""
    arrays = dict(first.arrays)
    for path, mine in first.arrays.items():
        theirs = other.arrays.get(path)
        if (
            isinstance(mine, VirtualArray)
            and isinstance(theirs, VirtualArray)
            and mine.dimension_names == theirs.dimension_names
            and mine.chunk_shape != theirs.chunk_shape
        ):
            axes = [axis for axis, name in enumerate(mine.dimension_names) if name in dims]
            if len(axes) == 1 and _are_cut_alike(mine, theirs, axes[0]):
                arrays[path] = VirtualArray(
                    {**mine.metadata, "chunk_grid": theirs.metadata["chunk_grid"]}, mine.refs
                )
    return VirtualDataset(first.sources, first.groups, arrays)


def _are_cut_alike(one: VirtualArray, other: VirtualArray, axis: int) -> bool:
    """Whether two arrays have chunks of one shape after they are cut, if they can be."""
    first, second = align_chunk_lengths([one, other], axis)
    return first.chunk_shape == second.chunk_shape


def require_dims(datasets: Sequence[VirtualDataset], names: Sequence[str]) -> None:
    """Refuse files that have no variable along one of the dimensions."""
    for dataset in datasets:
        for dim in names:
            if not any(dim in array.dimension_names for array in dataset.arrays.values()):
                known = sorted(
                    {
                        str(name)
                        for array in dataset.arrays.values()
                        for name in array.dimension_names
                    }
                )
                raise InvalidInputError(
                    f"{dataset.shown}: no variable has the dimension {dim!r}; there are: "
                    f"{', '.join(known) or 'none'}",
                    kind=ErrorKind.FILES_DISAGREE,
                )


def _shown(value: Any) -> str:
    return str(value.item())


def _flat(nested: Any) -> Iterator[VirtualDataset]:
    if isinstance(nested, VirtualDataset):
        yield nested
        return
    if not isinstance(nested, list | tuple):
        raise InvalidInputError(
            f"combine takes what parse returned, not a {type(nested).__name__}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    for one in nested:
        yield from _flat(one)
