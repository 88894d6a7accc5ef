"""The ingest job: copies files into a repository as one dataset, with any chunk shape.

The files first become a virtual dataset, as in `virtualize`, in a snapshot without a branch. The
arrays of the dataset are then copied as in `rechunk`: each source chunk is read once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

from icefloe.pipeline.argument_errors import argument_error, array_error
from icefloe.pipeline.arrays.array_copy import ArrayCopy, copy_arrays, plan_array_copy
from icefloe.pipeline.arrays.array_document import CODECS, ArrayDocument, ChunkSpec
from icefloe.pipeline.arrays.nodes import create_array, parse_path, read_arrays
from icefloe.pipeline.arrays.number_attributes import MISSING_VALUE_ATTRIBUTES
from icefloe.pipeline.arrays.packed_values import is_nan, unpack_array
from icefloe.pipeline.arrays.stored_types import TypeOptions, convert_like, find_auxiliary_variables
from icefloe.pipeline.files.file_job import (
    Changed,
    CombinedFiles,
    FileJob,
    FileOptions,
    OnError,
    Order,
)
from icefloe.pipeline.files.file_verification import find_unreadable_files
from icefloe.pipeline.files.manifest_building import build_manifests, take_markers
from icefloe.pipeline.files.mismatched_chunks import copy_mismatched
from icefloe.pipeline.files.replacement import Replacement, Span, separate_spans
from icefloe.pipeline.files.source_files import list_source_names
from icefloe.pipeline.files.source_record import get_group_attribute, set_group_attribute
from icefloe.pipeline.opening import RepositoryOrPlace, cover_sources, require_repository
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options
from icefloe.pipeline.report import JobFailedError, Plan, Report
from icefloe.session import Session, contents
from icefloe.session.commit_policy import NO_POLICY, CommitPolicy
from icefloe.spark.option_parsing import suggest_name
from icefloe.virtual.agreement import SEMANTIC_ATTRIBUTES, Disagreement
from icefloe.virtual.arrays import AnyArray, VirtualArray
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.writer import append as append_dataset
from icefloe.virtual.writer import write as write_dataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icefloe.pipeline.arrays.stored_types import ConvertedArray, ValueTransform
    from icefloe.pipeline.options import JobOptions
    from icefloe.pipeline.run import JobRun
    from icefloe.repository import Repository

_CONVERTED_ATTRIBUTE: Final = "_nc_icefloe_converted"
"""Group attribute that lists the arrays that an ingest with ``dtype`` or ``pack`` converted."""


def ingest(
    spark: SparkSession | None,
    repository: RepositoryOrPlace,
    sources: Any,
    *,
    dims: str | Sequence[str] = "time",
    group: str = "/",
    append: bool = False,
    changed: Changed = "stop",
    insert: bool = False,
    chunks: ChunkSpec | None = None,
    shards: ChunkSpec | None = None,
    codecs: Sequence[Any] | None = None,
    unpack: bool = False,
    dtype: Any = None,
    pack: Mapping[str, Mapping[str, Any]] | None = None,
    order: Order | None = None,
    on_error: OnError = "raise",
    parse_options: Mapping[str, Any] | None = None,
    run_options: RunOptions | None = None,
    commit_options: CommitOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> Plan | Report:
    """Copy files into a repository as one dataset, and commit once.

    Parameters
    ----------
    spark, repository
        Spark session (None runs in-process) and repository, or its directory or URL. Containers
        that the files need are temporary.
    sources, dims, group, order, on_error, parse_options
        As for `virtualize`.
    append
        Whether to extend the group along the first of ``dims``. The group keeps its chunks, codecs
        and data types. Files that are already in the group are skipped.
    changed, insert
        As for `append`.
    chunks, shards
        Chunk and shard lengths by dimension name, -1 for a whole dimension; the chunks of the files
        if None.
    codecs
        The codecs of a chunk; Zstandard if None.
    unpack
        Whether to store values packed by ``scale_factor`` and ``add_offset`` as floating point,
        with NaN for missing values; otherwise packed numbers and their attributes are kept.
    dtype
        The data type of all numeric data variables, except auxiliary ones (bounds, times), or data
        types by variable name. The job fails if values do not fit. Floating point implies
        unpacking. If None, unpacked values get the smallest type that fits, others keep theirs.
    pack
        Packing by variable name, with the keys of xarray's encoding, such as
        ``{"t2m": {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15}}``. NaN becomes
        ``_FillValue``, by default the smallest integer (the largest unsigned one). The job fails if
        values are out of range, or would become ``_FillValue``.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Raises
    ------
    InvalidInputError, AlreadyExistsError, NodeNotFoundError
        If the arguments are invalid, or do not fit the files or the repository.
    JobFailedError
        If files are damaged, or do not match each other or the group (the error lists all of
        them), or if values do not fit. After any of these errors, nothing was committed.
    """
    layout = Layout(chunks, shards, codecs, TypeOptions.of(unpack, dtype, pack))
    if append and layout.types.is_set:
        raise argument_error(
            "append uses the data types and packing of the group: omit dtype and pack"
        )
    files = FileOptions.of(
        dims, group, order, on_error, parse_options, append=append, changed=changed, insert=insert
    )
    options = merge_options(run_options, commit_options, keywords)
    opened = require_repository(spark, repository, sources)
    names = list_source_names(sources)
    opened = cover_sources(opened, names)
    return run_ingest(spark, opened, names, files, options, layout=layout)


def run_ingest(
    spark: SparkSession | None,
    repository: Repository,
    sources: Any,
    files: FileOptions,
    options: JobOptions,
    *,
    layout: Layout,
) -> Plan | Report:
    """Run the job with checked arguments; see `ingest`."""
    chunking = (
        "unchanged" if layout.chunks is None else f"into chunks of {_format_spec(layout.chunks)}"
    )
    step = f"copy their chunks {chunking} to {parse_path(files.group)}"
    find_mismatches = partial(_find_mismatches, group=files.group, dim=files.dim)
    job = FileJob(
        "ingest", spark, repository, sources, files, options, find_mismatches, step, copies=True
    )

    def copy_files(
        run: JobRun,
        combined: CombinedFiles,
        source_group: str,
        passes: Sequence[Sequence[ArrayCopy]],
    ) -> None:
        scratch = run.fork_scratch()
        write_dataset(combined.dataset, scratch, group=source_group, validate_containers=False)
        _, positions = take_markers(scratch, combined, source_group, combined.mismatched)
        build_manifests(run, scratch, combined, source_group, files.dim)
        copy_mismatched(run, scratch, combined, source_group, positions)
        run.chunks = run.bytes_written = 0  # the report counts copied chunks, not references
        try:
            for copies in passes:
                copy_arrays(run, copies, scratch.fork())
        except JobFailedError as error:
            if error.__cause__ is not None:
                raise  # Spark or a write failed, not a source
            tasks = job.group_files(run, [file.url for file in combined.files])
            unreadable = find_unreadable_files(run, tasks, files.parse_options)
            if not unreadable:
                raise
            raise JobFailedError(run.name, unreadable) from error

    def write(run: JobRun, combined: CombinedFiles) -> CommitPolicy:
        source_group = f"/source-{uuid.uuid4().hex}"
        copies = _create_targets(run, combined, layout, source_group, files)
        copy_files(run, combined, source_group, [copies])
        return NO_POLICY

    def replace_steps(run: JobRun, combined: CombinedFiles) -> None:
        source_group = f"/source-{uuid.uuid4().hex}"
        passes = _plan_replacement(run, combined, source_group, files)
        copy_files(run, combined, source_group, passes)

    return job.execute(write, replace_steps)


def _format_spec(chunks: ChunkSpec) -> str:
    if isinstance(chunks, Mapping):
        return ", ".join(f"{name} {length}" for name, length in chunks.items())
    return " x ".join(map(str, chunks))


@dataclass(frozen=True, slots=True)
class Layout:
    """The requested chunks, shards, codecs and data types."""

    chunks: ChunkSpec | None = None
    shards: ChunkSpec | None = None
    codecs: Sequence[Any] | None = None
    types: TypeOptions = field(default_factory=TypeOptions)

    def apply_to(self, name: str, source: ArrayDocument, *, is_data: bool) -> ConvertedArray:
        """Return the metadata of the stored array, and the transforms of its values."""
        document, transforms = self.types.apply_to(name, source, is_data=is_data)
        is_number = document.dtype.kind in "biufcmM"
        codecs = self.codecs or (CODECS if is_number else None)
        chunks, shards = (
            source.select_lengths(spec) or None if isinstance(spec, Mapping) else spec
            for spec in (self.chunks, self.shards)
        )
        return document.with_chunks(chunks, shards, codecs), transforms

    def require_known(self, dataset: VirtualDataset, sources: Iterable[str]) -> None:
        """Raise `InvalidInputError` if a requested dimension or variable is not in the files."""
        dims = {str(name) for array in dataset.arrays.values() for name in array.dimension_names}
        for what, spec in (("chunks", self.chunks), ("shards", self.shards)):
            for name in spec if isinstance(spec, Mapping) else ():
                if name not in dims:
                    raise array_error(
                        f"{what}: unknown dimension {name!r}; {suggest_name(name, dims)}"
                    )
        variables = {*sources}
        self.types.require_known(variables, dataset.arrays.keys() - variables)


def _create_targets(
    run: JobRun, combined: CombinedFiles, layout: Layout, source_group: str, files: FileOptions
) -> list[ArrayCopy]:
    """Create or extend arrays in the job's session, write coordinates, and plan the copies."""
    group, dim = files.group, files.dim
    loaded_arrays: dict[str, AnyArray] = {}
    sources: dict[str, ArrayDocument] = {}
    for path, array in combined.dataset.arrays.items():
        if isinstance(array, VirtualArray):
            sources[path] = ArrayDocument(f"{source_group}/{path}", array.metadata)
        else:
            loaded_arrays[path] = array
    coordinates = VirtualDataset(combined.dataset.sources, combined.dataset.groups, loaded_arrays)
    base = parse_path(group).value.rstrip("/")
    layout.require_known(combined.dataset, sources)
    if files.append:
        stored_arrays = _read_group(run.session, group)
        convert = _make_converter(run.session, group)
        if loaded_arrays:
            append_dataset(coordinates, run.session, dim=dim, group=group, is_partial=True)
        return [
            _extend(
                run,
                source,
                stored_arrays[path],
                source.dimension_names.index(dim),
                convert(path, source, stored_arrays[path])[1],
            )
            for path, source in sources.items()
            if dim in source.dimension_names
        ]
    write_dataset(coordinates, run.session, group=group)
    copies, converted_paths = [], []
    auxiliary_paths = find_auxiliary_variables(
        {path: array.metadata for path, array in combined.dataset.arrays.items()}
    )
    for path, source in sources.items():
        file_metadata = combined.files[0].mismatched.get(path)
        model = source if file_metadata is None else _with_file_chunks(source, file_metadata)
        is_data = path not in auxiliary_paths
        target, transforms = layout.apply_to(path, model.with_path(path), is_data=is_data)
        if layout.types.is_set and (transforms or target.dtype != source.dtype):
            converted_paths.append(path)
        target = target.with_path(f"{base}/{path}")
        create_array(run.session, target)
        copies.append(replace(plan_array_copy(run, source, target), transforms=transforms))
    if converted_paths:
        set_group_attribute(run.session, group, _CONVERTED_ATTRIBUTE, converted_paths)
    return copies


def _with_file_chunks(source: ArrayDocument, file_metadata: Mapping[str, Any]) -> ArrayDocument:
    """Return the array with the chunk shape of a file instead of that of the intermediate array."""
    chunks = ArrayDocument(source.path, file_metadata).chunks
    return source.with_chunks(tuple(map(min, chunks, source.shape)), None, None)


def _extend(
    run: JobRun,
    source: ArrayDocument,
    target: ArrayDocument,
    axis: int,
    transforms: tuple[ValueTransform, ...],
) -> ArrayCopy:
    """Extend an array, and plan the copy of the appended values."""
    span = Span(0, target.shape[axis], source.shape[axis])
    shape = list(target.shape)
    shape[axis] += span.length
    extended = target.with_shape(shape)
    contents.set_metadata(run.session, parse_path(target.path), extended.to_bytes())
    return _plan_span(run, source, extended, axis, transforms, span=span)


def _plan_replacement(
    run: JobRun, combined: CombinedFiles, source_group: str, files: FileOptions
) -> list[list[ArrayCopy]]:
    """Write the coordinates of new versions of files, and plan the copies of their other values.

    Each list has copies that share no chunk, and can therefore run in parallel.
    """
    dim, dataset = files.dim, combined.dataset
    replacement = Replacement.find(run.session, dataset, dim=dim, group=files.group)
    replacement.write_loaded(run.session, dataset)
    stored_arrays = _read_group(run.session, files.group)
    convert = _make_converter(run.session, files.group)
    passes: list[list[ArrayCopy]] = []
    for path, array in dataset.arrays.items():
        if not isinstance(array, VirtualArray) or dim not in array.dimension_names:
            continue
        source, target = (
            ArrayDocument(f"{source_group}/{path}", array.metadata),
            stored_arrays[path],
        )
        axis, transforms = source.dimension_names.index(dim), convert(path, source, target)[1]
        spans_by_pass = separate_spans(replacement.spans, target.write_unit[axis])
        for number, spans in enumerate(spans_by_pass):
            if number == len(passes):
                passes.append([])
            passes[number] += (
                _plan_span(run, source, target, axis, transforms, span=span) for span in spans
            )
    return passes


def _plan_span(
    run: JobRun,
    source: ArrayDocument,
    target: ArrayDocument,
    axis: int,
    transforms: tuple[ValueTransform, ...],
    *,
    span: Span,
) -> ArrayCopy:
    """Plan the copy of some steps to where they are stored in the target."""
    pad = span.target % target.write_unit[axis]
    padded_shape = list(source.shape)
    padded_shape[axis] = span.length + pad
    # Plan on the target grid, where the first step is `pad` steps into a chunk.
    copy = plan_array_copy(run, source.with_shape(padded_shape), target.with_shape(padded_shape))
    plan = copy.plan
    if plan is not None:
        plan = replace(plan, shape=source.shape)
        is_misaligned = (pad - span.source) % source.chunks[axis] and plan.write_box[
            axis
        ] < padded_shape[axis]
        if is_misaligned and plan.stage is None:
            # Boxes aligned with target chunks end within source chunks: use a stage, because only
            # stage chunks may be read twice.
            chunks = tuple(map(min, source.chunks, source.shape))
            plan = replace(plan, read_box=chunks, stage=chunks)
    return replace(
        copy,
        source=source,
        target=target,
        plan=plan,
        axis=axis,
        start=span.target,
        pad=pad,
        offset=span.source,
        length=span.length,
        transforms=transforms,
    )


def _make_converter(
    session: Session, group: str
) -> Callable[[str, ArrayDocument, ArrayDocument], ConvertedArray]:
    """Make a function that converts an array like the stored array of the same path."""
    attribute = get_group_attribute(session, group, _CONVERTED_ATTRIBUTE)
    converted_paths = attribute if isinstance(attribute, list) else []

    def convert(path: str, source: ArrayDocument, target: ArrayDocument) -> ConvertedArray:
        if path in converted_paths:
            return convert_like(source, target)
        if not source.is_packed or target.is_packed:
            return source, ()
        document, decoder = unpack_array(source, target.dtype)
        return document, () if decoder is None else (decoder.decode,)

    return convert


def _read_group(session: Session, group: str) -> dict[str, ArrayDocument]:
    """Return the arrays of a group by their paths within the group."""
    base = parse_path(group).value.rstrip("/")
    return {array.path.removeprefix(f"{base}/"): array for array in read_arrays(session, group)}


def _find_mismatches(
    session: Session, dataset: VirtualDataset, *, group: str, dim: str
) -> Iterator[Disagreement]:
    """Find why a file cannot be appended: its arrays must match the stored ones."""
    stored_arrays = _read_group(session, group)
    convert = _make_converter(session, group)
    missing_paths = [
        path
        for path, array in stored_arrays.items()
        if dim in array.dimension_names and path not in dataset.arrays
    ]
    if missing_paths:
        problem = f"has no {', '.join(missing_paths)}, unlike the repository"
        yield Disagreement(dataset.label, "", "variables", problem)
    extra_paths = [path for path in dataset.arrays if path not in stored_arrays]
    if extra_paths:
        problem = f"has {', '.join(extra_paths)}, unlike the repository: pass drop_variables="
        yield Disagreement(dataset.label, "", "variables", f"{problem}{extra_paths}")
    for path, array in dataset.arrays.items():
        if path not in stored_arrays or not isinstance(array, VirtualArray):
            continue
        source = ArrayDocument(path, array.metadata)
        target = stored_arrays[path]
        if not _is_compatible(convert(path, source, target)[0], target, dim):
            problem = f"is {_describe(source)}, but {_describe(target)} in the repository"
            yield Disagreement(dataset.label, path, "dtype", problem)


def _is_compatible(expected: ArrayDocument, target: ArrayDocument, dim: str) -> bool:
    lengths = [
        [size for name, size in zip(array.dimension_names, array.shape, strict=True) if name != dim]
        for array in (expected, target)
    ]
    return (
        expected.dimension_names == target.dimension_names
        and lengths[0] == lengths[1]
        and expected.dtype == target.dtype
        and _select_encoding(expected) == _select_encoding(target)
    )


def _select_encoding(array: ArrayDocument) -> dict[str, Any]:
    """Return the attributes that affect decoding; NaN is a missing value without an attribute."""
    return {
        name: value
        for name, value in array.attributes.items()
        if name in SEMANTIC_ATTRIBUTES and not (name in MISSING_VALUE_ATTRIBUTES and is_nan(value))
    }


def _describe(array: ArrayDocument) -> str:
    dims = ", ".join(
        f"{name}: {size}" for name, size in zip(array.dimension_names, array.shape, strict=True)
    )
    encoding = "".join(f", {name} {value}" for name, value in _select_encoding(array).items())
    return f"{array.dtype} ({dims}){encoding}"
