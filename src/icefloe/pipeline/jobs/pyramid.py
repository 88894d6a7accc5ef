"""Arrays at several resolutions, for those who look at them from afar.

Below the target group there is a group (``plain``) or an array (``ome``) for each level; level 0
shares the chunks of the original, and each other level is made from the one before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.arrays.boxes import boxes, format_box, plan_copy
from icefloe.pipeline.arrays.coarsen import METHODS, coarse_dtype, coarse_shape, coarsen
from icefloe.pipeline.arrays.nodes import (
    arrays_below,
    create_array,
    create_group,
    path_of,
    require_free,
    share_array,
)
from icefloe.pipeline.options import merge_options
from icefloe.pipeline.report import format_bytes
from icefloe.pipeline.run import JobRun, WorkUnit
from icefloe.session import contents
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.pipeline.arrays.array_document import ArrayDocument, Shape
    from icefloe.pipeline.arrays.boxes import Box
    from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions
    from icefloe.pipeline.report import Plan, Report
    from icefloe.pipeline.run import TaskWriter
    from icefloe.repository import Repository

_LAYOUTS: Final = ("plain", "ome")
_MAX_LEVELS: Final = 32
_COPIES: Final = 4
"""Of a block as it is read: cut into windows, masked, and filled."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What a pyramid is to be.

    Parameters
    ----------
    folder
        The path of its group.
    windows
        How many items become one, by dimension.
    count
        How many levels there are besides the original.
    method, layout
        As the caller gave them.
    """

    folder: str
    windows: Mapping[str, int]
    count: int
    method: str
    layout: str

    def place(self, level: int, source: ArrayDocument) -> str:
        """Return the path of an array at a level."""
        own = f"{self.folder}/{level}"
        return own if self.layout == "ome" else f"{own}/{path_of(source.path).name}"


@dataclass(frozen=True, slots=True)
class _Level:
    """One array at one level, made from the one before it.

    Parameters
    ----------
    source, target
        The array before, and this one.
    factors
        The window along each dimension.
    missing
        What stands for missing items.
    """

    source: ArrayDocument
    target: ArrayDocument
    factors: Shape
    missing: Any

    @property
    def item_bytes(self) -> int:
        """How much memory it takes to make one item: its window, several times over."""
        return self.source.item_bytes * prod(self.factors) * _COPIES + self.target.item_bytes

    def box(self, run: JobRun) -> Shape:
        """Choose how much of the target is made at a time."""
        item = self.item_bytes
        unit = self.target.write_unit
        # Where the chunks before are whole in a block, each is decoded once.
        read = coarse_shape(self.source.chunks, self.factors)
        if prod(map(min, read, self.target.shape)) * item > run.task_bytes:
            read = unit
        try:
            plan = plan_copy(
                self.target.shape,
                item,
                read,
                unit,
                max_bytes=run.task_bytes,
                min_boxes=run.min_boxes(self.source.nbytes),
            )
        except InvalidInputError as error:
            raise InvalidInputError(
                f"{self.target.path}: {error.message} (task_bytes)", kind=error.kind
            ) from error
        return plan.write

    def units(self, run: JobRun) -> list[WorkUnit]:
        """Cut the work."""
        if not self.target.nbytes:
            return []
        return [
            WorkUnit(
                format_box(self.target.path, box),
                prod(part.stop - part.start for part in box) * self.item_bytes,
                (self, box),
            )
            for box in boxes(self.target.shape, self.box(run))
        ]


def pyramid(
    spark: SparkSession | None,
    repository: Repository,
    source: str,
    target: str,
    *,
    factors: int | Mapping[str, int] = 2,
    dims: Sequence[str] | None = None,
    levels: int | None = None,
    method: str = "mean",
    layout: str = "plain",
    run_options: RunOptions | None = None,
    commit_options: CommitOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> Plan | Report:
    """Make an array, or the arrays of a group, at lower and lower resolutions; commit them once.

    Parameters
    ----------
    spark, repository
        Who works, and on what.
    source
        An array, or a group whose arrays all become part of the pyramid.
    target
        The new group. In it are levels ``0`` (the original: its chunks are shared, not copied),
        ``1`` and so on, and the attribute ``multiscales`` that says what they are.
    factors
        How many items along a dimension become one at the next level, for all or by dimension.
    dims
        Which dimensions become shorter; those that ``factors`` names or, if it is one number, the
        last two.
    levels
        How many besides the original; as many as it takes for one chunk to hold a whole array
        along these dimensions, if not given.
    method
        ``mean``, ``sum``, ``min``, ``max``, ``mode`` or ``nearest``; coordinates get the mean, or
        the nearest. Missing items do not count.
    layout
        ``plain``: each level is a group with arrays and their coordinates, as xarray opens them.
        ``ome``: each level of one array is an array, as OME-NGFF 0.5 has them.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Raises
    ------
    InvalidInputError, NodeNotFoundError, AlreadyExistsError
        If the arguments do not fit the repository. Nothing was written.
    JobFailedError
        If blocks failed. Nothing was committed.
    """
    options = merge_options(run_options, commit_options, keywords)
    run = JobRun.start("pyramid", spark, repository, options)
    if (earlier := run.find_earlier()) is not None:
        return earlier
    for what, value, known in (("method", method, METHODS), ("layout", layout, _LAYOUTS)):
        if value not in known:
            raise _bad(f"the {what} {value!r} is none of {', '.join(known)}")
    folder = require_free(run.session, target).value
    data, coordinates = _sources(run, source, layout)
    windows = _windows(data, factors, dims)
    recipe = _Recipe(folder, windows, _level_count(data, windows, levels), method, layout)
    made = [_levels(recipe, one) for one in data]
    steps = [step for chain in made for step in chain]
    # Cut before anything is written: a chunk that is too large for a task shows here.
    units = [
        [unit for chain in made if chain for unit in chain[number].units(run)]
        for number in range(recipe.count)
    ]
    if run.dry_run:
        return run.plan(
            [f"{folder}/0 shares the chunks of {', '.join(one.path for one in data)}"]
            + [
                f"{step.target.path} is made of {step.source.path}: "
                f"{'x'.join(map(str, step.target.shape))}, {format_bytes(step.target.nbytes)}"
                for step in steps
            ],
            sum(len(run.group_units(found)) for found in units),
            bytes_read=sum(step.source.nbytes for step in steps),
            bytes_written=sum(step.target.nbytes for step in steps),
            task_bytes=max((one.size_bytes for found in units for one in found), default=0),
        )
    _create(run, recipe, data, made)
    if layout == "plain":
        _create_coordinates(run, recipe, coordinates)
    _describe(run, recipe, data)
    for level in units:
        _make(run, level, method)
    return run.commit(
        f"pyramid of {source} in {folder}",
        about={"source": path_of(source).value, "target": folder, "levels": recipe.count},
    )


def _make(run: JobRun, units: Sequence[WorkUnit], method: str) -> None:
    """Make one level from the one before it, which forks of the session see by now."""

    def work(writer: TaskWriter, value: tuple[_Level, Box]) -> None:
        step, box = value
        whole = tuple(
            slice(part.start * factor, min(part.stop * factor, size))
            for part, factor, size in zip(box, step.factors, step.source.shape, strict=True)
        )
        values = np.asarray(writer.open_target(step.source.path)[whole])
        found = coarsen(values, step.factors, method, missing=step.missing)
        writer.open_target(step.target.path)[box] = found

    run.write_units(run.session, units, work)


def _sources(
    run: JobRun, source: str, layout: str
) -> tuple[list[ArrayDocument], list[ArrayDocument]]:
    """Return the arrays of the pyramid, and the coordinates of their dimensions."""
    node = contents.require_node(run.session, path_of(source))
    group = (node.path.parent or node.path) if node.is_array else node.path
    beside = [
        one for one in arrays_below(run.session, group.value) if path_of(one.path).parent == group
    ]
    data = [
        one
        for one in beside
        if (one.path == node.path.value if node.is_array else not one.is_coordinate)
    ]
    if not data:
        raise _bad(f"{source} has no arrays, besides coordinates, that a pyramid could be made of")
    if layout == "ome" and len(data) > 1:
        raise _bad(f"{source} has {len(data)} arrays, and the layout 'ome' is for one: name it")
    used = {name for one in data for name in one.dimension_names}
    labels = [one for one in beside if one.is_coordinate and one.dimension_names[0] in used]
    return data, [one for one in labels if one not in data]


def _windows(
    data: Sequence[ArrayDocument], factors: int | Mapping[str, int], dims: Sequence[str] | None
) -> dict[str, int]:
    known = {name for one in data for name in _dims(one)}
    if isinstance(factors, Mapping):
        windows = {name: factors[name] for name in (factors if dims is None else dims)}
    else:
        last = max(data, key=lambda one: len(one.shape))
        windows = dict.fromkeys(_dims(last)[-2:] if dims is None else dims, factors)
    for name, factor in windows.items():
        if name not in known:
            raise _bad(
                f"the dimension {name!r} is none of {', '.join(sorted(known)) or 'none at all'}"
            )
        if type(factor) is not int or factor < 1:
            raise _bad(f"the factor of {name!r} must be a positive whole number, not {factor!r}")
    if all(factor == 1 for factor in windows.values()):
        raise _bad("no dimension becomes shorter: give factors of 2 or more")
    return windows


def _level_count(
    data: Sequence[ArrayDocument], windows: Mapping[str, int], levels: int | None
) -> int:
    if levels is not None:
        if isinstance(levels, bool) or not 1 <= levels <= _MAX_LEVELS:
            raise _bad(f"levels must lie between 1 and {_MAX_LEVELS}, not {levels!r}")
        return levels
    count = 1
    for one in data:
        sizes = list(one.shape)
        for number in range(1, _MAX_LEVELS):
            over = [
                size > chunk and windows.get(name, 1) > 1
                for size, chunk, name in zip(sizes, one.chunks, _dims(one), strict=True)
            ]
            if not any(over):
                break
            sizes = list(coarse_shape(sizes, [windows.get(name, 1) for name in _dims(one)]))
            count = max(count, number)
    return count


def _levels(recipe: _Recipe, source: ArrayDocument) -> list[_Level]:
    """Work out all levels of one array, level 0 being what the first is made from.

    There are none to be made of an array that does not become shorter: a grid mapping, or a table.
    """
    factors = tuple(recipe.windows.get(name, 1) for name in _dims(source))
    if all(factor == 1 for factor in factors):
        return []
    missing = _missing(source)
    try:
        dtype = coarse_dtype(source.dtype, recipe.method)
    except InvalidInputError as error:
        raise _bad(f"{source.path}: {error.message}") from error
    chain = []
    before = source.at(recipe.place(0, source))
    for number in range(1, recipe.count + 1):
        after = before.with_shape(coarse_shape(before.shape, factors))
        if after.dtype != dtype:
            after = _summed(after, dtype)
        after = after.at(recipe.place(number, source))
        chain.append(_Level(before, after, factors, missing))
        before = after
    return chain


def _summed(document: ArrayDocument, dtype: np.dtype[Any]) -> ArrayDocument:
    if document.dtype.kind == "b":
        # Truth values have no kind that sums are of: take a number first.
        changed = {**document.document, "data_type": "uint8", "fill_value": 0}
        document = replace(document, document=changed)
        return document.with_dtype("u8").with_dtype(dtype)
    return document.with_dtype(dtype)


def _missing(source: ArrayDocument) -> Any:
    """Return what CF says stands for missing items, None if it says nothing."""
    attributes = source.document.get("attributes") or {}
    dtype = source.dtype
    found = attributes.get("_FillValue", attributes.get("missing_value"))
    if found is None or dtype.kind not in "iuf":
        return None
    try:
        return np.dtype(dtype).type(found)
    except (TypeError, ValueError, OverflowError):
        return None  # xarray writes floating point ones encoded, and NaN is missing anyway


def _create_coordinates(run: JobRun, recipe: _Recipe, coordinates: Sequence[ArrayDocument]) -> None:
    """Make the coordinates of all levels, which are small, here."""
    for source in coordinates:
        share_array(run.session, source, recipe.place(0, source))
        factor = recipe.windows.get(str(source.dimension_names[0]), 1)
        stored = open_array(run.session.store, source.path)
        values = np.asarray(stored[...])
        for number in range(1, recipe.count + 1):
            values = _coarse_labels(values, factor, recipe.method)
            document = source.with_shape(values.shape).at(recipe.place(number, source))
            if values.dtype != document.dtype:
                document = document.with_dtype(values.dtype)
            create_array(run.session, document)
            array = open_array(run.session.store, document.path, mode="r+")
            array[...] = values


def _coarse_labels(values: NDArray[Any], factor: int, method: str) -> NDArray[Any]:
    if factor == 1:
        return values
    if method == "nearest" or values.dtype.kind not in "iufmM":
        return values[::factor]
    if values.dtype.kind in "iu":
        # Between two whole numbers there may be none.
        found = coarsen(values.astype("f8"), [factor], "mean")
        return found.astype(values.dtype) if np.array_equal(found, np.rint(found)) else found
    return coarsen(values, [factor], "mean")


def _create(
    run: JobRun,
    recipe: _Recipe,
    data: Sequence[ArrayDocument],
    made: Sequence[Sequence[_Level]],
) -> None:
    for source, chain in zip(data, made, strict=True):
        for number in range(1 if chain else recipe.count + 1):
            share_array(run.session, source, recipe.place(number, source))
        for step in chain:
            create_array(run.session, step.target)


def _describe(run: JobRun, recipe: _Recipe, data: Sequence[ArrayDocument]) -> None:
    """Say in the attributes of the group what its levels are."""
    largest = max(data, key=lambda one: len(one.shape))
    names = _dims(largest)
    datasets = []
    for number in range(recipe.count + 1):
        scale = [float(recipe.windows.get(name, 1) ** number) for name in names]
        # An item stands for a window, and lies in the middle of it, or where its first one does.
        shift = [0.0 if recipe.method == "nearest" else (one - 1) / 2 for one in scale]
        transformations: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
        if any(shift):
            transformations.append({"type": "translation", "translation": shift})
        datasets.append({"path": str(number), "coordinateTransformations": transformations})
    axes = [{"name": name, **_axis_type(name)} for name in names]
    multiscale = {
        "name": path_of(recipe.folder).name,
        "type": recipe.method,
        "axes": axes,
        "datasets": datasets,
    }
    if recipe.layout == "ome":
        attributes: dict[str, Any] = {"ome": {"version": "0.5", "multiscales": [multiscale]}}
    else:
        attributes = {"multiscales": [multiscale]}
    document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    create_group(run.session, recipe.folder)
    contents.set_metadata(run.session, path_of(recipe.folder), json.dumps(document).encode())


def _axis_type(name: str) -> dict[str, str]:
    known = {"t": "time", "time": "time", "c": "channel", "channel": "channel"}
    space = {"x", "y", "z", "lat", "lon", "latitude", "longitude"}
    kind = "space" if name in space else known.get(name)
    return {} if kind is None else {"type": kind}


def _dims(document: ArrayDocument) -> tuple[str, ...]:
    return tuple(
        f"dim_{axis}" if name is None else name
        for axis, name in enumerate(document.dimension_names)
    )


def _bad(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, kind=ErrorKind.INVALID_ARRAY_METADATA)
