"""The ingest job: copies files into a repository as one dataset, in any chunks.

The files first become a virtual dataset, as `virtualize` creates it, in a snapshot that no branch
refers to. Its arrays are then copied as `rechunk` copies arrays: each source chunk is read once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

from icefloe.pipeline.argument_errors import argument_error, array_error
from icefloe.pipeline.arrays.array_copy import ArrayCopy, copy_arrays, plan_array_copy
from icefloe.pipeline.arrays.array_document import CODECS, ArrayDocument, ChunkSpec
from icefloe.pipeline.arrays.nodes import create_array, parse_path, read_arrays
from icefloe.pipeline.arrays.number_attributes import MISSING_VALUE_ATTRIBUTES
from icefloe.pipeline.arrays.packed_values import is_nan, unpack_array
from icefloe.pipeline.arrays.stored_types import TypeOptions, convert_like, find_auxiliary_variables
from icefloe.pipeline.files.file_job import CombinedFiles, FileJob, FileOptions, OnError, Order
from icefloe.pipeline.files.file_verification import find_unreadable_files
from icefloe.pipeline.files.manifest_building import build_manifests, take_markers
from icefloe.pipeline.files.mismatched_chunks import copy_mismatched
from icefloe.pipeline.files.source_record import get_group_attribute, set_group_attribute
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options
from icefloe.pipeline.report import JobFailedError, Plan, Report
from icefloe.session import Session, contents
from icefloe.session.commit_policy import NO_POLICY, CommitPolicy
from icefloe.virtual.agreement import SEMANTIC_ATTRIBUTES, Disagreement
from icefloe.virtual.arrays import AnyArray, VirtualArray
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.writer import append as append_dataset
from icefloe.virtual.writer import write as write_dataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icefloe.pipeline.arrays.stored_types import ConvertedArray, ValueTransform
    from icefloe.pipeline.run import JobRun
    from icefloe.repository import Repository

_CONVERTED_ATTRIBUTE: Final = "_nc_icefloe_converted"
"""Group attribute that lists arrays whose data type or packing differs from the files."""


def ingest(
    spark: SparkSession | None,
    repository: Repository,
    sources: Any,
    *,
    dims: str | Sequence[str] = "time",
    group: str = "/",
    append: bool = False,
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
        Spark session (None runs in-process) and repository, whose containers cover the files.
    sources, dims, group, order, on_error, parse_options
        As for `virtualize`.
    append
        Whether to extend the group along the first of ``dims``, with its chunks, codecs and data
        types. Files that are already in the group are skipped.
    chunks, shards
        Chunk and shard lengths by dimension name, -1 for a whole dimension; the chunks of the files
        if None.
    codecs
        The codecs of a chunk; Zstandard if None.
    unpack
        Whether to store values packed by ``scale_factor`` and ``add_offset`` as floating point,
        with NaN for missing ones; otherwise packed numbers and their attributes are kept.
    dtype
        The data type of all numeric data variables, except auxiliary ones (bounds, times), or data
        types by variable name. The job fails if values do not fit. Floating point implies
        unpacking. If None, unpacked values get the smallest type that fits, others are unchanged.
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
        If the arguments do not fit the repository. Nothing was written.
    JobFailedError
        If files are damaged, or do not match each other or the group; lists all of them. Nothing
        was committed.
    """
    layout = _Layout(chunks, shards, codecs, TypeOptions.of(unpack, dtype, pack))
    if append and layout.types.is_set:
        raise argument_error(
            "append uses the data types and packing of the group: omit dtype and pack"
        )
    files = FileOptions.of(dims, group, order, on_error, parse_options, append=append)
    options = merge_options(run_options, commit_options, keywords)
    how = "unchanged" if chunks is None else f"into chunks of {_format_spec(chunks)}"
    step = f"copy their chunks {how} to {parse_path(group)}"
    find = partial(_find_mismatches, group=group, dim=files.dim)
    job = FileJob("ingest", spark, repository, sources, files, options, find, step, copies=True)

    def write(run: JobRun, combined: CombinedFiles) -> CommitPolicy:
        source = f"/source-{uuid.uuid4().hex}"
        copies = _create_targets(run, combined, layout, source, files)
        scratch = run.fork_scratch()
        write_dataset(combined.dataset, scratch, group=source, validate_containers=False)
        _, mismatched = take_markers(scratch, combined, source, combined.mismatched)
        build_manifests(run, scratch, combined, source, files.dim)
        copy_mismatched(run, scratch, combined, source, mismatched)
        run.chunks = run.bytes_written = 0  # discard the counts of references
        try:
            copy_arrays(run, copies, scratch.fork())
        except JobFailedError as error:
            if error.__cause__ is not None:
                raise  # Spark itself failed, and would fail again
            tasks = job.group_files(run, [file.url for file in combined.files])
            unreadable = find_unreadable_files(run, tasks, parse_options or {})
            if not unreadable:
                raise
            raise JobFailedError(run.name, unreadable) from error
        return NO_POLICY

    return job.execute(write)


def _format_spec(chunks: ChunkSpec) -> str:
    if isinstance(chunks, Mapping):
        return ", ".join(f"{name} {length}" for name, length in chunks.items())
    return " x ".join(map(str, chunks))


@dataclass(frozen=True, slots=True)
class _Layout:
    """The requested chunks, codecs and data types."""

    chunks: ChunkSpec | None
    shards: ChunkSpec | None
    codecs: Sequence[Any] | None
    types: TypeOptions

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
        """Raise `InvalidInputError` if a dimension or variable is not in the files."""
        dims = {str(name) for array in dataset.arrays.values() for name in array.dimension_names}
        for what, spec in (("chunks", self.chunks), ("shards", self.shards)):
            for name in spec if isinstance(spec, Mapping) else ():
                if name not in dims:
                    raise array_error(
                        f"{what}: unknown dimension {name!r}; available: {', '.join(sorted(dims))}"
                    )
        variables = {*sources}
        self.types.require_known(variables, dataset.arrays.keys() - variables)


def _create_targets(
    run: JobRun, combined: CombinedFiles, layout: _Layout, source_group: str, files: FileOptions
) -> list[ArrayCopy]:
    """Create or extend the arrays in the session of the job; write loaded coordinates."""
    group, dim = files.group, files.dim
    loaded: dict[str, AnyArray] = {}
    sources: dict[str, ArrayDocument] = {}
    for path, array in combined.dataset.arrays.items():
        if isinstance(array, VirtualArray):
            sources[path] = ArrayDocument(f"{source_group}/{path}", array.metadata)
        else:
            loaded[path] = array
    coordinates = VirtualDataset(combined.dataset.sources, combined.dataset.groups, loaded)
    base = parse_path(group).value.rstrip("/")
    layout.require_known(combined.dataset, sources)
    if files.append:
        stored = _read_group(run.session, group)
        convert = _make_converter(run.session, group)
        if loaded:
            append_dataset(coordinates, run.session, dim=dim, group=group, is_partial=True)
        return [
            _extend(
                run,
                source,
                stored[path],
                source.dimension_names.index(dim),
                convert(path, source, stored[path])[1],
            )
            for path, source in sources.items()
            if dim in source.dimension_names
        ]
    write_dataset(coordinates, run.session, group=group)
    copies, converted = [], []
    auxiliary = find_auxiliary_variables(
        {path: array.metadata for path, array in combined.dataset.arrays.items()}
    )
    for path, source in sources.items():
        original = combined.files[0].mismatched.get(path)
        chunked = source if original is None else _with_file_chunks(source, original)
        is_data = path not in auxiliary
        target, transforms = layout.apply_to(path, chunked.with_path(path), is_data=is_data)
        if layout.types.is_set and (transforms or target.dtype != source.dtype):
            converted.append(path)
        target = target.with_path(f"{base}/{path}")
        create_array(run.session, target)
        copies.append(replace(plan_array_copy(run, source, target), transforms=transforms))
    if converted:
        set_group_attribute(run.session, group, _CONVERTED_ATTRIBUTE, converted)
    return copies


def _with_file_chunks(source: ArrayDocument, original: Mapping[str, Any]) -> ArrayDocument:
    """Return the array with the chunk shape of the first file, because files differ."""
    chunks = ArrayDocument(source.path, original).chunks
    return source.with_chunks(tuple(map(min, chunks, source.shape)), None, None)


def _extend(
    run: JobRun,
    source: ArrayDocument,
    target: ArrayDocument,
    axis: int,
    transforms: tuple[ValueTransform, ...],
) -> ArrayCopy:
    """Resize an array, and plan the copy of appended values."""
    start = target.shape[axis]
    shape = list(target.shape)
    shape[axis] += source.shape[axis]
    grown = target.with_shape(shape)
    contents.set_metadata(run.session, parse_path(target.path), grown.to_bytes())
    pad = start % target.write_unit[axis]
    padded = list(source.shape)
    padded[axis] += pad
    # Plan on the target grid, where the first step is `pad` steps into a chunk.
    copy = plan_array_copy(run, source.with_shape(padded), grown.with_shape(padded))
    plan = copy.plan
    if plan is not None:
        plan = replace(plan, shape=source.shape)
        if pad % source.chunks[axis] and plan.stage is None and plan.write[axis] < padded[axis]:
            # Boxes aligned with target chunks end within source chunks: use a stage, because only
            # stage chunks may be read twice.
            chunks = tuple(map(min, source.chunks, source.shape))
            plan = replace(plan, read=chunks, stage=chunks)
    return replace(
        copy,
        source=source,
        target=grown,
        plan=plan,
        axis=axis,
        start=start,
        pad=pad,
        transforms=transforms,
    )


def _make_converter(
    session: Session, group: str
) -> Callable[[str, ArrayDocument, ArrayDocument], ConvertedArray]:
    """Make a function that converts an array like the stored array of the same path."""
    attribute = get_group_attribute(session, group, _CONVERTED_ATTRIBUTE)
    converted = attribute if isinstance(attribute, list) else []

    def convert(path: str, source: ArrayDocument, target: ArrayDocument) -> ConvertedArray:
        if path in converted:
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
    """Find why a file cannot be appended: all arrays along the dimension must grow."""
    stored = _read_group(session, group)
    convert = _make_converter(session, group)
    missing = [
        path
        for path, array in stored.items()
        if dim in array.dimension_names and path not in dataset.arrays
    ]
    if missing:
        text = f"has no {', '.join(missing)}, unlike the repository"
        yield Disagreement(dataset.label, "", "variables", text)
    extra = [path for path in dataset.arrays if path not in stored]
    if extra:
        text = f"has {', '.join(extra)}, unlike the repository: pass drop_variables={extra}"
        yield Disagreement(dataset.label, "", "variables", text)
    for path, array in dataset.arrays.items():
        if path not in stored or not isinstance(array, VirtualArray):
            continue
        source = ArrayDocument(path, array.metadata)
        if not _is_compatible(convert(path, source, stored[path])[0], stored[path], dim):
            text = f"is {_describe(source)}, but {_describe(stored[path])} in the repository"
            yield Disagreement(dataset.label, path, "dtype", text)


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
    """Return the attributes that affect decoding; NaN as missing value is the default."""
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
