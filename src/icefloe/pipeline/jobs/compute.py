"""The compute job: new arrays from a function of blocks of other arrays.

All arrays of a job lie in one *grid*: the dimensions of its inputs, by name. A block is a box of
the grid. The function gets each input's part of it, with axes in grid order and length 1 for
dimensions that the input lacks, so that NumPy broadcasting applies.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np
import zarr

from icefloe.errors import InvalidInputError
from icefloe.pipeline.argument_errors import invalid_array
from icefloe.pipeline.arrays.array_copy import plan_boxes
from icefloe.pipeline.arrays.array_document import ArrayDocument, ChunkSpec, Shape, item_bytes_of
from icefloe.pipeline.arrays.boxes import Box, boxes, format_shape
from icefloe.pipeline.arrays.casting import cast_values
from icefloe.pipeline.arrays.halo import NO_MARGIN, Margin, parse_margins, read_with_margins
from icefloe.pipeline.arrays.nodes import create_array, parse_path, require_array, require_free
from icefloe.pipeline.arrays.packed_values import ValueDecoder, find_decoder
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options
from icefloe.pipeline.report import Plan, Report, format_bytes
from icefloe.pipeline.run import JobRun, TaskWriter, WorkUnit
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icefloe.repository import Repository

_PROBE_ITEMS: Final = 4
_LOCATION: Final = "location"


@dataclass(frozen=True, slots=True)
class Output:
    """An array that a computation creates.

    Parameters
    ----------
    dtype
        Its data type; that of the result for a small block if None.
    dims
        Its dimensions, those of the grid if None. A grid dimension that is left out is whole in
        every block, so that the function can reduce it.
    sizes
        The lengths of dimensions that the grid lacks.
    chunks, shards
        Lengths by dimension or a tuple; the chunks of the first input if None.
    fill_value
        NaN for floating point if None, otherwise 0.
    codecs
        Arguments of ``zarr.create_array``: ``compressors``, ``filters``, ``serializer``.
    """

    dtype: Any = None
    dims: Sequence[str] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    chunks: ChunkSpec | None = None
    shards: ChunkSpec | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fill_value: Any = None
    codecs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Location:
    """The position of a block.

    Parameters
    ----------
    start, stop
        Its range along each dimension of the grid, without the halo.
    """

    start: Mapping[str, int]
    stop: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Input:
    name: str
    document: ArrayDocument
    dims: tuple[str, ...]
    decoder: ValueDecoder | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type that the function gets."""
        return self.document.dtype if self.decoder is None else np.dtype(self.decoder.dtype)

    @property
    def item_bytes(self) -> int:
        """The size of an item, stored or decoded."""
        return max(self.document.item_bytes, item_bytes_of(self.dtype))


@dataclass(frozen=True, slots=True)
class _Target:
    """A resolved output."""

    path: str
    dims: tuple[str, ...]
    shape: Shape
    dtype: np.dtype[Any]
    chunks: Shape
    shards: Shape | None
    output: Output

    @property
    def unit(self) -> dict[str, int]:
        """The shape of a stored object, which blocks must not share."""
        return dict(zip(self.dims, self.shards or self.chunks, strict=True))


@dataclass(frozen=True, slots=True)
class _Grid:
    """What all blocks of a job have in common; sent to executors."""

    sizes: dict[str, int]
    inputs: tuple[_Input, ...]
    margins: dict[str, Margin]
    unnamed: frozenset[str]

    @property
    def shape(self) -> Shape:
        return tuple(self.sizes.values())

    def location(self, box: Box) -> Location:
        parts = dict(zip(self.sizes, box, strict=True))
        return Location(
            {name: part.start for name, part in parts.items()},
            {name: part.stop for name, part in parts.items()},
        )

    def read(self, source: _Input, array: Any, box: Box) -> Any:
        """Read an input's part of a block, in grid order."""
        parts = dict(zip(self.sizes, box, strict=True))
        around = [self.margins.get(name, NO_MARGIN) for name in source.dims]
        place = tuple(parts[name] for name in source.dims)
        decode = None if source.decoder is None else source.decoder.decode
        block = np.asarray(read_with_margins(array, place, around, decode))
        ordered = [name for name in self.sizes if name in source.dims]
        block = block.transpose([source.dims.index(name) for name in ordered])
        return block.reshape(
            [block.shape[ordered.index(name)] if name in ordered else 1 for name in self.sizes]
        )

    def trim(self, values: Any, dims: Sequence[str], box: Box, shape: Shape) -> Any:
        """Remove the halo from a result, if present."""
        if values.shape == shape or values.ndim != len(dims):
            return values
        parts = dict(zip(self.sizes, box, strict=True))
        cuts = tuple(
            self.margins[name].trim(parts[name]) if name in self.margins else slice(None)
            for name in dims
        )
        wide = tuple(
            self._padded_length(name, parts[name]) if name in parts else length
            for name, length in zip(dims, values.shape, strict=True)
        )
        return values[cuts] if values.shape == wide else values

    def _padded_length(self, name: str, part: slice) -> int:
        margin = self.margins.get(name, NO_MARGIN)
        if not self.sizes[name]:
            return 0
        start, stop = int(part.start) - margin.before, int(part.stop) + margin.after
        if margin.boundary == "none":
            start, stop = max(0, start), min(self.sizes[name], stop)
        return stop - start


def compute(
    spark: SparkSession | None,
    repository: Repository,
    function: Callable[..., Any],
    inputs: str | Sequence[str] | Mapping[str, str],
    outputs: str | Sequence[str] | Mapping[str, Output | None],
    *,
    halo: Mapping[str, int | tuple[int, int]] | int | None = None,
    boundary: Mapping[str, str] | str = "none",
    constant: float = 0,
    decode: bool = True,
    probe: bool = True,
    run_options: RunOptions | None = None,
    commit_options: CommitOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> Plan | Report:
    """Create arrays from a function of blocks of other arrays, and commit once.

    Parameters
    ----------
    spark, repository
        Spark session (None runs in-process) and repository.
    function
        Called with a block of every input by name, and with the `Location` of the block if it has a
        parameter ``location``. Returns the block of the output, or of all outputs: a tuple in
        order, or a mapping by path; with or without the halo. Pickled with cloudpickle; must be
        deterministic.
    inputs
        Paths of arrays by argument name; the last path component if only paths are given.
        Dimensions without names are named by position.
    outputs
        Paths of new arrays, each with its `Output`, or None for the defaults.
    halo
        The number of neighbouring items that a block gets along a dimension, before and after.
    boundary
        The halo at the array edges, for all dimensions or by dimension: ``none`` (clipped), or
        ``reflect``, ``symmetric``, ``nearest``, ``wrap``, ``constant`` (with the value
        ``constant``), as in ``numpy.pad``.
    decode
        Whether the function gets values as xarray decodes them (``scale_factor``, ``add_offset``,
        NaN for ``_FillValue``), or stored numbers.
    probe
        Whether to call the function on a small block in this process before anything is written.
        Without it every output needs a dtype.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Raises
    ------
    InvalidInputError, NodeNotFoundError, AlreadyExistsError
        If arguments do not fit, or the function fails on a small block. Nothing was written.
    JobFailedError
        If blocks failed. Nothing was committed.
    """
    options = merge_options(run_options, commit_options, keywords)
    run = JobRun.start("compute", spark, repository, options)
    if (earlier := run.find_earlier()) is not None:
        return earlier
    grid = _create_grid(run, inputs, halo, boundary, constant, decode=decode)
    requested = _parse_outputs(outputs)
    for path in requested:
        require_free(run.session, path)
    targets = _plan_targets(run, grid, function, requested, probe=probe)
    documents = [_document(grid, target) for target in targets]
    box_shape = _box_shape(run, grid, targets)
    units = [
        WorkUnit(_format_block(targets, grid, box), _count_bytes(grid, targets, box), box)
        for box in boxes(grid.shape, box_shape)
    ]
    if run.dry_run:
        inputs_listed = ", ".join(source.document.path for source in grid.inputs)
        total = sum(prod(target.shape) * item_bytes_of(target.dtype) for target in targets)
        return run.plan(
            [
                f"{target.path} is computed from {inputs_listed}: "
                f"{format_shape(target.shape)} {target.dtype} in chunks of "
                f"{format_shape(target.chunks)}"
                for target in targets
            ]
            + [f"a block is {format_shape(box_shape)}, {format_bytes(total)} in all"],
            len(run.group_units(units)),
            bytes_read=sum(source.document.nbytes for source in grid.inputs),
            bytes_written=total,
            task_bytes=max((unit.size_bytes for unit in units), default=0),
        )
    for document in documents:
        create_array(run.session, document)
    reader = run.open_reader()

    def work(writer: TaskWriter, box: Box) -> None:
        blocks = {
            source.name: grid.read(source, writer.open_source(reader, source.document.path), box)
            for source in grid.inputs
        }
        for target, values in zip(
            targets, _call(function, grid, blocks, box, targets), strict=True
        ):
            parts = dict(zip(grid.sizes, box, strict=True))
            place = tuple(parts.get(name, slice(None)) for name in target.dims)
            writer.open_target(target.path)[place] = values

    run.write_units(run.session, units, work)
    paths = [target.path for target in targets]
    return run.commit(
        f"computed {', '.join(paths)}",
        about={"arrays": paths, "inputs": [source.document.path for source in grid.inputs]},
    )


def _create_grid(
    run: JobRun,
    inputs: str | Sequence[str] | Mapping[str, str],
    halo: Mapping[str, int | tuple[int, int]] | int | None,
    boundary: Mapping[str, str] | str,
    constant: float,
    *,
    decode: bool,
) -> _Grid:
    if isinstance(inputs, str):
        inputs = [inputs]
    if not isinstance(inputs, Mapping):
        named: dict[str, str] = {}
        for path in inputs:
            name = parse_path(path).name
            if name in named:
                raise invalid_array(
                    f"two inputs are called {name!r}, {named[name]} and {path}: give "
                    "argument names with inputs={name: path}"
                )
            named[name] = path
        inputs = named
    if not inputs:
        raise invalid_array("a computation needs an input")
    found = []
    sizes: dict[str, int] = {}
    unnamed: set[str] = set()
    for name, path in inputs.items():
        document = require_array(run.session, path)
        names, dims = document.dimension_names, document.dims
        unnamed.update(dim for dim, given in zip(dims, names, strict=True) if given is None)
        if len(set(dims)) < len(dims):
            raise invalid_array(
                f"{document.path} has two dimensions of the same name: {', '.join(dims)}"
            )
        for dimension, size in zip(dims, document.shape, strict=True):
            known = sizes.setdefault(dimension, size)
            if known != size:
                raise invalid_array(
                    f"{document.path} has {size} items along {dimension!r}, and another input "
                    f"{known}: inputs must share their dimensions"
                )
        found.append(_Input(name, document, dims, find_decoder(document) if decode else None))
    around = parse_margins(halo, boundary, sizes, constant=constant)
    for source in found:
        if any(name in around and around[name].boundary == "constant" for name in source.dims):
            _require_constant(constant, source)
    return _Grid(sizes, tuple(found), around, frozenset(unnamed))


def _require_constant(constant: float, source: _Input) -> None:
    try:
        cast_values(constant, source.dtype)
    except (InvalidInputError, TypeError, ValueError) as error:
        raise invalid_array(
            f"the constant {constant!r} around {source.document.path} does not fit {source.dtype}"
        ) from error


def _parse_outputs(outputs: str | Sequence[str] | Mapping[str, Output | None]) -> dict[str, Output]:
    if isinstance(outputs, str):
        outputs = [outputs]
    given = outputs.items() if isinstance(outputs, Mapping) else [(path, None) for path in outputs]
    requested: dict[str, Output] = {}
    for path, output in given:
        place = parse_path(path).value
        if place in requested:
            raise invalid_array(f"{place} is named twice among the outputs")
        requested[place] = output or Output()
    if not requested:
        raise invalid_array("a computation needs an output")
    for above in requested:
        for below in requested:
            if parse_path(below).is_below(parse_path(above)):
                raise invalid_array(
                    f"{below} would be inside the array {above}: choose another path"
                )
    return requested


def _plan_targets(
    run: JobRun,
    grid: _Grid,
    function: Callable[..., Any],
    requested: Mapping[str, Output],
    *,
    probe: bool,
) -> tuple[_Target, ...]:
    targets = []
    for path, output in requested.items():
        dims = tuple(grid.sizes) if output.dims is None else tuple(output.dims)
        for name in dims:
            if name not in grid.sizes and name not in output.sizes:
                raise invalid_array(
                    f"{path}: the dimension {name!r} is in no input; give its length with "
                    "Output(sizes=…)"
                )
        shape = tuple(
            grid.sizes[name] if name in grid.sizes else output.sizes[name] for name in dims
        )
        try:
            dtype = np.dtype(object) if output.dtype is None else np.dtype(output.dtype)
        except TypeError as error:
            raise invalid_array(f"{path}: {output.dtype!r} is not a data type: {error}") from error
        document = _chunk_document(grid, path, dims, shape).with_chunks(
            output.chunks, False if output.shards is None else output.shards
        )
        targets.append(_Target(path, dims, shape, dtype, document.chunks, document.shards, output))
    if not probe:
        for target in targets:
            if target.output.dtype is None:
                raise invalid_array(f"{target.path}: without a probe, dtype must be given")
        return tuple(targets)
    return _probe(run, grid, function, tuple(targets))


def _chunk_document(grid: _Grid, path: str, dims: tuple[str, ...], shape: Shape) -> ArrayDocument:
    """Return the chunks of an output: those of the first input that has each dimension."""
    lengths = []
    for name, size in zip(dims, shape, strict=True):
        like = next((source for source in grid.inputs if name in source.dims), None)
        length = size if like is None else like.document.chunks[like.dims.index(name)]
        lengths.append(max(1, length))
    model = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "float64",
        "fill_value": 0.0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": lengths}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "dimension_names": list(dims),
        "attributes": {},
    }
    return ArrayDocument(path, model)


def _probe(
    run: JobRun, grid: _Grid, function: Callable[..., Any], targets: tuple[_Target, ...]
) -> tuple[_Target, ...]:
    """Call the function on a corner of the arrays, to determine data types and find errors."""
    box = tuple(slice(0, min(size, _PROBE_ITEMS)) for size in grid.shape)
    blocks = {}
    for source in grid.inputs:
        array = open_array(run.session.store, source.document.path)
        blocks[source.name] = grid.read(source, array, box)
    advice = "pass probe=False if it needs larger blocks"
    try:
        found = _call(function, grid, blocks, box, targets, is_probe=True)
    except InvalidInputError as error:
        raise invalid_array(
            f"on the first {_PROBE_ITEMS} items: {error.message}; {advice}"
        ) from error
    except Exception as error:
        raise invalid_array(
            f"the function fails on the first {_PROBE_ITEMS} items along each dimension, with "
            f"{type(error).__name__}: {error}; {advice}"
        ) from error
    # Strings of other blocks may be longer.
    text = np.dtype(np.dtypes.StringDType())
    return tuple(
        replace(target, dtype=text if values.dtype.kind == "U" else values.dtype)
        if target.output.dtype is None
        else target
        for target, values in zip(targets, found, strict=True)
    )


def _call(
    function: Callable[..., Any],
    grid: _Grid,
    blocks: Mapping[str, Any],
    box: Box,
    targets: tuple[_Target, ...],
    *,
    is_probe: bool = False,
) -> list[Any]:
    """Call the function for a block; return the checked block of each output."""
    arguments = dict(blocks)
    if _wants_location(function):
        arguments[_LOCATION] = grid.location(box)
    answer = function(**arguments)
    if isinstance(answer, Mapping):
        named = {parse_path(path).value: values for path, values in answer.items()}
        if set(named) != {target.path for target in targets}:
            raise invalid_array(
                f"the function returned {', '.join(sorted(named))}, not "
                f"{', '.join(target.path for target in targets)}"
            )
        answer = tuple(named[target.path] for target in targets)
    elif not isinstance(answer, tuple):
        answer = (answer,)
    if len(answer) != len(targets):
        raise invalid_array(
            f"the function returned {len(answer)} arrays for {len(targets)} outputs"
        )
    parts = dict(zip(grid.sizes, box, strict=True))
    checked = []
    for target, values in zip(targets, answer, strict=True):
        shape = tuple(
            parts[name].stop - parts[name].start if name in parts else target.output.sizes[name]
            for name in target.dims
        )
        found = grid.trim(_as_array(values, target.path), target.dims, box, shape)
        if found.shape != shape:
            raise invalid_array(
                f"the function returned a block of {format_shape(found.shape)} for "
                f"{target.path}, where {format_shape(shape)} ({', '.join(target.dims)}) is needed"
            )
        if is_probe and target.output.dtype is None:
            checked.append(found)
            continue
        # Fixed-length strings would be truncated otherwise.
        casting: Any = "safe" if target.dtype.kind in "SU" else "same_kind"
        if not np.can_cast(found.dtype, target.dtype, casting):
            raise invalid_array(
                f"the function returned {found.dtype} for {target.path}, not {target.dtype}"
            )
        checked.append(cast_values(found, target.dtype))
    return checked


def _as_array(values: Any, path: str) -> Any:
    """Return a result as an array; object arrays must hold strings."""
    found = np.asarray(values)
    if found.dtype.kind != "O":
        return found
    if not all(isinstance(item, str) for item in found.flat):
        raise invalid_array(
            f"the function returned Python objects for {path}: return an array with a data type"
        )
    return found.astype(np.dtypes.StringDType())


def _wants_location(function: Callable[..., Any]) -> bool:
    try:
        return _LOCATION in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _box_shape(run: JobRun, grid: _Grid, targets: tuple[_Target, ...]) -> Shape:
    """Return a block shape of whole output chunks and, if memory allows, whole input chunks."""
    unit, read = [], []
    for name, size in grid.sizes.items():
        if any(name not in target.dims for target in targets):
            unit.append(max(1, size))
            read.append(max(1, size))
            continue
        unit.append(lcm(*(target.unit[name] for target in targets)))
        lengths = [
            source.document.chunks[source.dims.index(name)]
            for source in grid.inputs
            if name in source.dims
        ]
        read.append(max(1, *lengths) if lengths else 1)
    full = [max(1, size) for size in grid.shape]
    if not all(grid.shape):
        return tuple(full)
    least = tuple(map(min, unit, full))
    smallest = _count_bytes(grid, targets, tuple(slice(0, length) for length in least))
    # An upper bound: arrays that lack dimensions take less of larger blocks.
    item = -(-smallest // prod(least))
    total = prod(full) * item
    if smallest > run.task_bytes:
        raise invalid_array(
            f"one block of {format_shape(least)} takes {format_bytes(smallest)} in memory, and a "
            f"task may use {format_bytes(run.task_bytes)} (task_bytes): give tasks more memory or "
            "choose smaller output chunks or halos"
        )
    if prod(map(min, read, full)) * item > run.task_bytes:
        read = unit
    paths = ", ".join(target.path for target in targets)
    return plan_boxes(run, paths, full, item, (tuple(read), tuple(unit)), total_bytes=total).write


def _count_bytes(grid: _Grid, targets: tuple[_Target, ...], box: Box) -> int:
    lengths: dict[str, int] = {
        name: part.stop - part.start for name, part in zip(grid.sizes, box, strict=True)
    }
    around = {name: margin.before + margin.after for name, margin in grid.margins.items()}
    read: int = sum(
        prod(lengths[name] + around.get(name, 0) for name in source.dims) * source.item_bytes
        for source in grid.inputs
    )
    written: int = sum(
        prod(lengths.get(name, target.output.sizes.get(name, 1)) for name in target.dims)
        * item_bytes_of(target.dtype)
        for target in targets
    )
    return read + written


def _document(grid: _Grid, target: _Target) -> ArrayDocument:
    """Let Zarr create the metadata of an output; raise `InvalidInputError` if it refuses."""
    output = target.output
    fill = output.fill_value
    if fill is None and target.dtype.kind in "fc":
        fill = np.nan
    chosen = {} if fill is None else {"fill_value": fill}
    names = [None if name in grid.unnamed else name for name in target.dims]
    try:
        model = zarr.create_array(
            zarr.storage.MemoryStore(),
            shape=target.shape,
            dtype=target.dtype,
            chunks=target.chunks,
            shards=target.shards,
            attributes=dict(output.attributes),
            dimension_names=names if any(names) else None,
            **chosen,
            **output.codecs,
        )
    except (TypeError, ValueError) as error:
        raise invalid_array(f"{target.path}: {error}") from error
    return ArrayDocument.from_zarr(target.path, model)


def _format_block(targets: tuple[_Target, ...], grid: _Grid, box: Box) -> str:
    where = ", ".join(
        f"{name} {part.start}:{part.stop}" for name, part in zip(grid.sizes, box, strict=True)
    )
    return f"{', '.join(target.path for target in targets)} [{where}]"
