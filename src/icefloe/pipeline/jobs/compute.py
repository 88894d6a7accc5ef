"""The compute job: creates arrays by applying a function to blocks of other arrays, in one commit.

All arrays of a job share one *grid*: the dimensions of its inputs, by name. A block is a
rectangular region (a `Box`) of the grid. The function receives the part of each input in the block,
with axes in grid order and length 1 for dimensions that the input lacks, so that NumPy broadcasting
applies.
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
from icefloe.pipeline.argument_errors import array_error
from icefloe.pipeline.arrays.array_copy import plan_boxes
from icefloe.pipeline.arrays.array_document import ArrayDocument, ChunkSpec, Shape, get_item_bytes
from icefloe.pipeline.arrays.boxes import Box, format_shape, iter_boxes
from icefloe.pipeline.arrays.casting import cast_values
from icefloe.pipeline.arrays.halo import NO_MARGIN, Margin, parse_margins, read_with_margins
from icefloe.pipeline.arrays.nodes import create_array, parse_path, require_array, require_free
from icefloe.pipeline.arrays.packed_values import ValueDecoder, find_decoder
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options
from icefloe.pipeline.report import Plan, Report, format_bytes
from icefloe.pipeline.run import JobRun, TaskWriter, WorkUnit, writing_repository
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icefloe.pipeline.opening import RepositoryOrPlace


_PROBE_ITEMS: Final = 4
_LOCATION: Final = "location"


@dataclass(frozen=True, slots=True)
class Output:
    """An array that a computation creates.

    Parameters
    ----------
    dtype
        If None, the data type that the function returns in the probe.
    dims
        The dimensions, those of the grid if None. A grid dimension that is left out is not split
        into blocks, so that the function can reduce it.
    sizes
        The lengths of dimensions that the grid lacks.
    chunks, shards
        Lengths by dimension, or a tuple. If ``chunks`` is None, each dimension is chunked as in the
        first input that has it; if ``shards`` is None, there are no shards.
    attributes
        The Zarr attributes.
    fill_value
        If None, NaN for floating point and complex, Zarr's default otherwise.
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
        The range along each dimension of the grid, without the halo.
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
        """The data type that the function receives."""
        return self.document.dtype if self.decoder is None else np.dtype(self.decoder.dtype)

    @property
    def item_bytes(self) -> int:
        """The size of an item, stored or decoded, whichever is larger."""
        return max(self.document.item_bytes, get_item_bytes(self.dtype))


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
    def write_unit(self) -> dict[str, int]:
        """The lengths of a shard, or of a chunk without shards.

        Blocks consist of whole ones, so no two blocks write the same object.
        """
        return dict(zip(self.dims, self.shards or self.chunks, strict=True))


@dataclass(frozen=True, slots=True)
class _Grid:
    """The dimensions, inputs and halo of a job; sent to executors."""

    sizes: dict[str, int]
    inputs: tuple[_Input, ...]
    margins: dict[str, Margin]
    placeholder_names: frozenset[str]

    @property
    def shape(self) -> Shape:
        return tuple(self.sizes.values())

    def make_location(self, box: Box) -> Location:
        parts = dict(zip(self.sizes, box, strict=True))
        return Location(
            {name: part.start for name, part in parts.items()},
            {name: part.stop for name, part in parts.items()},
        )

    def read(self, source: _Input, array: Any, box: Box) -> Any:
        """Read the part of an input in a block, in grid order."""
        parts = dict(zip(self.sizes, box, strict=True))
        margins = [self.margins.get(name, NO_MARGIN) for name in source.dims]
        selection = tuple(parts[name] for name in source.dims)
        decode = None if source.decoder is None else source.decoder.decode
        block = np.asarray(read_with_margins(array, selection, margins, decode))
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
        selection = tuple(
            self.margins[name].trim(parts[name]) if name in self.margins else slice(None)
            for name in dims
        )
        padded_shape = tuple(
            self._compute_padded_length(name, parts[name]) if name in parts else length
            for name, length in zip(dims, values.shape, strict=True)
        )
        return values[selection] if values.shape == padded_shape else values

    def _compute_padded_length(self, name: str, part: slice) -> int:
        margin = self.margins.get(name, NO_MARGIN)
        if not self.sizes[name]:
            return 0
        start, stop = int(part.start) - margin.before, int(part.stop) + margin.after
        if margin.boundary == "none":
            start, stop = max(0, start), min(self.sizes[name], stop)
        return stop - start


def compute(
    spark: SparkSession | None,
    repository: RepositoryOrPlace,
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
    """Create arrays by applying a function to blocks of other arrays, in one commit.

    Parameters
    ----------
    spark, repository
        Spark session (None runs in-process) and repository, or its directory or URL.
    function
        Called with a block of each input by name, and with the `Location` of the block if it has a
        parameter ``location``. Returns the block of the output, with or without the halo; for
        several outputs, a tuple or a mapping by path. Pickled with cloudpickle; must be
        deterministic.
    inputs
        Paths of arrays by argument name, which defaults to the last path component. Dimensions
        without names are matched by position.
    outputs
        Paths of new arrays, each with its `Output`, or None for the defaults.
    halo
        The number of neighbouring items before and after a block, for all dimensions or by
        dimension.
    boundary
        The halo at the array edges, for all dimensions or by dimension: ``none`` (clipped), or
        ``reflect``, ``symmetric``, ``nearest`` (or ``edge``), ``wrap``, ``constant`` (with the
        value ``constant``): the modes of ``numpy.pad``.
    decode
        Whether to pass values as xarray decodes them (``scale_factor``, ``add_offset``, NaN for
        ``_FillValue``), or stored numbers.
    probe
        Whether to call the function on a small block in this process before anything is written.
        If False, every output requires a dtype.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Raises
    ------
    InvalidInputError, NodeNotFoundError, AlreadyExistsError
        If an argument is invalid or does not match the arrays, or the function fails on a small
        block. Nothing was written.
    JobFailedError
        If blocks failed. Nothing was committed.
    """
    options = merge_options(run_options, commit_options, keywords)
    run = JobRun.start("compute", spark, repository, options)
    if (earlier := run.find_earlier_result()) is not None:
        return earlier
    grid = _create_grid(run, inputs, halo, boundary, constant, decode=decode)
    requested = _parse_outputs(outputs)
    for path in requested:
        require_free(run.session, path)
    targets = _plan_targets(run, grid, function, requested, probe=probe)
    documents = [_build_document(grid, target) for target in targets]
    box_shape = _choose_box_shape(run, grid, targets)
    units = [
        WorkUnit(_format_block(targets, grid, box), _estimate_memory(grid, targets, box), box)
        for box in iter_boxes(grid.shape, box_shape)
    ]
    if run.dry_run:
        input_paths = ", ".join(source.document.path for source in grid.inputs)
        total = sum(prod(target.shape) * get_item_bytes(target.dtype) for target in targets)
        return run.plan(
            [
                f"{target.path} is computed from {input_paths}: "
                f"{format_shape(target.shape)} {target.dtype} in chunks of "
                f"{format_shape(target.chunks)}"
                for target in targets
            ]
            + [f"blocks of {format_shape(box_shape)}; {format_bytes(total)} are written in total"],
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
            targets, _call_function(function, grid, blocks, box, targets), strict=True
        ):
            parts = dict(zip(grid.sizes, box, strict=True))
            selection = tuple(parts.get(name, slice(None)) for name in target.dims)
            with writing_repository():
                writer.open_target(target.path)[selection] = values

    run.write_units(run.session, units, work, phase="computing")
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
        paths: dict[str, str] = {}
        for path in inputs:
            name = parse_path(path).name
            if name in paths:
                raise array_error(
                    f"{paths[name]} and {path} have the same argument name {name!r}: pass "
                    "inputs={name: path}"
                )
            paths[name] = path
        inputs = paths
    if not inputs:
        raise array_error("inputs is empty: pass at least one array")
    sources = []
    sizes: dict[str, int] = {}
    placeholder_names: set[str] = set()
    for name, path in inputs.items():
        document = require_array(run.session, path)
        names, dims = document.dimension_names, document.dims
        placeholder_names.update(
            dim for dim, dim_name in zip(dims, names, strict=True) if dim_name is None
        )
        if len(set(dims)) < len(dims):
            raise array_error(
                f"{document.path} has two dimensions of the same name: {', '.join(dims)}"
            )
        for dimension, size in zip(dims, document.shape, strict=True):
            other_size = sizes.setdefault(dimension, size)
            if other_size != size:
                raise array_error(
                    f"{document.path} has {size} items along {dimension!r}, but another input has "
                    f"{other_size}"
                )
        sources.append(_Input(name, document, dims, find_decoder(document) if decode else None))
    margins = parse_margins(halo, boundary, sizes, constant=constant)
    for source in sources:
        if any(name in margins and margins[name].boundary == "constant" for name in source.dims):
            _require_constant_fits(constant, source)
    return _Grid(sizes, tuple(sources), margins, frozenset(placeholder_names))


def _require_constant_fits(constant: float, source: _Input) -> None:
    try:
        cast_values(constant, source.dtype)
    except (InvalidInputError, TypeError, ValueError) as error:
        raise array_error(
            f"{source.document.path}: the constant {constant!r} does not fit {source.dtype}"
        ) from error


def _parse_outputs(outputs: str | Sequence[str] | Mapping[str, Output | None]) -> dict[str, Output]:
    if isinstance(outputs, str):
        outputs = [outputs]
    items = outputs.items() if isinstance(outputs, Mapping) else [(path, None) for path in outputs]
    requested: dict[str, Output] = {}
    for path, output in items:
        node_path = parse_path(path).value
        if node_path in requested:
            raise array_error(f"{node_path} is in outputs twice")
        requested[node_path] = output or Output()
    if not requested:
        raise array_error("outputs is empty: pass at least one path")
    for outer in requested:
        for inner in requested:
            if parse_path(inner).is_below(parse_path(outer)):
                raise array_error(f"{inner} would be inside the array {outer}: choose another path")
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
                raise array_error(
                    f"{path}: the dimension {name!r} is in no input: pass its length in "
                    "Output(sizes=…)"
                )
        shape = tuple(
            grid.sizes[name] if name in grid.sizes else output.sizes[name] for name in dims
        )
        try:
            # A placeholder that `_probe` replaces.
            dtype = np.dtype(object) if output.dtype is None else np.dtype(output.dtype)
        except TypeError as error:
            raise array_error(f"{path}: {output.dtype!r} is not a data type: {error}") from error
        document = _make_chunk_template(grid, path, dims, shape).with_chunks(
            output.chunks, False if output.shards is None else output.shards
        )
        targets.append(_Target(path, dims, shape, dtype, document.chunks, document.shards, output))
    if not probe:
        for target in targets:
            if target.output.dtype is None:
                raise array_error(f"{target.path}: dtype is required with probe=False")
        return tuple(targets)
    return _probe(run, grid, function, tuple(targets))


def _make_chunk_template(
    grid: _Grid, path: str, dims: tuple[str, ...], shape: Shape
) -> ArrayDocument:
    """Make metadata with the default chunks: along each dimension, of the first input that has it.

    The data type and codecs are placeholders.
    """
    lengths = []
    for name, size in zip(dims, shape, strict=True):
        first = next((source for source in grid.inputs if name in source.dims), None)
        length = size if first is None else first.document.chunks[first.dims.index(name)]
        lengths.append(max(1, length))
    metadata = {
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
    return ArrayDocument(path, metadata)


def _probe(
    run: JobRun, grid: _Grid, function: Callable[..., Any], targets: tuple[_Target, ...]
) -> tuple[_Target, ...]:
    """Call the function on a small block, to determine data types and find errors."""
    box = tuple(slice(0, min(size, _PROBE_ITEMS)) for size in grid.shape)
    blocks = {}
    for source in grid.inputs:
        array = open_array(run.session.store, source.document.path)
        blocks[source.name] = grid.read(source, array, box)
    where = f"on the first {_PROBE_ITEMS} items along each dimension"
    advice = "pass probe=False if it needs larger blocks"
    try:
        results = _call_function(function, grid, blocks, box, targets, is_probe=True)
    except InvalidInputError as error:
        raise array_error(f"{where}: {error.message}; {advice}") from error
    except Exception as error:
        raise array_error(
            f"{where}: the function raised {type(error).__name__}: {error}; {advice}"
        ) from error
    # Other blocks may have longer strings.
    text = np.dtype(np.dtypes.StringDType())
    return tuple(
        replace(target, dtype=text if values.dtype.kind == "U" else values.dtype)
        if target.output.dtype is None
        else target
        for target, values in zip(targets, results, strict=True)
    )


def _call_function(
    function: Callable[..., Any],
    grid: _Grid,
    blocks: Mapping[str, Any],
    box: Box,
    targets: tuple[_Target, ...],
    *,
    is_probe: bool = False,
) -> list[Any]:
    """Call the function on a block; check and return the block of each output."""
    arguments = dict(blocks)
    if _has_location_parameter(function):
        arguments[_LOCATION] = grid.make_location(box)
    results = function(**arguments)
    if isinstance(results, Mapping):
        by_path = {parse_path(path).value: values for path, values in results.items()}
        if set(by_path) != {target.path for target in targets}:
            raise array_error(
                f"the function returned {', '.join(sorted(by_path))}, not "
                f"{', '.join(target.path for target in targets)}"
            )
        results = tuple(by_path[target.path] for target in targets)
    elif not isinstance(results, tuple):
        results = (results,)
    if len(results) != len(targets):
        raise array_error(f"the function returned {len(results)} arrays for {len(targets)} outputs")
    parts = dict(zip(grid.sizes, box, strict=True))
    checked = []
    for target, values in zip(targets, results, strict=True):
        shape = tuple(
            parts[name].stop - parts[name].start if name in parts else target.output.sizes[name]
            for name in target.dims
        )
        block = grid.trim(_convert_result(values, target.path), target.dims, box, shape)
        if block.shape != shape:
            raise array_error(
                f"the function returned a block of {format_shape(block.shape)} for "
                f"{target.path}, expected {format_shape(shape)} ({', '.join(target.dims)})"
            )
        if is_probe and target.output.dtype is None:
            checked.append(block)
            continue
        # Fixed-length strings would be truncated otherwise.
        casting: Any = "safe" if target.dtype.kind in "SU" else "same_kind"
        if not np.can_cast(block.dtype, target.dtype, casting):
            raise array_error(
                f"the function returned {block.dtype} for {target.path}, not {target.dtype}"
            )
        checked.append(cast_values(block, target.dtype))
    return checked


def _convert_result(values: Any, path: str) -> Any:
    """Convert a result to an array; object arrays must contain strings."""
    array = np.asarray(values)
    if array.dtype.kind != "O":
        return array
    if not all(isinstance(item, str) for item in array.flat):
        raise array_error(
            f"the function returned Python objects for {path}: return an array with a data type"
        )
    return array.astype(np.dtypes.StringDType())


def _has_location_parameter(function: Callable[..., Any]) -> bool:
    try:
        return _LOCATION in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _choose_box_shape(run: JobRun, grid: _Grid, targets: tuple[_Target, ...]) -> Shape:
    """Choose a block shape of whole output chunks and, if memory allows, whole input chunks."""
    write_lengths, read_lengths = [], []
    for name, size in grid.sizes.items():
        if any(name not in target.dims for target in targets):
            write_lengths.append(max(1, size))
            read_lengths.append(max(1, size))
            continue
        write_lengths.append(lcm(*(target.write_unit[name] for target in targets)))
        lengths = [
            source.document.chunks[source.dims.index(name)]
            for source in grid.inputs
            if name in source.dims
        ]
        read_lengths.append(max(1, *lengths) if lengths else 1)
    full = [max(1, size) for size in grid.shape]
    if not all(grid.shape):
        return tuple(full)
    block = tuple(map(min, write_lengths, full))
    block_bytes = _estimate_memory(grid, targets, tuple(slice(0, length) for length in block))
    # Bytes per cell of the grid. An upper bound for larger blocks, because an array that lacks a
    # dimension does not grow along it.
    cell_bytes = -(-block_bytes // prod(block))
    total = prod(full) * cell_bytes
    if block_bytes > run.task_bytes:
        raise array_error(
            f"one block of {format_shape(block)} takes {format_bytes(block_bytes)} in memory, but "
            f"a task may use {format_bytes(run.task_bytes)}: increase task_bytes, or choose "
            "smaller output chunks or halos"
        )
    if prod(map(min, read_lengths, full)) * cell_bytes > run.task_bytes:
        read_lengths = write_lengths
    paths = ", ".join(target.path for target in targets)
    chunks = tuple(read_lengths), tuple(write_lengths)
    return plan_boxes(run, paths, full, cell_bytes, chunks, total_bytes=total).write_box


def _estimate_memory(grid: _Grid, targets: tuple[_Target, ...], box: Box) -> int:
    """Estimate the memory for the inputs, with halo, and outputs of a block."""
    lengths: dict[str, int] = {
        name: part.stop - part.start for name, part in zip(grid.sizes, box, strict=True)
    }
    halo = {name: margin.before + margin.after for name, margin in grid.margins.items()}
    read_bytes: int = sum(
        prod(lengths[name] + halo.get(name, 0) for name in source.dims) * source.item_bytes
        for source in grid.inputs
    )
    written_bytes: int = sum(
        prod(lengths.get(name, target.output.sizes.get(name, 1)) for name in target.dims)
        * get_item_bytes(target.dtype)
        for target in targets
    )
    return read_bytes + written_bytes


def _build_document(grid: _Grid, target: _Target) -> ArrayDocument:
    """Create the metadata of an output with Zarr; raise `InvalidInputError` if Zarr rejects it."""
    output = target.output
    fill = output.fill_value
    if fill is None and target.dtype.kind in "fc":
        fill = np.nan
    fill_argument = {} if fill is None else {"fill_value": fill}
    names = [None if name in grid.placeholder_names else name for name in target.dims]
    try:
        template = zarr.create_array(
            zarr.storage.MemoryStore(),
            shape=target.shape,
            dtype=target.dtype,
            chunks=target.chunks,
            shards=target.shards,
            attributes=dict(output.attributes),
            dimension_names=names if any(names) else None,
            **fill_argument,
            **output.codecs,
        )
    except (TypeError, ValueError) as error:
        raise array_error(f"{target.path}: {error}") from error
    return ArrayDocument.from_zarr(target.path, template)


def _format_block(targets: tuple[_Target, ...], grid: _Grid, box: Box) -> str:
    where = ", ".join(
        f"{name} {part.start}:{part.stop}" for name, part in zip(grid.sizes, box, strict=True)
    )
    return f"{', '.join(target.path for target in targets)} [{where}]"
