"""`compare`: checks whether files agree enough to form one dataset. Pure, no I/O.

Finds all disagreements, not only the first, so that users can repair an archive in one pass.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import FilesDisagreeError
from icefloe.virtual.arrays import LoadedArray, VirtualArray, are_arrays_equal
from icefloe.virtual.cf_time import parse_time_units

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.virtual.arrays import AnyArray
    from icefloe.virtual.dataset import VirtualDataset

SEMANTIC_ATTRIBUTES: Final = frozenset(
    {
        "units",
        "calendar",
        "scale_factor",
        "add_offset",
        "_FillValue",
        "missing_value",
        "_Unsigned",
        "standard_name",
        "grid_mapping",
        "flag_values",
        "flag_masks",
        "flag_meanings",
        "dtype",
    }
)
"""Attributes that define the meaning of values, and therefore must be equal in all files."""

_MAX_LISTED: Final = 30


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One difference of one file.

    Parameters
    ----------
    file
        URL of the file.
    variable
        Path of the array, or empty for the whole dataset.
    aspect
        What differs: ``variables``, ``dtype``, ``codecs``, ``chunks``, ``fill value``,
        ``dimensions``, ``length``, ``attribute``, ``values``, ``order``, ``overlap``.
    text
        The actual and the expected value.
    """

    file: str
    variable: str
    aspect: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.variable}" if self.variable else self.file
        return f"{where}: {self.text}"


def raise_disagreements(problems: Iterable[Disagreement], operation: str) -> None:
    """Raise one error that lists all disagreements, if there are any."""
    disagreements = list(problems)
    if not disagreements:
        return
    # The same problem in many files is listed once, with a count.
    counts = Counter((problem.variable, problem.text) for problem in disagreements)
    firsts = {(problem.variable, problem.text): problem for problem in reversed(disagreements)}
    lines = [
        f"  {firsts[key]}" + (f" (and {count - 1} more files)" if count > 1 else "")
        for key, count in islice(counts.items(), _MAX_LISTED)
    ]
    if len(counts) > _MAX_LISTED:
        lines.append(f"  … and {len(counts) - _MAX_LISTED} more, in .disagreements")
    files = len({problem.file for problem in disagreements})
    raise FilesDisagreeError(
        f"{operation}: {files} {'file disagrees' if files == 1 else 'files disagree'}, and nothing "
        "was written:\n" + "\n".join(lines),
        disagreements=disagreements,
    )


def compare(
    first: VirtualDataset, other: VirtualDataset, *, dims: frozenset[str], is_stored: bool = False
) -> Iterator[Disagreement]:
    """Find what prevents a dataset from being joined to another along ``dims``.

    With ``is_stored``, ``first`` is a group of a repository, not a file.
    """
    missing = [path for path in first.arrays if path not in other.arrays]
    extra = [path for path in other.arrays if path not in first.arrays]
    where = "the repository" if is_stored else first.label
    if missing:
        text = f"has no {', '.join(missing)}, unlike {where}"
        yield Disagreement(other.label, "", "variables", text)
    if extra:
        text = f"has {', '.join(extra)}, unlike {where}; parse with drop_variables={extra}"
        yield Disagreement(other.label, "", "variables", text)
    for path, array in first.arrays.items():
        other_array = other.arrays.get(path)
        if other_array is not None:
            for aspect, text in _compare_arrays(array, other_array, dims, is_stored=is_stored):
                yield Disagreement(other.label, path, aspect, f"{text} in {where}")


def are_values_equal(left: Any, right: Any) -> bool:
    """Return whether two attribute values are equal; NaN equals NaN."""
    return bool(left == right) or (left != left and right != right)  # noqa: PLR0124 - NaN


def _compare_arrays(
    first: AnyArray, other: AnyArray, dims: frozenset[str], *, is_stored: bool
) -> Iterator[tuple[str, str]]:
    """Yield the aspect and text of each difference; the text ends with the value of ``first``."""
    if type(first) is not type(other) and not is_stored:
        is_loaded = isinstance(other, LoadedArray)
        actual, expected = ("loaded", "referenced") if is_loaded else ("referenced", "loaded")
        hint = "list it in loadable_variables of all files or of none"
        yield "loading", f"is {actual} ({hint}), but {expected}"
        return
    if first.dimension_names != other.dimension_names:
        yield "dimensions", f"has dimensions {_format_dims(other)}, but {_format_dims(first)}"
        return
    if first.metadata["data_type"] != other.metadata["data_type"] and not _are_times(first, other):
        expected = first.metadata["data_type"]
        yield "dtype", f"has dtype {other.metadata['data_type']}, but {expected}"
    if isinstance(other, VirtualArray):
        if first.metadata["codecs"] != other.metadata["codecs"]:
            yield "codecs", f"has codecs {_format_codecs(other)}, but {_format_codecs(first)}"
        if first.chunk_shape != other.chunk_shape:
            expected = _format_shape(first.chunk_shape)
            yield "chunks", f"has chunks of {_format_shape(other.chunk_shape)}, but {expected}"
        fill_value = other.metadata["fill_value"]
        if not are_values_equal(first.metadata["fill_value"], fill_value):
            yield "fill value", f"has fill value {fill_value}, but {first.metadata['fill_value']}"
    lengths = zip(first.dimension_names, other.shape, first.shape, strict=True)
    for name, length, expected_length in lengths:
        if name not in dims and length != expected_length:
            yield "length", f"has {length} steps along {name}, but {expected_length}"
    yield from _compare_attributes(first, other)
    if not dims & set(first.dimension_names) and first.shape == other.shape:
        yield from _compare_values(first, other)


def _compare_attributes(first: AnyArray, other: AnyArray) -> Iterator[tuple[str, str]]:
    is_loaded = isinstance(first, LoadedArray) and isinstance(other, LoadedArray)
    are_times = is_loaded and all(parse_time_units(array.attributes) for array in (first, other))
    for name in sorted(SEMANTIC_ATTRIBUTES):
        if are_times and name in {"units", "calendar"}:
            continue  # times are converted to common units when they are joined
        expected, actual = first.attributes.get(name), other.attributes.get(name)
        if not are_values_equal(expected, actual):
            hint = ""
            if name == "units" and not is_loaded and parse_time_units(other.attributes):
                hint = " (list it in loadable_variables of all files to convert it)"
            yield "attribute", f"has attribute {name} = {actual!r}{hint}, but {expected!r}"


def _compare_values(first: AnyArray, other: AnyArray) -> Iterator[tuple[str, str]]:
    if not (isinstance(first, LoadedArray) and isinstance(other, LoadedArray)):
        return
    if are_arrays_equal(first.values, other.values):
        return
    if first.values.ndim == 0:
        yield "values", f"is {other.values.item()!r}, but {first.values.item()!r}"
        return
    differs = first.values != other.values
    index = tuple(int(indices[0]) for indices in differs.nonzero())
    count = f"differs in {int(differs.sum())} of {differs.size} values, first at {list(index)}"
    values = f"{other.values[index].item()!r}, but {first.values[index].item()!r}"
    yield "values", f"{count}: {values}"


def _are_times(first: AnyArray, other: AnyArray) -> bool:
    """Return whether both are loaded times: their data types may differ between files."""
    return (
        isinstance(first, LoadedArray)
        and isinstance(other, LoadedArray)
        and first.values.dtype.kind in "iuf"
        and other.values.dtype.kind in "iuf"
        and parse_time_units(first.attributes) is not None
    )


def _format_dims(array: AnyArray) -> str:
    return f"({', '.join(map(str, array.dimension_names))})"


def _format_codecs(array: AnyArray) -> str:
    codecs = []
    for codec in array.metadata["codecs"]:
        settings = codec.get("configuration") or {}
        values = ", ".join(f"{key}={value}" for key, value in settings.items())
        codecs.append(f"{codec['name']}({values})" if values else codec["name"])
    return " + ".join(codecs)


def _format_shape(shape: tuple[int, ...] | None) -> str:
    return "several shapes" if shape is None else " x ".join(map(str, shape))
