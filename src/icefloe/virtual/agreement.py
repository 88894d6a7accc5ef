"""What files must have in common to be one dataset, and which of them has not. Pure, no I/O.

All disagreements are found, not only the first: whoever has two thousand files to mend wants the
list.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import FilesDisagreeError
from icefloe.virtual.cf_time import parse_time_units
from icefloe.virtual.dataset import (
    AnyArray,
    LoadedArray,
    VirtualArray,
    VirtualDataset,
    are_equal,
    format_data_type,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
"""Attributes that say what the numbers mean: of these a combined array has one for all files."""

_MAX_SHOWN: Final = 30


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One thing in which one file differs.

    Parameters
    ----------
    file
        The URL of the file.
    variable
        The path of the array, or empty for the dataset as a whole.
    aspect
        In one word or two: ``variables``, ``dtype``, ``codecs``, ``chunks``, ``fill value``,
        ``dimensions``, ``length``, ``attribute``, ``values``, ``order``, ``overlap``.
    text
        What is the case, and what should be.
    """

    file: str
    variable: str
    aspect: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.variable}" if self.variable else self.file
        return f"{where}: {self.text}"


def raise_disagreements(found: Iterable[Disagreement], what: str) -> None:
    """Raise what was found, all of it."""
    disagreements = list(found)
    if not disagreements:
        return
    # The same complaint of a hundred files is one complaint.
    alike: Counter[tuple[str, str]] = Counter()
    shown: list[str] = []
    for one in disagreements:
        alike[one.variable, one.text] += 1
        if alike[one.variable, one.text] == 1 and len(shown) < _MAX_SHOWN:
            shown.append(str(one))
    lines = []
    for line, (_, count) in zip(shown, alike.items(), strict=False):
        lines.append(f"  {line}" + (f" (and {count - 1} more files)" if count > 1 else ""))
    hidden = len(alike) - len(shown)
    if hidden > 0:
        lines.append(f"  … and {hidden} more, in .disagreements")
    files = len({one.file for one in disagreements})
    raise FilesDisagreeError(
        f"{what}: {files} {'file disagrees' if files == 1 else 'files disagree'}, and nothing was "
        "written:\n" + "\n".join(lines),
        disagreements=disagreements,
    )


def compare(
    one: VirtualDataset, other: VirtualDataset, *, dims: frozenset[str], stored: bool = False
) -> Iterator[Disagreement]:
    """Find what keeps a dataset from being joined to another along ``dims``.

    Parameters
    ----------
    one
        The first file, or what a repository has.
    other
        The file that may disagree.
    dims
        The dimensions along which they may differ in length and in coordinates.
    stored
        Whether ``one`` is in a repository: arrays that are copied there take its chunks and codecs.
    """
    missing = [path for path in one.arrays if path not in other.arrays]
    extra = [path for path in other.arrays if path not in one.arrays]
    where = "the repository" if stored else one.shown
    if missing:
        yield Disagreement(
            other.shown, "", "variables", f"has no {', '.join(missing)}, as {where} does"
        )
    if extra:
        yield Disagreement(
            other.shown,
            "",
            "variables",
            f"has {', '.join(extra)}, which {where} has not; parse with drop_variables={extra}",
        )
    for path, mine in one.arrays.items():
        theirs = other.arrays.get(path)
        if theirs is not None:
            for aspect, text in _compare_arrays(mine, theirs, dims, stored=stored):
                yield Disagreement(other.shown, path, aspect, f"{text} in {where}")


def _compare_arrays(
    mine: AnyArray, theirs: AnyArray, dims: frozenset[str], *, stored: bool
) -> Iterator[tuple[str, str]]:
    """Yield the aspect, and a text that ends in what the other has."""
    if type(mine) is not type(theirs) and not stored:
        loaded = "its values were loaded" if isinstance(theirs, LoadedArray) else "it is referenced"
        yield (
            "loading",
            f"{loaded}, and not so (name it in loadable_variables of all files, or of none)",
        )
        return
    if mine.dimension_names != theirs.dimension_names:
        yield "dimensions", f"has dimensions {_list(theirs)}, and {_list(mine)}"
        return
    if mine.metadata["data_type"] != theirs.metadata["data_type"] and not _both_numbers(
        mine, theirs
    ):
        yield (
            "dtype",
            f"has dtype {format_data_type(theirs.metadata)}, and {format_data_type(mine.metadata)}",
        )
    if isinstance(theirs, VirtualArray):
        if mine.metadata["codecs"] != theirs.metadata["codecs"]:
            yield "codecs", f"is encoded by {_codecs(theirs)}, and by {_codecs(mine)}"
        if mine.chunk_shape != theirs.chunk_shape:
            yield (
                "chunks",
                f"has chunks of {_shape(theirs.chunk_shape)}, and of {_shape(mine.chunk_shape)}",
            )
        if not _same_number(mine.metadata["fill_value"], theirs.metadata["fill_value"]):
            yield (
                "fill value",
                (
                    f"has fill value {theirs.metadata['fill_value']}, and "
                    f"{mine.metadata['fill_value']}"
                ),
            )
    lengths = zip(mine.dimension_names, mine.shape, theirs.shape, strict=True)
    for name, ours, length in lengths:
        if name not in dims and ours != length:
            yield "length", f"has {length} steps along {name}, and {ours}"
    yield from _compare_attributes(mine, theirs)
    if not dims & set(mine.dimension_names) and mine.shape == theirs.shape:
        yield from _compare_values(mine, theirs)


def _compare_attributes(mine: AnyArray, theirs: AnyArray) -> Iterator[tuple[str, str]]:
    loaded = isinstance(mine, LoadedArray) and isinstance(theirs, LoadedArray)
    both_times = (
        loaded
        and bool(parse_time_units(mine.attributes))
        and bool(parse_time_units(theirs.attributes))
    )
    for name in sorted(SEMANTIC_ATTRIBUTES):
        ours, found = mine.attributes.get(name), theirs.attributes.get(name)
        if both_times and name in {"units", "calendar"}:
            continue  # reconciled where the values are joined
        if not _same_number(ours, found):
            hint = ""
            if name == "units" and not loaded and parse_time_units(theirs.attributes) is not None:
                hint = " (named in loadable_variables of all files, it is converted)"
            yield "attribute", f"has the attribute {name} = {found!r}{hint}, and {ours!r}"


def _compare_values(mine: AnyArray, theirs: AnyArray) -> Iterator[tuple[str, str]]:
    if not (isinstance(mine, LoadedArray) and isinstance(theirs, LoadedArray)):
        return
    if not are_equal(mine.values, theirs.values):
        differs = mine.values != theirs.values
        count = int(differs.sum())
        if mine.values.ndim == 0:
            yield "values", f"is {theirs.values.item()!r}, and {mine.values.item()!r}"
            return
        place = tuple(int(one[0]) for one in differs.nonzero())
        yield (
            "values",
            (
                f"differs at {count} of {differs.size} places, first at {list(place)}: "
                f"{theirs.values[place].item()!r}, and {mine.values[place].item()!r}"
            ),
        )


def _both_numbers(mine: AnyArray, theirs: AnyArray) -> bool:
    """Whether both are loaded numbers: times of one file may be whole and of another not."""
    return (
        isinstance(mine, LoadedArray)
        and isinstance(theirs, LoadedArray)
        and mine.values.dtype.kind in "iuf"
        and theirs.values.dtype.kind in "iuf"
        and parse_time_units(mine.attributes) is not None
    )


def _same_number(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - NaN


def _list(array: AnyArray) -> str:
    return f"({', '.join(map(str, array.dimension_names))})"


def _codecs(array: AnyArray) -> str:
    shown = []
    for codec in array.metadata["codecs"]:
        settings = codec.get("configuration") or {}
        values = ", ".join(f"{key}={value}" for key, value in settings.items())
        shown.append(f"{codec['name']}({values})" if values else codec["name"])
    return " + ".join(shown)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "several shapes" if shape is None else " x ".join(map(str, shape))
