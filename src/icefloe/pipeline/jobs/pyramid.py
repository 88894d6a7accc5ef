"""The pyramid job: downsamples arrays to multiscale levels.

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
from icefloe.pipeline.argument_errors import array_error
from icefloe.pipeline.arrays import nodes
from icefloe.pipeline.arrays.array_copy import plan_boxes
from icefloe.pipeline.arrays.boxes import Box, format_box, format_shape, iter_boxes
from icefloe.pipeline.arrays.coarsen import METHODS, coarsen, coarsen_dtype, coarsen_shape
from icefloe.pipeline.arrays.nodes import parse_path, read_arrays
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options
from icefloe.pipeline.report import Plan, Report, format_bytes
from icefloe.pipeline.run import JobRun, TaskWriter, WorkUnit, writing_repository
from icefloe.session import contents
from icefloe.spark.option_parsing import suggest_name
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.pipeline.arrays.array_document import ArrayDocument, Shape
    from icefloe.pipeline.opening import RepositoryOrPlace

_LAYOUTS: Final = ("plain", "ome")
_MAX_LEVELS: Final = 32
_COPIES: Final = 4
"""Copies of a block in memory: windows, mask and filled values."""


@dataclass(frozen=True, slots=True)
class _Params:
    """The parameters of a pyramid: target group, factors by dimension, number of levels."""

    folder: str
    windows: Mapping[str, int]
    count: int
    method: str
    layout: str

    def format_path(self, level: int, source: ArrayDocument) -> str:
        """Return the path of an array at a level."""
        path = f"{self.folder}/{level}"
        return path if self.layout == "ome" else f"{path}/{parse_path(source.path).name}"


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

    def plan_box(self, run: JobRun) -> Shape:
        """Plan the box shape of a unit."""
        item = self.item_bytes
        unit = self.target.write_unit
        # If a box has whole source chunks, each is decoded once.
        read = coarsen_shape(self.source.chunks, self.factors)
        if prod(map(min, read, self.target.shape)) * item > run.task_bytes:
            read = unit
        path, shape, total = self.target.path, self.target.shape, self.source.nbytes
        return plan_boxes(run, path, shape, item, (read, unit), total_bytes=total).write_box

    def plan_units(self, run: JobRun) -> list[WorkUnit]:
        """Split the level into units."""
        if not self.target.nbytes:
            return []
        return [
            WorkUnit(
                format_box(self.target.path, box),
                prod(part.stop - part.start for part in box) * self.item_bytes,
                (self, box),
            )
            for box in iter_boxes(self.target.shape, self.plan_box(run))
        ]


def pyramid(
    spark: SparkSession | None,
    repository: RepositoryOrPlace,
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
        Spark session (None runs in-process) and repository, or its directory or URL.
    source
        An array, or a group, which selects all its arrays.
    target
        The new group, with levels ``0`` (shares the chunks of the original), ``1`` and so on, and
        the attribute ``multiscales``.
    factors
        Downsampling factors between levels, for all dimensions or by dimension.
    dims
        The dimensions to downsample; those in ``factors``, or the last two if it is a number.
    levels
        The number of levels besides the original; if None, until an array has one chunk along
        these dimensions.
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
    if (earlier := run.find_earlier_result()) is not None:
        return earlier
    for what, value, choices in (("method", method, METHODS), ("layout", layout, _LAYOUTS)):
        if value not in choices:
            raise array_error(f"{what} must be one of {', '.join(choices)}, not {value!r}")
    folder = nodes.require_free(run.session, target).value
    data, coordinates = _select_sources(run, source, layout)
    windows = _parse_factors(data, factors, dims)
    params = _Params(folder, windows, _count_levels(data, windows, levels), method, layout)
    chains = [_plan_levels(params, array) for array in data]
    steps = [step for chain in chains for step in chain]
    # Raises if a chunk exceeds the task memory, before anything is written.
    units = [
        [unit for chain in chains if chain for unit in chain[number].plan_units(run)]
        for number in range(params.count)
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
    _create_levels(run, params, data, chains)
    if layout == "plain":
        _create_coordinates(run, params, coordinates)
    _write_multiscales(run, params, data)
    for level in units:  # forks of the session contain the previous level
        run.write_units(run.session, level, partial(_write_box, method), phase="downsampling")
    return run.commit(
        f"pyramid of {source} in {folder}",
        about={"source": parse_path(source).value, "target": folder, "levels": params.count},
    )


def _write_box(method: str, writer: TaskWriter, value: tuple[_Level, Box]) -> None:
    step, box = value
    window = tuple(
        slice(part.start * factor, min(part.stop * factor, size))
        for part, factor, size in zip(box, step.factors, step.source.shape, strict=True)
    )
    values = np.asarray(writer.open_target(step.source.path)[window])
    result = coarsen(values, step.factors, method, missing=step.missing)
    with writing_repository():
        writer.open_target(step.target.path)[box] = result


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
        raise array_error(f"{source} has no arrays other than coordinates")
    if layout == "ome" and len(data) > 1:
        raise array_error(
            f"{source} has {len(data)} arrays, but the layout 'ome' supports one: pass its path"
        )
    names = {name for array in data for name in array.dimension_names}
    coordinates = [array for array in siblings if array.is_coordinate and array not in data]
    return data, [array for array in coordinates if array.dimension_names[0] in names]


def _parse_factors(
    data: Sequence[ArrayDocument], factors: int | Mapping[str, int], dims: Sequence[str] | None
) -> dict[str, int]:
    names = {name for array in data for name in array.dims}
    if isinstance(factors, Mapping):
        windows = {name: factors[name] for name in (factors if dims is None else dims)}
    else:
        largest = max(data, key=lambda array: len(array.shape))
        windows = dict.fromkeys(largest.dims[-2:] if dims is None else dims, factors)
    for name, factor in windows.items():
        if name not in names:
            raise array_error(f"unknown dimension {name!r}; {suggest_name(name, names)}")
        if type(factor) is not int or factor < 1:
            raise array_error(f"the factor of {name!r} must be a positive integer, not {factor!r}")
    if all(factor == 1 for factor in windows.values()):
        raise array_error("no dimension is downsampled: pass factors of 2 or more")
    return windows


def _count_levels(
    data: Sequence[ArrayDocument], windows: Mapping[str, int], levels: int | None
) -> int:
    if levels is not None:
        if isinstance(levels, bool) or not 1 <= levels <= _MAX_LEVELS:
            raise array_error(f"levels must be between 1 and {_MAX_LEVELS}, not {levels!r}")
        return levels
    count = 1
    for array in data:
        sizes = list(array.shape)
        for number in range(1, _MAX_LEVELS):
            is_larger = [
                size > chunk and windows.get(name, 1) > 1
                for size, chunk, name in zip(sizes, array.chunks, array.dims, strict=True)
            ]
            if not any(is_larger):
                break
            sizes = list(coarsen_shape(sizes, [windows.get(name, 1) for name in array.dims]))
            count = max(count, number)
    return count


def _plan_levels(params: _Params, source: ArrayDocument) -> list[_Level]:
    """Plan all levels of an array; empty if no dimension is downsampled, as for a grid mapping."""
    factors = tuple(params.windows.get(name, 1) for name in source.dims)
    if all(factor == 1 for factor in factors):
        return []
    missing = _read_missing(source)
    try:
        dtype = coarsen_dtype(source.dtype, params.method)
    except InvalidInputError as error:
        raise array_error(f"{source.path}: {error.message}") from error
    chain = []
    previous = source.with_path(params.format_path(0, source))
    for number in range(1, params.count + 1):
        level = previous.with_shape(coarsen_shape(previous.shape, factors))
        if level.dtype != dtype:
            level = _with_sum_dtype(level, dtype)
        level = level.with_path(params.format_path(number, source))
        chain.append(_Level(previous, level, factors, missing))
        previous = level
    return chain


def _with_sum_dtype(document: ArrayDocument, dtype: np.dtype[Any]) -> ArrayDocument:
    if document.dtype.kind == "b":
        # Booleans cannot be converted directly: convert through an unsigned integer.
        changed = {**document.document, "data_type": "uint8", "fill_value": 0}
        document = replace(document, document=changed)
        return document.with_dtype("u8").with_dtype(dtype)
    return document.with_dtype(dtype)


def _read_missing(source: ArrayDocument) -> Any:
    """Return the CF missing value, or None."""
    missing = source.attributes.get("_FillValue", source.attributes.get("missing_value"))
    if missing is None or source.dtype.kind not in "iuf":
        return None
    try:
        return source.dtype.type(missing)
    except (TypeError, ValueError, OverflowError):
        return None  # base64 of a float, from xarray; NaN is missing anyway


def _create_coordinates(run: JobRun, params: _Params, coordinates: Sequence[ArrayDocument]) -> None:
    """Create the coordinates of all levels in-process, because they are small."""
    for source in coordinates:
        nodes.share_array(run.session, source, params.format_path(0, source))
        factor = params.windows.get(str(source.dimension_names[0]), 1)
        stored = open_array(run.session.store, source.path)
        values = np.asarray(stored[...])
        for number in range(1, params.count + 1):
            values = _coarsen_labels(values, factor, params.method)
            document = source.with_shape(values.shape).with_path(params.format_path(number, source))
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
        means = coarsen(values.astype("f8"), [factor], "mean")
        return means.astype(values.dtype) if np.array_equal(means, np.rint(means)) else means
    return coarsen(values, [factor], "mean")


def _create_levels(
    run: JobRun, params: _Params, data: Sequence[ArrayDocument], chains: Sequence[Sequence[_Level]]
) -> None:
    for source, chain in zip(data, chains, strict=True):
        for number in range(1 if chain else params.count + 1):
            nodes.share_array(run.session, source, params.format_path(number, source))
        for step in chain:
            nodes.create_array(run.session, step.target)


def _write_multiscales(run: JobRun, params: _Params, data: Sequence[ArrayDocument]) -> None:
    """Describe the levels in the attributes of the group."""
    largest = max(data, key=lambda array: len(array.shape))
    names = largest.dims
    datasets = []
    for number in range(params.count + 1):
        scale = [float(params.windows.get(name, 1) ** number) for name in names]
        # An item is at the center of its window, or at the first item of the window.
        shift = [0.0 if params.method == "nearest" else (length - 1) / 2 for length in scale]
        transformations: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
        if any(shift):
            transformations.append({"type": "translation", "translation": shift})
        datasets.append({"path": str(number), "coordinateTransformations": transformations})
    multiscale = {
        "name": parse_path(params.folder).name,
        "type": params.method,
        "axes": [{"name": name, **_describe_axis(name)} for name in names],
        "datasets": datasets,
    }
    attributes: dict[str, Any] = {"multiscales": [multiscale]}
    if params.layout == "ome":
        attributes = {"ome": {"version": "0.5", **attributes}}
    document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    nodes.create_group(run.session, params.folder)
    contents.set_metadata(run.session, parse_path(params.folder), json.dumps(document).encode())


def _describe_axis(name: str) -> dict[str, str]:
    types = {"t": "time", "time": "time", "c": "channel", "channel": "channel"}
    space = {"x", "y", "z", "lat", "lon", "latitude", "longitude"}
    kind = "space" if name in space else types.get(name)
    return {} if kind is None else {"type": kind}
