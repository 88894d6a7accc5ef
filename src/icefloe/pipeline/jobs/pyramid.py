"""The pyramid job: multiscale levels of arrays.

The target group has a group (``plain``) or an array (``ome``) for each level. Level 0 shares the
chunks of the original; each further level is computed from the previous one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.pipeline.argument_errors import invalid_array
from icefloe.pipeline.arrays import nodes
from icefloe.pipeline.arrays.array_copy import plan_boxes
from icefloe.pipeline.arrays.boxes import Box, boxes, format_box, format_shape
from icefloe.pipeline.arrays.coarsen import METHODS, coarse_dtype, coarse_shape, coarsen
from icefloe.pipeline.arrays.nodes import parse_path, read_arrays
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options
from icefloe.pipeline.report import Plan, Report, format_bytes
from icefloe.pipeline.run import JobRun, TaskWriter, WorkUnit
from icefloe.session import contents
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.pipeline.arrays.array_document import ArrayDocument, Shape
    from icefloe.repository import Repository

_LAYOUTS: Final = ("plain", "ome")
_MAX_LEVELS: Final = 32
_COPIES: Final = 4
"""Copies of a block in memory: windows, mask and filled values."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """The parameters of a pyramid: its group, factors by dimension, and levels to compute."""

    folder: str
    windows: Mapping[str, int]
    count: int
    method: str
    layout: str

    def place(self, level: int, source: ArrayDocument) -> str:
        """Return the path of an array at a level."""
        own = f"{self.folder}/{level}"
        return own if self.layout == "ome" else f"{own}/{parse_path(source.path).name}"


@dataclass(frozen=True, slots=True)
class _Level:
    """One array at one level; ``source`` is the array at the previous level."""

    source: ArrayDocument
    target: ArrayDocument
    factors: Shape
    missing: Any

    @property
    def item_bytes(self) -> int:
        """The memory per target item: several copies of its window."""
        return self.source.item_bytes * prod(self.factors) * _COPIES + self.target.item_bytes

    def box(self, run: JobRun) -> Shape:
        """Return the box shape of a task."""
        item = self.item_bytes
        unit = self.target.write_unit
        # With whole source chunks in a box, each is decoded once.
        read = coarse_shape(self.source.chunks, self.factors)
        if prod(map(min, read, self.target.shape)) * item > run.task_bytes:
            read = unit
        path, shape, total = self.target.path, self.target.shape, self.source.nbytes
        return plan_boxes(run, path, shape, item, (read, unit), total_bytes=total).write

    def units(self, run: JobRun) -> list[WorkUnit]:
        """Split the level into units."""
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
    """Downsample an array, or the arrays of a group, to several levels; commit once.

    Parameters
    ----------
    spark, repository
        Spark session (None runs in-process) and repository.
    source
        An array, or a group whose arrays all become part of the pyramid.
    target
        The new group, with levels ``0`` (shares the chunks of the original), ``1`` and so on, and
        the attribute ``multiscales``.
    factors
        Downsampling factors between levels, for all dimensions or by dimension.
    dims
        The dimensions to downsample; those in ``factors``, or the last two if it is a number.
    levels
        The number of levels besides the original; until one chunk holds a whole array along these
        dimensions, if None.
    method
        ``mean``, ``sum``, ``min``, ``max``, ``mode`` or ``nearest``, ignoring missing items;
        coordinates use ``mean`` or ``nearest``.
    layout
        ``plain``: each level is a group with arrays and coordinates, for xarray. ``ome``: each
        level is an array, as in OME-NGFF 0.5.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Raises
    ------
    InvalidInputError, NodeNotFoundError, AlreadyExistsError
        If the arguments do not fit the repository. Nothing was written.
    JobFailedError
        If boxes failed. Nothing was committed.
    """
    options = merge_options(run_options, commit_options, keywords)
    run = JobRun.start("pyramid", spark, repository, options)
    if (earlier := run.find_earlier()) is not None:
        return earlier
    for what, value, known in (("method", method, METHODS), ("layout", layout, _LAYOUTS)):
        if value not in known:
            raise invalid_array(f"{what} must be one of {', '.join(known)}, not {value!r}")
    folder = nodes.require_free(run.session, target).value
    data, coordinates = _select_sources(run, source, layout)
    windows = _parse_factors(data, factors, dims)
    recipe = _Recipe(folder, windows, _count_levels(data, windows, levels), method, layout)
    chains = [_plan_levels(recipe, array) for array in data]
    steps = [step for chain in chains for step in chain]
    # Before anything is written: raises if a chunk exceeds the task memory.
    units = [
        [unit for chain in chains if chain for unit in chain[number].units(run)]
        for number in range(recipe.count)
    ]
    if run.dry_run:
        return run.plan(
            [f"{folder}/0 shares the chunks of {', '.join(array.path for array in data)}"]
            + [
                f"{step.target.path} is computed from {step.source.path}: "
                f"{format_shape(step.target.shape)}, {format_bytes(step.target.nbytes)}"
                for step in steps
            ],
            sum(len(run.group_units(level)) for level in units),
            bytes_read=sum(step.source.nbytes for step in steps),
            bytes_written=sum(step.target.nbytes for step in steps),
            task_bytes=max((unit.size_bytes for level in units for unit in level), default=0),
        )
    _create_levels(run, recipe, data, chains)
    if layout == "plain":
        _create_coordinates(run, recipe, coordinates)
    _write_multiscales(run, recipe, data)
    for level in units:  # forks of the session see the previous level
        run.write_units(run.session, level, partial(_write_box, method))
    return run.commit(
        f"pyramid of {source} in {folder}",
        about={"source": parse_path(source).value, "target": folder, "levels": recipe.count},
    )


def _write_box(method: str, writer: TaskWriter, value: tuple[_Level, Box]) -> None:
    step, box = value
    whole = tuple(
        slice(part.start * factor, min(part.stop * factor, size))
        for part, factor, size in zip(box, step.factors, step.source.shape, strict=True)
    )
    values = np.asarray(writer.open_target(step.source.path)[whole])
    found = coarsen(values, step.factors, method, missing=step.missing)
    writer.open_target(step.target.path)[box] = found


def _select_sources(
    run: JobRun, source: str, layout: str
) -> tuple[list[ArrayDocument], list[ArrayDocument]]:
    """Return the arrays of the pyramid, and the coordinates of their dimensions."""
    node = contents.require_node(run.session, parse_path(source))
    group = (node.path.parent or node.path) if node.is_array else node.path
    siblings = [
        array
        for array in read_arrays(run.session, group.value)
        if parse_path(array.path).parent == group
    ]
    data = [
        array
        for array in siblings
        if (array.path == node.path.value if node.is_array else not array.is_coordinate)
    ]
    if not data:
        raise invalid_array(f"{source} has no arrays other than coordinates")
    if layout == "ome" and len(data) > 1:
        raise invalid_array(
            f"{source} has {len(data)} arrays, but the layout 'ome' takes one: name it"
        )
    used = {name for array in data for name in array.dimension_names}
    labels = [array for array in siblings if array.is_coordinate and array not in data]
    return data, [array for array in labels if array.dimension_names[0] in used]


def _parse_factors(
    data: Sequence[ArrayDocument], factors: int | Mapping[str, int], dims: Sequence[str] | None
) -> dict[str, int]:
    known = {name for array in data for name in array.dims}
    if isinstance(factors, Mapping):
        windows = {name: factors[name] for name in (factors if dims is None else dims)}
    else:
        last = max(data, key=lambda array: len(array.shape))
        windows = dict.fromkeys(last.dims[-2:] if dims is None else dims, factors)
    for name, factor in windows.items():
        if name not in known:
            raise invalid_array(
                f"the dimension {name!r} is not one of {', '.join(sorted(known)) or '(none)'}"
            )
        if type(factor) is not int or factor < 1:
            raise invalid_array(
                f"the factor of {name!r} must be a positive integer, not {factor!r}"
            )
    if all(factor == 1 for factor in windows.values()):
        raise invalid_array("no dimension is downsampled: give factors of 2 or more")
    return windows


def _count_levels(
    data: Sequence[ArrayDocument], windows: Mapping[str, int], levels: int | None
) -> int:
    if levels is not None:
        if isinstance(levels, bool) or not 1 <= levels <= _MAX_LEVELS:
            raise invalid_array(f"levels must be between 1 and {_MAX_LEVELS}, not {levels!r}")
        return levels
    count = 1
    for array in data:
        sizes = list(array.shape)
        for number in range(1, _MAX_LEVELS):
            over = [
                size > chunk and windows.get(name, 1) > 1
                for size, chunk, name in zip(sizes, array.chunks, array.dims, strict=True)
            ]
            if not any(over):
                break
            sizes = list(coarse_shape(sizes, [windows.get(name, 1) for name in array.dims]))
            count = max(count, number)
    return count


def _plan_levels(recipe: _Recipe, source: ArrayDocument) -> list[_Level]:
    """Plan all levels of an array; empty if no dimension is downsampled, as for a grid mapping."""
    factors = tuple(recipe.windows.get(name, 1) for name in source.dims)
    if all(factor == 1 for factor in factors):
        return []
    missing = _read_missing(source)
    try:
        dtype = coarse_dtype(source.dtype, recipe.method)
    except InvalidInputError as error:
        raise invalid_array(f"{source.path}: {error.message}") from error
    chain = []
    before = source.at(recipe.place(0, source))
    for number in range(1, recipe.count + 1):
        after = before.with_shape(coarse_shape(before.shape, factors))
        if after.dtype != dtype:
            after = _with_sum_dtype(after, dtype)
        after = after.at(recipe.place(number, source))
        chain.append(_Level(before, after, factors, missing))
        before = after
    return chain


def _with_sum_dtype(document: ArrayDocument, dtype: np.dtype[Any]) -> ArrayDocument:
    if document.dtype.kind == "b":
        # Booleans do not convert to a sum type directly: go through an unsigned integer.
        changed = {**document.document, "data_type": "uint8", "fill_value": 0}
        document = replace(document, document=changed)
        return document.with_dtype("u8").with_dtype(dtype)
    return document.with_dtype(dtype)


def _read_missing(source: ArrayDocument) -> Any:
    """Return the missing value by CF, None without one."""
    found = source.attributes.get("_FillValue", source.attributes.get("missing_value"))
    if found is None or source.dtype.kind not in "iuf":
        return None
    try:
        return source.dtype.type(found)
    except (TypeError, ValueError, OverflowError):
        return None  # xarray encodes floats, for which NaN is missing anyway


def _create_coordinates(run: JobRun, recipe: _Recipe, coordinates: Sequence[ArrayDocument]) -> None:
    """Create the coordinates of all levels in this process: they are small."""
    for source in coordinates:
        nodes.share_array(run.session, source, recipe.place(0, source))
        factor = recipe.windows.get(str(source.dimension_names[0]), 1)
        stored = open_array(run.session.store, source.path)
        values = np.asarray(stored[...])
        for number in range(1, recipe.count + 1):
            values = _coarsen_labels(values, factor, recipe.method)
            document = source.with_shape(values.shape).at(recipe.place(number, source))
            if values.dtype != document.dtype:
                document = document.with_dtype(values.dtype)
            nodes.create_array(run.session, document)
            array = open_array(run.session.store, document.path, mode="r+")
            array[...] = values


def _coarsen_labels(values: NDArray[Any], factor: int, method: str) -> NDArray[Any]:
    if factor == 1:
        return values
    if method == "nearest" or values.dtype.kind not in "iufmM":
        return values[::factor]
    if values.dtype.kind in "iu":
        # The mean of integers may not be an integer.
        found = coarsen(values.astype("f8"), [factor], "mean")
        return found.astype(values.dtype) if np.array_equal(found, np.rint(found)) else found
    return coarsen(values, [factor], "mean")


def _create_levels(
    run: JobRun, recipe: _Recipe, data: Sequence[ArrayDocument], chains: Sequence[Sequence[_Level]]
) -> None:
    for source, chain in zip(data, chains, strict=True):
        for number in range(1 if chain else recipe.count + 1):
            nodes.share_array(run.session, source, recipe.place(number, source))
        for step in chain:
            nodes.create_array(run.session, step.target)


def _write_multiscales(run: JobRun, recipe: _Recipe, data: Sequence[ArrayDocument]) -> None:
    """Describe the levels in the attributes of the group."""
    largest = max(data, key=lambda array: len(array.shape))
    names = largest.dims
    datasets = []
    for number in range(recipe.count + 1):
        scale = [float(recipe.windows.get(name, 1) ** number) for name in names]
        # An item is at the center of its window, or at its first item.
        shift = [0.0 if recipe.method == "nearest" else (length - 1) / 2 for length in scale]
        transformations: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
        if any(shift):
            transformations.append({"type": "translation", "translation": shift})
        datasets.append({"path": str(number), "coordinateTransformations": transformations})
    multiscale = {
        "name": parse_path(recipe.folder).name,
        "type": recipe.method,
        "axes": [{"name": name, **_axis_type(name)} for name in names],
        "datasets": datasets,
    }
    attributes: dict[str, Any] = {"multiscales": [multiscale]}
    if recipe.layout == "ome":
        attributes = {"ome": {"version": "0.5", **attributes}}
    document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    nodes.create_group(run.session, recipe.folder)
    contents.set_metadata(run.session, parse_path(recipe.folder), json.dumps(document).encode())


def _axis_type(name: str) -> dict[str, str]:
    known = {"t": "time", "time": "time", "c": "channel", "channel": "channel"}
    space = {"x", "y", "z", "lat", "lon", "latitude", "longitude"}
    kind = "space" if name in space else known.get(name)
    return {} if kind is None else {"type": kind}
