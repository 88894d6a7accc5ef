"""Checks that parsed files fit together, and reports the problems of each file. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.pipeline.report import Failure
from icefloe.virtual.agreement import Disagreement
from icefloe.virtual.arrays import LoadedArray, find_coordinate
from icefloe.virtual.combining import find_disagreements
from icefloe.virtual.file_order import reconcile_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.pipeline.files.staged_refs import ParsedFile
    from icefloe.virtual.dataset import VirtualDataset

_MAX_KINDS: Final = 16
"""Maximum number of kinds; files that match none of them are outliers."""


def find_append_mismatches(
    files: Sequence[ParsedFile],
    dims: frozenset[str],
    find_mismatches: Callable[[VirtualDataset], Iterable[Disagreement]],
) -> Iterator[Disagreement]:
    """Find files that do not match the group that they are appended to.

    Runs before files are compared with each other, because most files may mismatch. Only one file
    of each kind is checked.
    """
    for kind in _group_by_kind(files, dims):
        for mismatch in find_mismatches(kind[0].dataset):
            yield from (replace(mismatch, file=file.url) for file in kind)


def find_outliers(files: Sequence[ParsedFile], dims: frozenset[str]) -> list[Disagreement]:
    """Find files that disagree with the largest set of files that agree.

    A comparison with the first file would report all others if the first file is the outlier.
    """
    kinds = _group_by_kind(files, dims)
    if len(kinds) == 1:
        return []
    common = max(kinds, key=len)[0].dataset  # the first of equally large kinds
    return [problem for file in files for problem in find_disagreements(common, file.dataset, dims)]


def find_unsorted(files: Sequence[ParsedFile], dims: Sequence[str]) -> Iterator[Disagreement]:
    """Find files that are empty or not sorted along a dimension."""
    paths = [find_coordinate(files[0].dataset.arrays, "", dim) for dim in dims]
    for file in files:
        for path in paths:
            array = None if path is None else file.dataset.arrays[path]
            if path is None or not isinstance(array, LoadedArray):
                continue
            before, after = array.values[:-1], array.values[1:]
            if not array.values.size:
                yield Disagreement(file.url, path, "length", "has no steps")
            elif array.values.dtype.kind in "iuf" and not (
                (before < after).all() or (before > after).all()
            ):
                text = "is not strictly increasing or decreasing within the file"
                yield Disagreement(file.url, path, "order", text)


def find_overlaps(files: Sequence[ParsedFile], dim: str) -> Iterator[Disagreement]:
    """Find the fewest files to exclude so that no two overlap along a dimension.

    Greedy interval scheduling: always keep the file that ends first.
    """
    path, values = _read_coordinate(files, dim)
    if path is None or values is None:
        return
    if not all(steps.dtype.kind in "iuf" and len(steps) for steps in values):
        return
    spans = [
        (steps.max().item(), steps.min().item(), number) for number, steps in enumerate(values)
    ]
    last: tuple[Any, Any, int] | None = None
    for span in sorted(spans):
        high, low, number = span
        if last is not None and low <= last[0]:
            text = f"ranges from {low} to {high}, and overlaps {last[1]} to {last[0]} of "
            yield Disagreement(files[number].url, path, "overlap", f"{text}{files[last[2]].url}")
        else:
            last = span


def find_last_file(files: Sequence[ParsedFile], dim: str) -> int:
    """Return the index of the last file along a dimension, by coordinates if files have them."""
    _, values = _read_coordinate(files, dim)
    if values is None or not all(len(steps) and steps.dtype.kind in "iuf" for steps in values):
        return len(files) - 1
    is_descending = any(len(steps) > 1 and steps[1] < steps[0] for steps in values)
    starts = [steps[0] for steps in values]
    return int(np.argmin(starts) if is_descending else np.argmax(starts))


def sort_descending(files: Sequence[ParsedFile], dim: str) -> list[ParsedFile] | None:
    """Sort files of one step each by descending coordinate; None if a file has more steps."""
    _, values = _read_coordinate(files, dim)
    if values is None or not all(len(steps) == 1 for steps in values):
        return None
    return [files[row] for row in np.argsort([steps[0] for steps in values])[::-1].tolist()]


def _read_coordinate(
    files: Sequence[ParsedFile], dim: str
) -> tuple[str | None, list[NDArray[Any]] | None]:
    """Return the path of a coordinate and its values in each file, None if a file lacks it."""
    datasets = [file.dataset for file in files]
    path = find_coordinate(datasets[0].arrays, "", dim)
    if path is None or not all(path in dataset.arrays for dataset in datasets):
        return path, None
    return path, reconcile_values(datasets, path)


def exclude_files(
    files: list[ParsedFile], problems: Iterable[Disagreement], left_out: list[Failure]
) -> tuple[list[ParsedFile], list[Failure]]:
    """Exclude files with problems; a failure lists all problems of a file."""
    texts: dict[str, list[str]] = {}
    for problem in problems:
        text = f"{problem.variable}: {problem.text}" if problem.variable else problem.text
        if problem.aspect in {"chunks", "codecs"}:
            text += " (ingest can copy these files)"
        texts.setdefault(problem.file, []).append(text)
    failures = [Failure(file, "; ".join(reasons)) for file, reasons in texts.items()]
    return [file for file in files if file.url not in texts], [*left_out, *failures]


def _group_by_kind(files: Sequence[ParsedFile], dims: frozenset[str]) -> list[list[ParsedFile]]:
    """Group files that agree with each other."""
    kinds: list[list[ParsedFile]] = []
    for file in files:
        for kind in kinds:
            if not find_disagreements(kind[0].dataset, file.dataset, dims):
                kind.append(file)
                break
        else:
            if len(kinds) < _MAX_KINDS:
                kinds.append([file])
    return kinds
