"""Combines parsed files into one dataset, along one or more dimensions. Pure, no I/O.

Vectorized: one numpy pass over the references of each array. Loaded arrays along a combined
dimension are concatenated; arrays without it are taken from the first file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.virtual.agreement import Disagreement, are_values_equal, compare, raise_disagreements
from icefloe.virtual.arrays import LoadedArray, VirtualArray
from icefloe.virtual.cf_time import convert_times, parse_time_units, reconcile_units
from icefloe.virtual.contiguous import align_chunk_lengths
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.file_order import (
    arrange_by_coordinates,
    check_sequence,
    check_units,
    reconcile_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.virtual.arrays import AnyArray

CombineAttributes: TypeAlias = Literal["drop_conflicts", "override", "identical"]

_MISSING: Final = object()


def combine(
    datasets: Sequence[Any],
    dims: Sequence[str] | str,
    *,
    order: Literal["given", "coordinates"] = "given",
    combine_attrs: CombineAttributes = "drop_conflicts",
) -> VirtualDataset:
    """Combine parsed files along existing dimensions.

    Parameters
    ----------
    datasets
        A list for one dimension. For several dimensions, nested lists with one level per dimension
        (the first dimension outermost), or a flat list with ``order="coordinates"``.
    dims
        Names of the dimensions in the files.
    order
        ``given`` keeps the order of ``datasets``. ``coordinates`` sorts by coordinate values; with
        several dimensions, the files must form a complete grid.
    combine_attrs
        How to handle attributes that differ between files: ``drop_conflicts`` drops them,
        ``override`` takes those of the first file, ``identical`` raises. Attributes that define
        the meaning of values, such as ``units``, must always agree.

    Raises
    ------
    FilesDisagreeError
        If the files cannot be combined. Lists every file and variable that disagrees.
    """
    names = (dims,) if isinstance(dims, str) else tuple(dims)
    if not names or len(set(names)) != len(names):
        raise _not_allowed_error(f"dims={dims!r}: expected one or more distinct dimension names")
    flat = list(_flatten(datasets))
    if not flat:
        raise _not_allowed_error("datasets: expected at least one dataset, got none")
    require_dims(flat, names)
    # All files are compared before an error is raised, so that it lists all disagreements.
    problems: list[Disagreement] = []
    for other in flat[1:]:
        problems += find_disagreements(flat[0], other, frozenset(names))
    if combine_attrs == "identical":
        problems += _find_attribute_conflicts(flat)
    nested: Any = datasets
    if order == "coordinates":
        raise_disagreements(problems, "combining")
        nested = arrange_by_coordinates(flat, names)
    elif len(names) > 1 and not all(isinstance(item, list | tuple) for item in datasets):
        raise _not_allowed_error(
            f"to combine along {', '.join(names)}, pass nested lists, or order='coordinates'"
        )
    if len(names) == 1 and order == "given":
        disagreeing_files = {problem.file for problem in problems}
        comparable = [dataset for dataset in flat if dataset.label not in disagreeing_files]
        problems += check_sequence(comparable, names[0])
    raise_disagreements(problems, "combining")
    return _join_nested(nested, names, combine_attrs)


def find_disagreements(
    first: VirtualDataset, other: VirtualDataset, dims: frozenset[str]
) -> list[Disagreement]:
    """Find what prevents combining two files along dimensions, in any order."""
    if _have_equal_metadata(first, other, dims):
        return []
    problems = list(compare(_align_grids(first, other, dims), other, dims=dims))
    if problems:
        return problems
    return [
        problem
        for path, array in first.arrays.items()
        if isinstance(array, LoadedArray)
        and dims & set(array.dimension_names)
        and reconcile_values([first, other], path) is None
        for problem in check_units([first, other], path)
    ]


def require_dims(datasets: Sequence[VirtualDataset], names: Sequence[str]) -> None:
    """Raise if a file has no variable along one of the dimensions."""
    for dataset in datasets:
        dims = {name for array in dataset.arrays.values() for name in array.dimension_names}
        for dim in names:
            if dim not in dims:
                raise InvalidInputError(
                    f"{dataset.label}: no variable has the dimension {dim!r}; available: "
                    f"{', '.join(sorted(map(str, dims))) or 'none'}",
                    kind=ErrorKind.FILES_DISAGREE,
                )


def _flatten(nested: Any) -> Iterator[VirtualDataset]:
    if isinstance(nested, VirtualDataset):
        yield nested
        return
    if not isinstance(nested, list | tuple):
        type_name = type(nested).__name__
        raise _not_allowed_error(f"expected datasets returned by parse, got a {type_name}")
    for item in nested:
        yield from _flatten(item)


def _not_allowed_error(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind=ErrorKind.NOT_ALLOWED)


def _join_nested(nested: Any, names: tuple[str, ...], policy: CombineAttributes) -> VirtualDataset:
    if not names:
        return cast("VirtualDataset", nested)
    if isinstance(nested, VirtualDataset):
        raise _not_allowed_error("datasets: expected nested lists with one level per dimension")
    return _join([_join_nested(item, names[1:], policy) for item in nested], names[0], policy)


def _join(parts: list[VirtualDataset], dim: str, policy: CombineAttributes) -> VirtualDataset:
    """Join compatible datasets along one dimension."""
    if len(parts) == 1:
        return parts[0]
    raise_disagreements(check_sequence(parts, dim), f"combining along {dim}")
    first = parts[0]
    arrays: dict[str, AnyArray] = {}
    converted_times = _convert_times(parts, dim)
    for path, array in first.arrays.items():
        attributes = _join_attributes([part.arrays[path].attributes for part in parts], policy)
        joined = array
        if dim in array.dimension_names:
            axis = array.dimension_names.index(dim)
            pieces = [part.arrays[path] for part in parts]
            if isinstance(array, LoadedArray):
                values, units = converted_times.get(path, (None, None))
                if values is None:
                    values = [piece.values for piece in pieces if isinstance(piece, LoadedArray)]
                if units is not None:
                    attributes = {**attributes, "units": units}
                concatenated = _narrow_integers(np.concatenate(values, axis), array.values.dtype)
                joined = LoadedArray.of(array.metadata, concatenated)
            else:
                joined = _join_refs([p for p in pieces if isinstance(p, VirtualArray)], axis)
        arrays[path] = replace(joined, metadata={**joined.metadata, "attributes": attributes})
    return VirtualDataset(
        tuple(source for part in parts for source in part.sources),
        {
            path: _join_attributes([part.groups.get(path, {}) for part in parts], policy)
            for path in first.groups
        },
        arrays,
    )


def _join_refs(parts: list[VirtualArray], axis: int) -> VirtualArray:
    parts = align_chunk_lengths(parts, axis)
    chunk = parts[0].chunk_shape or ()
    lengths = np.array([part.shape[axis] for part in parts], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) // chunk[axis]
    rows = [len(part.refs) for part in parts]
    coords = np.concatenate([part.refs.coords for part in parts])
    coords[:, axis] += np.repeat(starts, rows).astype(np.uint32)
    shape = list(parts[0].shape)
    shape[axis] = int(lengths.sum())
    payloads = ChunkPayloads.concatenate([part.refs.payloads for part in parts])
    return VirtualArray(
        parts[0].metadata_with_shape(tuple(shape)), ArrayManifest.of(coords, payloads)
    )


def _narrow_integers(joined: NDArray[Any], first: np.dtype[Any]) -> NDArray[Any]:
    """Cast integers back to the type of the first file, if they fit."""
    if joined.dtype.kind in "iu" and first.kind in "iu" and joined.size:
        limits = np.iinfo(first)
        if limits.min <= int(joined.min()) and int(joined.max()) <= limits.max:
            return joined.astype(first)
    return joined


def _convert_times(
    parts: list[VirtualDataset], dim: str
) -> dict[str, tuple[list[NDArray[Any]], str | None]]:
    """Convert times with different units, and their bounds, to common units.

    Returns the values of each part and the ``units`` attribute, if the array has one, by path.
    """
    result: dict[str, tuple[list[NDArray[Any]], str | None]] = {}
    for path, array in parts[0].arrays.items():
        if not isinstance(array, LoadedArray) or dim not in array.dimension_names:
            continue
        units = [parse_time_units(part.arrays[path].attributes) for part in parts]
        time_units = [unit for unit in units if unit is not None]
        if len(time_units) < len(units) or len(set(time_units)) == 1:
            continue
        bounds = _find_bounds(parts[0], path)
        paths = [path] if bounds is None else [path, bounds]
        times = [
            np.concatenate([_require_values(part, p).reshape(-1) for p in paths]) for part in parts
        ]
        common = reconcile_units(list(zip(times, time_units, strict=True)))
        if common is None:
            continue  # reported by find_disagreements
        target, _ = common
        for array_path in paths:
            values = [
                convert_times(_require_values(part, array_path), unit, target)
                for part, unit in zip(parts, time_units, strict=True)
            ]
            units_text = target.text if "units" in parts[0].arrays[array_path].attributes else None
            result[array_path] = [item for item in values if item is not None], units_text
    return result


def _require_values(part: VirtualDataset, path: str) -> NDArray[Any]:
    array = part.arrays[path]
    if not isinstance(array, LoadedArray):
        raise InvalidInputError(
            f"{part.label}: {path}: its units differ between files, so its values must be loaded: "
            "include it in loadable_variables when parsing",
            kind=ErrorKind.FILES_DISAGREE,
        )
    return array.values


def _find_bounds(dataset: VirtualDataset, path: str) -> str | None:
    group = path.rpartition("/")[0]
    name = dataset.arrays[path].attributes.get("bounds")
    bounds = f"{group}/{name}" if group else str(name)
    return bounds if name and bounds in dataset.arrays else None


def _join_attributes(parts: list[dict[str, Any]], policy: CombineAttributes) -> dict[str, Any]:
    first = parts[0]
    if policy == "override":
        return first
    return {
        name: value
        for name, value in first.items()
        if all(part is first or are_values_equal(part.get(name, _MISSING), value) for part in parts)
    }


def _find_attribute_conflicts(datasets: list[VirtualDataset]) -> Iterator[Disagreement]:
    first = datasets[0]
    for other in datasets[1:]:
        pairs = [("", first.attributes, other.attributes)]
        pairs += [
            (path, array.attributes, other.arrays[path].attributes)
            for path, array in first.arrays.items()
            if path in other.arrays
        ]
        for path, expected, actual in pairs:
            for name in sorted({*expected, *actual}):
                if not are_values_equal(expected.get(name, _MISSING), actual.get(name, _MISSING)):
                    values = f"{actual.get(name)!r}, but {expected.get(name)!r} in {first.label}"
                    text = f"has attribute {name} = {values}"
                    yield Disagreement(other.label, path, "attribute", text)


def _have_equal_metadata(
    first: VirtualDataset, other: VirtualDataset, dims: frozenset[str]
) -> bool:
    """Return whether metadata, and loaded values without a combined dimension, are equal.

    A fast path that avoids `compare`.
    """
    if first.arrays.keys() != other.arrays.keys():
        return False
    for path, array in first.arrays.items():
        other_array = other.arrays[path]
        if type(array) is not type(other_array) or array.metadata != other_array.metadata:
            return False
        if (
            isinstance(array, LoadedArray)
            and isinstance(other_array, LoadedArray)
            and not dims & set(array.dimension_names)
            and not np.array_equal(array.values, other_array.values)
        ):
            return False
    return True


def _align_grids(
    first: VirtualDataset, other: VirtualDataset, dims: frozenset[str]
) -> VirtualDataset:
    """Use the chunk grid of ``other`` for contiguous arrays that `_join_refs` can align with it."""
    arrays = dict(first.arrays)
    for path, array in first.arrays.items():
        other_array = other.arrays.get(path)
        if (
            isinstance(array, VirtualArray)
            and isinstance(other_array, VirtualArray)
            and array.dimension_names == other_array.dimension_names
            and array.chunk_shape != other_array.chunk_shape
        ):
            axes = [axis for axis, name in enumerate(array.dimension_names) if name in dims]
            if len(axes) != 1:
                continue
            left, right = align_chunk_lengths([array, other_array], axes[0])
            if left.chunk_shape == right.chunk_shape:
                grid = other_array.metadata["chunk_grid"]
                arrays[path] = VirtualArray({**array.metadata, "chunk_grid": grid}, array.refs)
    return VirtualDataset(first.sources, first.groups, arrays)
