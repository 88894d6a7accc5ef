"""Which parsed files fit together, and what is wrong with each of the others. Pure, no I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.pipeline.report import Failure
from icefloe.virtual.agreement import Disagreement
from icefloe.virtual.combining import find_disagreements, reconcile_values
from icefloe.virtual.dataset import LoadedArray, find_coordinate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from icefloe.pipeline.files.staged_refs import ParsedFile
    from icefloe.virtual.dataset import VirtualDataset

_MAX_KINDS: Final = 16
"""Files that agree with none of so many others are odd, whatever they have in common."""


def find_append_mismatches(
    files: Sequence[ParsedFile],
    dims: frozenset[str],
    misfits: Callable[[VirtualDataset], Iterable[Disagreement]],
) -> Iterator[Disagreement]:
    """Find the files that do not fit what is there already, and in what.

    Before they are compared with each other: the most may be wrong. One of each kind is looked at.
    """
    for kind in _kinds(files, dims):
        for one in misfits(kind[0].dataset):
            yield from (replace(one, file=file.url) for file in kind)


def find_outliers(files: Sequence[ParsedFile], dims: frozenset[str]) -> list[Disagreement]:
    """Find the files that do not agree with the most others, and in what.

    Comparing all with the first would call all others odd where the first one is.
    """
    kinds = _kinds(files, dims)
    if len(kinds) == 1:
        return []
    usual = max(kinds, key=len)[0].dataset  # of two as large the one that was named first
    return [one for file in files for one in find_disagreements(usual, file.dataset, dims)]


def find_unsorted(files: Sequence[ParsedFile], dims: Sequence[str]) -> Iterator[Disagreement]:
    """Find files that have no steps along a dimension, or have them in no order."""
    paths = [find_coordinate(files[0].dataset, "", dim) for dim in dims]
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
                text = "is not sorted, or repeats itself, within the file"
                yield Disagreement(file.url, path, "order", text)


def find_overlaps(files: Sequence[ParsedFile], dim: str) -> Iterator[Disagreement]:
    """Find as few files as possible without which no two overlap along a dimension.

    Who takes, of files that can still be taken, the one that ends first, takes the most.
    """
    datasets = [file.dataset for file in files]
    path = find_coordinate(datasets[0], "", dim)
    values = None if path is None else reconcile_values(datasets, path)
    if path is None or values is None:
        return
    if not all(one.dtype.kind in "iuf" and len(one) for one in values):
        return
    spans = [(one.max().item(), one.min().item(), number) for number, one in enumerate(values)]
    last: tuple[Any, Any, int] | None = None
    for span in sorted(spans):
        high, low, number = span
        if last is not None and low <= last[0]:
            text = f"goes from {low} to {high}, and overlaps {last[1]} to {last[0]} of "
            yield Disagreement(files[number].url, path, "overlap", f"{text}{files[last[2]].url}")
        else:
            last = span


def find_last_file(files: Sequence[ParsedFile], dim: str) -> int:
    """Tell which file comes last along a dimension: by coordinates, or else of the list."""
    datasets = [file.dataset for file in files]
    path = find_coordinate(datasets[0], "", dim)
    if path is None or not all(path in one.arrays for one in datasets):
        return len(files) - 1
    values = reconcile_values(datasets, path)
    if values is None or not all(len(one) and one.dtype.kind in "iuf" for one in values):
        return len(files) - 1
    falls = any(len(one) > 1 and one[1] < one[0] for one in values)
    starts = [one[0] for one in values]
    return int(np.argmin(starts) if falls else np.argmax(starts))


def sort_descending(files: Sequence[ParsedFile], dim: str) -> list[ParsedFile] | None:
    """Sort files of one step each by their coordinate; None if they are not such files."""
    datasets = [file.dataset for file in files]
    path = find_coordinate(datasets[0], "", dim)
    values = None if path is None else reconcile_values(datasets, path)
    if values is None or not all(len(one) == 1 for one in values):
        return None
    return [files[row] for row in np.argsort([one[0] for one in values])[::-1].tolist()]


def exclude_files(
    files: list[ParsedFile], problems: Iterable[Disagreement], left_out: list[Failure]
) -> tuple[list[ParsedFile], list[Failure]]:
    """Leave out files that there are problems with; all that is wrong with one is told."""
    told: dict[str, list[str]] = {}
    for one in problems:
        text = f"{one.variable}: {one.text}" if one.variable else one.text
        if one.aspect in {"chunks", "codecs"}:
            text += " (ingest copies such files, where references cannot stand for them)"
        told.setdefault(one.file, []).append(text)
    failures = [Failure(file, "; ".join(texts)) for file, texts in told.items()]
    return [one for one in files if one.url not in told], [*left_out, *failures]


def _kinds(files: Sequence[ParsedFile], dims: frozenset[str]) -> list[list[ParsedFile]]:
    """Put files together that agree with each other."""
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
