"""`compare`: whether files agree enough to form one dataset. Pure, no I/O.

Finds all disagreements, not only the first: an archive of thousands of files is repaired from the
complete list.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import FilesDisagreeError
from icefloe.virtual.arrays import LoadedArray, VirtualArray, are_equal, format_data_type
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
"""Attributes that define the meaning of values: a combined array has one value for all files."""

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
        What was found and what was expected.
    """

    file: str
    variable: str
    aspect: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.variable}" if self.variable else self.file
        return f"{where}: {self.text}"


def raise_disagreements(found: Iterable[Disagreement], what: str) -> None:
    """Raise one error that lists all disagreements, if there are any."""
    disagreements = list(found)
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
        f"{what}: {files} {'file disagrees' if files == 1 else 'files disagree'}, and nothing was "
        "written:\n" + "\n".join(lines),
        disagreements=disagreements,
    )


def compare(
    first: VirtualDataset, other: VirtualDataset, *, dims: frozenset[str], stored: bool = False
) -> Iterator[Disagreement]:
    """Find what prevents a dataset from being joined to another along ``dims``.

    With ``stored``, ``first`` is a group of a repository: loaded arrays take its chunks and codecs.
    """
    missing = [path for path in first.arrays if path not in other.arrays]
    extra = [path for path in other.arrays if path not in first.arrays]
    where = "the repository" if stored else first.label
    if missing:
        text = f"has no {', '.join(missing)}, unlike {where}"
        yield Disagreement(other.label, "", "variables", text)
    if extra:
        text = f"has {', '.join(extra)}, unlike {where}; parse with drop_variables={extra}"
        yield Disagreement(other.label, "", "variables", text)
    for path, mine in first.arrays.items():
        theirs = other.arrays.get(path)
        if theirs is not None:
            for aspect, text in _compare_arrays(mine, theirs, dims, stored=stored):
                yield Disagreement(other.label, path, aspect, f"{text} in {where}")


def are_same(left: Any, right: Any) -> bool:
    """Whether two attribute values are equal; NaN equals NaN."""
    return bool(left == right) or (left != left and right != right)  # noqa: PLR0124 - NaN


def _compare_arrays(
    mine: AnyArray, theirs: AnyArray, dims: frozenset[str], *, stored: bool
) -> Iterator[tuple[str, str]]:
    """Yield the aspect, and a text that ends with the value of ``mine``."""
    if type(mine) is not type(theirs) and not stored:
        is_loaded = isinstance(theirs, LoadedArray)
        found, expected = ("loaded", "referenced") if is_loaded else ("referenced", "loaded")
        hint = "list it in loadable_variables of all files or of none"
        yield "loading", f"is {found} ({hint}), but {expected}"
        return
    if mine.dimension_names != theirs.dimension_names:
        yield "dimensions", f"has dimensions {_format_dims(theirs)}, but {_format_dims(mine)}"
        return
    if mine.metadata["data_type"] != theirs.metadata["data_type"] and not _are_times(mine, theirs):
        expected = format_data_type(mine.metadata)
        yield "dtype", f"has dtype {format_data_type(theirs.metadata)}, but {expected}"
    if isinstance(theirs, VirtualArray):
        if mine.metadata["codecs"] != theirs.metadata["codecs"]:
            yield "codecs", f"has codecs {_format_codecs(theirs)}, but {_format_codecs(mine)}"
        if mine.chunk_shape != theirs.chunk_shape:
            expected = _format_shape(mine.chunk_shape)
            yield "chunks", f"has chunks of {_format_shape(theirs.chunk_shape)}, but {expected}"
        fill_value = theirs.metadata["fill_value"]
        if not are_same(mine.metadata["fill_value"], fill_value):
            yield "fill value", f"has fill value {fill_value}, but {mine.metadata['fill_value']}"
    for name, ours, length in zip(mine.dimension_names, mine.shape, theirs.shape, strict=True):
        if name not in dims and ours != length:
            yield "length", f"has {length} steps along {name}, but {ours}"
    yield from _compare_attributes(mine, theirs)
    if not dims & set(mine.dimension_names) and mine.shape == theirs.shape:
        yield from _compare_values(mine, theirs)


def _compare_attributes(mine: AnyArray, theirs: AnyArray) -> Iterator[tuple[str, str]]:
    is_loaded = isinstance(mine, LoadedArray) and isinstance(theirs, LoadedArray)
    are_times = is_loaded and all(parse_time_units(array.attributes) for array in (mine, theirs))
    for name in sorted(SEMANTIC_ATTRIBUTES):
        if are_times and name in {"units", "calendar"}:
            continue  # converted when the values are joined
        expected, found = mine.attributes.get(name), theirs.attributes.get(name)
        if not are_same(expected, found):
            hint = ""
            if name == "units" and not is_loaded and parse_time_units(theirs.attributes):
                hint = " (list it in loadable_variables of all files to convert it)"
            yield "attribute", f"has attribute {name} = {found!r}{hint}, but {expected!r}"


def _compare_values(mine: AnyArray, theirs: AnyArray) -> Iterator[tuple[str, str]]:
    if not (isinstance(mine, LoadedArray) and isinstance(theirs, LoadedArray)):
        return
    if are_equal(mine.values, theirs.values):
        return
    if mine.values.ndim == 0:
        yield "values", f"is {theirs.values.item()!r}, but {mine.values.item()!r}"
        return
    differs = mine.values != theirs.values
    first = tuple(int(indices[0]) for indices in differs.nonzero())
    count = f"differs in {int(differs.sum())} of {differs.size} values, first at {list(first)}"
    values = f"{theirs.values[first].item()!r}, but {mine.values[first].item()!r}"
    yield "values", f"{count}: {values}"


def _are_times(mine: AnyArray, theirs: AnyArray) -> bool:
    """Whether both are loaded times: these may be integers in one file and floats in another."""
    return (
        isinstance(mine, LoadedArray)
        and isinstance(theirs, LoadedArray)
        and mine.values.dtype.kind in "iuf"
        and theirs.values.dtype.kind in "iuf"
        and parse_time_units(mine.attributes) is not None
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
