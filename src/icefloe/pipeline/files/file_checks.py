"""Checks that parsed files fit together, and reports the problems of each file. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.pipeline.report import Failure
from icefloe.virtual.agreement import Disagreement
from icefloe.virtual.arrays import LoadedArray, find_coordinate
from icefloe.virtual.cf_time import format_coordinate
from icefloe.virtual.combining import find_disagreements
from icefloe.virtual.file_order import reconcile_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.pipeline.files.staged_refs import ParsedFile
    from icefloe.virtual.dataset import VirtualDataset

_MAX_KINDS: Final = 16
"""Maximum number of kinds (groups of files that agree); further kinds are not grouped."""


def find_append_mismatches(
    files: Sequence[ParsedFile],
    dims: frozenset[str],
    find_mismatches: Callable[[VirtualDataset], Iterable[Disagreement]],
) -> Iterator[Disagreement]:
    """Find files that do not match the group that they are appended to.

    ``find_mismatches`` compares a dataset with the group. Of each kind, one file is compared.
    Must run before `find_outliers`, which would report the matching files if most do not match.
    """
    kinds, others = _group_by_kind(files, dims)
    for kind in [*kinds, *([file] for file in others)]:
        for mismatch in find_mismatches(kind[0].dataset):
            yield from (replace(mismatch, file=file.url) for file in kind)


def find_outliers(files: Sequence[ParsedFile], dims: frozenset[str]) -> list[Disagreement]:
    """Find files that disagree with the largest set of files that agree.

    A comparison with the first file would report all others if the first file is the outlier.
    """
    kinds, _ = _group_by_kind(files, dims)
    if len(kinds) == 1:
        return []
    expected = max(kinds, key=len)[0].dataset  # of the first kind, if several are equally large
    return [
        problem for file in files for problem in find_disagreements(expected, file.dataset, dims)
    ]


def find_unsorted(files: Sequence[ParsedFile], dims: Sequence[str]) -> Iterator[Disagreement]:
    """Find files whose loaded coordinates are empty or, if numeric, not strictly sorted."""
    paths = [find_coordinate(files[0].dataset.arrays, "", dim) for dim in dims]
    for file in files:
        for path in filter(None, paths):
            array = file.dataset.arrays[path]
            if not isinstance(array, LoadedArray):
                continue
            values = array.values
            if not values.size:
                yield Disagreement(file.url, path, "length", "has no steps")
            elif _has_numbers(values) and not (
                (values[:-1] < values[1:]).all() or (values[:-1] > values[1:]).all()
            ):
                text = "is not strictly increasing or decreasing within the file"
                yield Disagreement(file.url, path, "order", text)


def find_overlaps(files: Sequence[ParsedFile], dim: str) -> Iterator[Disagreement]:
    """Find the fewest files to exclude so that no two of the others overlap along a dimension.

    Greedy interval scheduling: always keep the file that ends first. Only for numeric coordinates.
    """
    path, coordinates = _get_coordinates(files, dim)
    if path is None or coordinates is None or not all(map(_has_numbers, coordinates)):
        return
    spans = [(values.min().item(), values.max().item()) for values in coordinates]
    last_index: int | None = None  # of the last file that is kept
    for index in sorted(range(len(files)), key=lambda index: spans[index][::-1]):
        if last_index is not None and spans[index][0] <= spans[last_index][1]:
            other = f"{_format_span(files[last_index], path)} of {files[last_index].url}"
            text = f"ranges from {_format_span(files[index], path)}, and overlaps {other}"
            yield Disagreement(files[index].url, path, "overlap", text)
        else:
            last_index = index


def _format_span(file: ParsedFile, path: str) -> str:
    array = file.dataset.arrays[path]
    assert isinstance(array, LoadedArray)  # noqa: S101 - narrows the type: its values were compared
    ends = (array.values.min(), array.values.max())
    return " to ".join(format_coordinate(end, array.attributes) for end in ends)


def find_last_file(files: Sequence[ParsedFile], dim: str) -> int:
    """Return the index of the last file: by coordinates if numeric, else in the given order."""
    _, coordinates = _get_coordinates(files, dim)
    if coordinates is None or not all(map(_has_numbers, coordinates)):
        return len(files) - 1
    is_descending = any(len(values) > 1 and values[1] < values[0] for values in coordinates)
    starts = [values[0] for values in coordinates]
    return int(np.argmin(starts) if is_descending else np.argmax(starts))


def sort_descending(files: Sequence[ParsedFile], dim: str) -> list[ParsedFile] | None:
    """Sort files by descending coordinate; None unless each has a coordinate of one step."""
    _, coordinates = _get_coordinates(files, dim)
    if coordinates is None or not all(len(values) == 1 for values in coordinates):
        return None
    order = np.argsort([values[0] for values in coordinates])[::-1]
    return [files[index] for index in order.tolist()]


def exclude_files(
    files: list[ParsedFile], problems: Iterable[Disagreement], left_out: list[Failure]
) -> tuple[list[ParsedFile], list[Failure]]:
    """Return the files without problems, and ``left_out`` plus a failure per excluded file."""
    reasons: dict[str, list[str]] = {}
    for problem in problems:
        reason = f"{problem.variable}: {problem.text}" if problem.variable else problem.text
        if problem.aspect in {"chunks", "codecs"}:
            reason += " (the job ingest can copy such files)"
        reasons.setdefault(problem.file, []).append(reason)
    failures = [Failure(url, "; ".join(file_reasons)) for url, file_reasons in reasons.items()]
    return [file for file in files if file.url not in reasons], [*left_out, *failures]


def _group_by_kind(
    files: Sequence[ParsedFile], dims: frozenset[str]
) -> tuple[list[list[ParsedFile]], list[ParsedFile]]:
    """Group files that agree; return at most `_MAX_KINDS` groups, and the files of no group."""
    kinds: list[list[ParsedFile]] = []
    others: list[ParsedFile] = []
    for file in files:
        for kind in kinds:
            if not find_disagreements(kind[0].dataset, file.dataset, dims):
                kind.append(file)
                break
        else:
            if len(kinds) < _MAX_KINDS:
                kinds.append([file])
            else:
                others.append(file)
    return kinds, others


def _get_coordinates(
    files: Sequence[ParsedFile], dim: str
) -> tuple[str | None, list[NDArray[Any]] | None]:
    """Return the path of a coordinate, if any, and its values in each file, in common units.

    The values are None if a file lacks them or has not loaded them, or units are not convertible.
    """
    datasets = [file.dataset for file in files]
    path = find_coordinate(datasets[0].arrays, "", dim)
    if path is None or not all(path in dataset.arrays for dataset in datasets):
        return path, None
    return path, reconcile_values(datasets, path)


def _has_numbers(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "iuf" and len(values) > 0
