"""New arrays from a function of blocks of others.

All arrays of a job lie in one *grid*: the dimensions of its inputs, by name. A block is a box of
that grid. The function gets each input's part of it, with the axes in the order of the grid and
length 1 where an input lacks a dimension, so that NumPy's broadcasting does the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np
import zarr

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.arrays.array_document import ArrayDocument
from icefloe.pipeline.arrays.boxes import boxes, plan_copy
from icefloe.pipeline.arrays.casting import cast_values
from icefloe.pipeline.arrays.halo import NO_MARGIN, Margin, parse_margins, read_with_margins
from icefloe.pipeline.arrays.nodes import create_array, path_of, require_array, require_free
from icefloe.pipeline.arrays.packed_values import find_decoder
from icefloe.pipeline.options import merge_options
from icefloe.pipeline.report import format_bytes
from icefloe.pipeline.run import JobRun, WorkUnit
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from icefloe.pipeline.arrays.array_document import ChunkSpec, Shape
    from icefloe.pipeline.arrays.boxes import Box
    from icefloe.pipeline.arrays.packed_values import ValueDecoder
    from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions
    from icefloe.pipeline.report import Plan, Report
    from icefloe.pipeline.run import TaskWriter
    from icefloe.repository import Repository

_PROBE_ITEMS: Final = 4
_LOCATION: Final = "location"


@dataclass(frozen=True, slots=True)
class Output:
    """An array that a computation makes.

    Parameters
    ----------
    dtype
        Its data type; what the function returns for a small block, if not given.
    dims
        Its dimensions, those of the grid if not given. A dimension of the grid that is left out
        is whole in every block, so that the function can reduce it.
    sizes
        The lengths of dimensions that the grid does not have.
    chunks, shards
        Lengths by dimension or a tuple; as the first input has them, if not given.
    attributes
        Its attributes.
    fill_value
        What a chunk holds that is not stored; NaN for floating point if not given, else 0.
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
    """Where a block is.

    Parameters
    ----------
    start, stop
        Its items along each dimension of the grid, without the halo.
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
        """How large an item is, stored or decoded."""
        return max(self.document.item_bytes, _item_bytes(self.dtype))


@dataclass(frozen=True, slots=True)
class _Target:
    """An output, worked out."""

    path: str
    dims: tuple[str, ...]
    shape: Shape
    dtype: np.dtype[Any]
    chunks: Shape
    shards: Shape | None
    output: Output

    @property
    def unit(self) -> dict[str, int]:
        """What no two blocks may share."""
        return dict(zip(self.dims, self.shards or self.chunks, strict=True))


@dataclass(frozen=True, slots=True)
class _Grid:
    """What all blocks of a job have in common; goes to the executors."""

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

    def read(self, one: _Input, array: Any, box: Box) -> Any:
        """Read an input's part of a block, in the order of the grid."""
        parts = dict(zip(self.sizes, box, strict=True))
        around = [self.margins.get(name, NO_MARGIN) for name in one.dims]
        place = tuple(parts[name] for name in one.dims)
        decode = None if one.decoder is None else one.decoder.decode
        block = np.asarray(read_with_margins(array, place, around, decode))
        ordered = [name for name in self.sizes if name in one.dims]
        block = block.transpose([one.dims.index(name) for name in ordered])
        return block.reshape(
            [block.shape[ordered.index(name)] if name in ordered else 1 for name in self.sizes]
        )

    def trim(self, values: Any, dims: Sequence[str], box: Box, shape: Shape) -> Any:
        """Cut the halo off what a function returned, where it is still there."""
        if values.shape == shape or values.ndim != len(dims):
            return values
        parts = dict(zip(self.sizes, box, strict=True))
        cuts = tuple(
            self.margins[name].trim(parts[name]) if name in self.margins else slice(None)
            for name in dims
        )
        wide = tuple(
            self._wide(name, parts[name]) if name in parts else length
            for name, length in zip(dims, values.shape, strict=True)
        )
        return values[cuts] if values.shape == wide else values

    def _wide(self, name: str, part: slice) -> int:
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
    """Make arrays from a function of blocks of other arrays, and commit them once.

    Parameters
    ----------
    spark, repository
        Who works, and on what.
    function
        Called with a block of every input by name, and with the block's `Location` if it has a
        parameter ``location``. Returns the block of the output, or of all outputs: a tuple in
        their order, or a mapping of their paths. With a halo it returns blocks with or without
        it. Pickles with cloudpickle; must give the same result when it is called again.
    inputs
        Paths of arrays, by the names that the function knows them by; names are the last parts of
        paths if only those are given. Arrays without dimension names are named by position.
    outputs
        Paths of new arrays, each with its `Output`, or None to find everything out.
    halo
        How many items of its neighbours a block gets along a dimension, before and after.
    boundary
        What is beyond the edges of an array, for all dimensions or by dimension: ``none`` (the
        halo ends there), or ``reflect``, ``symmetric``, ``nearest``, ``wrap``, ``constant`` (of
        value ``constant``), as ``numpy.pad`` has them.
    decode
        Whether the function gets values, as xarray reads them: packed numbers unpacked
        (``scale_factor``, ``add_offset``), and NaN where they are missing (``_FillValue``); else
        it gets numbers as they are stored.
    probe
        Whether the function is tried on a small block first, here, before anything is written.
        Without it every output needs a dtype.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Raises
    ------
    InvalidInputError, NodeNotFoundError, AlreadyExistsError
        If arguments do not fit, or the function fails on a small block. Nothing was written.
    JobFailedError
        If blocks failed: which, and why. Nothing was committed.
    """
    options = merge_options(run_options, commit_options, keywords)
    run = JobRun.start("compute", spark, repository, options)
    if (earlier := run.find_earlier()) is not None:
        return earlier
    grid = _grid(run, inputs, halo, boundary, constant, decode=decode)
    wanted = _wanted(outputs)
    for path in wanted:
        require_free(run.session, path)
    targets = _targets(run, grid, function, wanted, probe=probe)
    documents = [_document(grid, target) for target in targets]
    box_shape = _box_shape(run, grid, targets)
    units = [
        WorkUnit(_shown(targets, grid, box), _bytes_of(grid, targets, box), box)
        for box in boxes(grid.shape, box_shape)
    ]
    if run.dry_run:
        total = sum(prod(target.shape) * _item_bytes(target.dtype) for target in targets)
        return run.plan(
            [
                f"{target.path} is made of {', '.join(one.document.path for one in grid.inputs)}: "
                f"{'x'.join(map(str, target.shape)) or 'one item'} {target.dtype} in chunks of "
                f"{'x'.join(map(str, target.chunks)) or 'one item'}"
                for target in targets
            ]
            + [f"a block is {'x'.join(map(str, box_shape))}, {format_bytes(total)} in all"],
            len(run.group_units(units)),
            bytes_read=sum(one.document.nbytes for one in grid.inputs),
            bytes_written=total,
            task_bytes=max((unit.size_bytes for unit in units), default=0),
        )
    for document in documents:
        create_array(run.session, document)
    reader = run.open_reader()

    def work(writer: TaskWriter, box: Box) -> None:
        blocks = {
            one.name: grid.read(one, writer.open_source(reader, one.document.path), box)
            for one in grid.inputs
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
        about={"arrays": paths, "inputs": [one.document.path for one in grid.inputs]},
    )


def _grid(
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
            name = path_of(path).name
            if name in named:
                raise _bad(
                    f"two inputs are called {name!r}, {named[name]} and {path}: say by which names "
                    "the function knows them, with inputs={name: path}"
                )
            named[name] = path
        inputs = named
    if not inputs:
        raise _bad("a computation needs an input")
    found = []
    sizes: dict[str, int] = {}
    unnamed: set[str] = set()
    for name, path in inputs.items():
        document = require_array(run.session, path)
        names = document.dimension_names
        dims = tuple(f"dim_{axis}" if one is None else one for axis, one in enumerate(names))
        unnamed.update(dim for dim, one in zip(dims, names, strict=True) if one is None)
        if len(set(dims)) < len(dims):
            raise _bad(f"{document.path} has two dimensions of one name: {', '.join(dims)}")
        for dimension, size in zip(dims, document.shape, strict=True):
            known = sizes.setdefault(dimension, size)
            if known != size:
                raise _bad(
                    f"{document.path} has {size} items along {dimension!r}, and an input before "
                    f"it has {known}: arrays of one computation share their dimensions"
                )
        found.append(_Input(name, document, dims, find_decoder(document) if decode else None))
    around = parse_margins(halo, boundary, sizes, constant=constant)
    for one in found:
        if any(name in around and around[name].boundary == "constant" for name in one.dims):
            _require_constant(constant, one)
    return _Grid(sizes, tuple(found), around, frozenset(unnamed))


def _require_constant(constant: float, one: _Input) -> None:
    try:
        cast_values(constant, one.dtype)
    except (InvalidInputError, TypeError, ValueError) as error:
        raise _bad(
            f"the constant {constant!r} around {one.document.path} does not fit {one.dtype}"
        ) from error


def _wanted(
    outputs: str | Sequence[str] | Mapping[str, Output | None],
) -> dict[str, Output]:
    if isinstance(outputs, str):
        outputs = [outputs]
    given = outputs.items() if isinstance(outputs, Mapping) else [(one, None) for one in outputs]
    wanted: dict[str, Output] = {}
    for path, one in given:
        place = path_of(path).value
        if place in wanted:
            raise _bad(f"{place} is named twice among the outputs")
        wanted[place] = one or Output()
    if not wanted:
        raise _bad("a computation needs an output")
    for above in wanted:
        for below in wanted:
            if path_of(below).is_below(path_of(above)):
                raise _bad(f"{below} would lie inside the array {above}: choose another path")
    return wanted


def _targets(
    run: JobRun,
    grid: _Grid,
    function: Callable[..., Any],
    wanted: Mapping[str, Output],
    *,
    probe: bool,
) -> tuple[_Target, ...]:
    targets = []
    for path, output in wanted.items():
        dims = tuple(grid.sizes) if output.dims is None else tuple(output.dims)
        for name in dims:
            if name not in grid.sizes and name not in output.sizes:
                raise _bad(
                    f"{path}: the dimension {name!r} is in no input; say how long it is with "
                    "Output(sizes=…)"
                )
        shape = tuple(
            grid.sizes[name] if name in grid.sizes else output.sizes[name] for name in dims
        )
        try:
            dtype = np.dtype(object) if output.dtype is None else np.dtype(output.dtype)
        except TypeError as error:
            raise _bad(f"{path}: {output.dtype!r} is no data type: {error}") from error
        document = _chunk_document(grid, path, dims, shape).with_chunks(
            output.chunks, False if output.shards is None else output.shards
        )
        targets.append(_Target(path, dims, shape, dtype, document.chunks, document.shards, output))
    if not probe:
        for target in targets:
            if target.output.dtype is None:
                raise _bad(f"{target.path}: without a probe its dtype must be given")
        return tuple(targets)
    return _probed(run, grid, function, tuple(targets))


def _chunk_document(grid: _Grid, path: str, dims: tuple[str, ...], shape: Shape) -> ArrayDocument:
    """Cut an output as the first input that has a dimension is cut along it."""
    lengths = []
    for name, size in zip(dims, shape, strict=True):
        like = next((one for one in grid.inputs if name in one.dims), None)
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


def _probed(
    run: JobRun, grid: _Grid, function: Callable[..., Any], targets: tuple[_Target, ...]
) -> tuple[_Target, ...]:
    """Try the function on a corner of the arrays; find out data types, and what is wrong."""
    box = tuple(slice(0, min(size, _PROBE_ITEMS)) for size in grid.shape)
    blocks = {}
    for one in grid.inputs:
        array = open_array(run.session.store, one.document.path)
        blocks[one.name] = grid.read(one, array, box)
    advice = "pass probe=False if it cannot work on a block as small as that"
    try:
        found = _call(function, grid, blocks, box, targets, is_probe=True)
    except InvalidInputError as error:
        raise _bad(f"on the first {_PROBE_ITEMS} items: {error.message}; {advice}") from error
    except Exception as error:
        raise _bad(
            f"the function fails on the first {_PROBE_ITEMS} items along each dimension, with "
            f"{type(error).__name__}: {error}; {advice}"
        ) from error
    return tuple(
        replace(target, dtype=_lasting(values.dtype)) if target.output.dtype is None else target
        for target, values in zip(targets, found, strict=True)
    )


def _lasting(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a data type that also has place for what other blocks hold."""
    return np.dtype(np.dtypes.StringDType()) if dtype.kind == "U" else dtype


def _call(
    function: Callable[..., Any],
    grid: _Grid,
    blocks: Mapping[str, Any],
    box: Box,
    targets: tuple[_Target, ...],
    *,
    is_probe: bool = False,
) -> list[Any]:
    """Call the function for a block; returns the block of each output, checked."""
    arguments = dict(blocks)
    if _wants_location(function):
        arguments[_LOCATION] = grid.location(box)
    answer = function(**arguments)
    if isinstance(answer, Mapping):
        named = {path_of(path).value: values for path, values in answer.items()}
        if set(named) != {target.path for target in targets}:
            raise _bad(
                f"the function returned {', '.join(sorted(named))}, and not "
                f"{', '.join(target.path for target in targets)}"
            )
        answer = tuple(named[target.path] for target in targets)
    elif not isinstance(answer, tuple):
        answer = (answer,)
    if len(answer) != len(targets):
        raise _bad(f"the function returned {len(answer)} arrays for {len(targets)} outputs")
    parts = dict(zip(grid.sizes, box, strict=True))
    checked = []
    for target, values in zip(targets, answer, strict=True):
        shape = tuple(
            parts[name].stop - parts[name].start if name in parts else target.output.sizes[name]
            for name in target.dims
        )
        found = grid.trim(_array(values, target.path), target.dims, box, shape)
        if found.shape != shape:
            raise _bad(
                f"the function returned a block of {_by(found.shape)} for {target.path}, where "
                f"{_by(shape)} ({', '.join(target.dims)}) is needed"
            )
        if is_probe and target.output.dtype is None:
            checked.append(found)
            continue
        # Texts of a fixed length would be cut off otherwise.
        casting: Any = "safe" if target.dtype.kind in "SU" else "same_kind"
        if not np.can_cast(found.dtype, target.dtype, casting):
            raise _bad(f"the function returned {found.dtype} for {target.path}, not {target.dtype}")
        checked.append(cast_values(found, target.dtype))
    return checked


def _array(values: Any, path: str) -> Any:
    """Take what a function returned as an array; texts may come as objects, anything else not."""
    found = np.asarray(values)
    if found.dtype.kind != "O":
        return found
    if not all(isinstance(one, str) for one in found.flat):
        raise _bad(
            f"the function returned Python objects for {path}: return an array with a data type"
        )
    return found.astype(np.dtypes.StringDType())


def _wants_location(function: Callable[..., Any]) -> bool:
    try:
        return _LOCATION in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _box_shape(run: JobRun, grid: _Grid, targets: tuple[_Target, ...]) -> Shape:
    """Choose blocks of whole output chunks and, where memory allows it, of whole input chunks."""
    unit, read = [], []
    for name, size in grid.sizes.items():
        if any(name not in target.dims for target in targets):
            unit.append(max(1, size))
            read.append(max(1, size))
            continue
        unit.append(lcm(*(target.unit[name] for target in targets)))
        lengths = [
            one.document.chunks[one.dims.index(name)] for one in grid.inputs if name in one.dims
        ]
        read.append(max(1, *lengths) if lengths else 1)
    full = [max(1, size) for size in grid.shape]
    if not all(grid.shape):
        return tuple(full)
    least = tuple(map(min, unit, full))
    smallest = _bytes_of(grid, targets, tuple(slice(0, length) for length in least))
    # What lacks some dimensions takes a smaller share of larger blocks: this is an upper bound.
    item = -(-smallest // prod(least))
    total = prod(full) * item
    if smallest > run.task_bytes:
        raise _bad(
            f"one block of {_by(least)} takes {format_bytes(smallest)} in memory, and a task may "
            f"take {format_bytes(run.task_bytes)} (task_bytes): give tasks more memory or choose "
            "smaller output chunks or halos"
        )
    if prod(map(min, read, full)) * item > run.task_bytes:
        read = unit
    try:
        plan = plan_copy(
            full, item, read, unit, max_bytes=run.task_bytes, min_boxes=run.min_boxes(total)
        )
    except InvalidInputError as error:
        paths = ", ".join(target.path for target in targets)
        raise _bad(f"{paths}: {error.message} (task_bytes)") from error
    return plan.write


def _bytes_of(grid: _Grid, targets: tuple[_Target, ...], box: Box) -> int:
    lengths: dict[str, int] = {
        name: part.stop - part.start for name, part in zip(grid.sizes, box, strict=True)
    }
    around = {name: one.before + one.after for name, one in grid.margins.items()}
    read: int = sum(
        prod(lengths[name] + around.get(name, 0) for name in one.dims) * one.item_bytes
        for one in grid.inputs
    )
    written: int = sum(
        prod(lengths.get(name, target.output.sizes.get(name, 1)) for name in target.dims)
        * _item_bytes(target.dtype)
        for target in targets
    )
    return read + written


def _document(grid: _Grid, target: _Target) -> ArrayDocument:
    """Let Zarr say what the metadata of an output is; what it refuses is refused here."""
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
        raise _bad(f"{target.path}: {error}") from error
    return ArrayDocument.from_zarr(target.path, model)


def _shown(targets: tuple[_Target, ...], grid: _Grid, box: Box) -> str:
    where = ", ".join(
        f"{name} {part.start}:{part.stop}" for name, part in zip(grid.sizes, box, strict=True)
    )
    return f"{', '.join(target.path for target in targets)} [{where}]"


def _item_bytes(dtype: np.dtype[Any]) -> int:
    return 64 if dtype.kind in "OT" else max(1, dtype.itemsize)


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "one item"


def _bad(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, kind=ErrorKind.INVALID_ARRAY_METADATA)
