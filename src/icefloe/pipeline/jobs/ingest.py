"""Files copied into a repository: parsed, combined, and written in chunks of one's own choice.

First the files become a virtual dataset, as `virtualize` makes it, in a snapshot that no branch
shows. Then its arrays are copied as `rechunk` copies arrays: whole source chunks are read, once,
and whole target chunks written.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.arrays.array_document import CODECS, ArrayDocument
from icefloe.pipeline.arrays.boxes import boxes
from icefloe.pipeline.arrays.nodes import arrays_below, create_array, path_of
from icefloe.pipeline.arrays.number_attributes import MISSING
from icefloe.pipeline.arrays.packed_values import is_nan, unpack_array
from icefloe.pipeline.arrays.stored_types import TypeOptions, convert_like, find_auxiliary_variables
from icefloe.pipeline.files.file_job import FileJob, OnError, Order
from icefloe.pipeline.files.file_verification import find_unreadable_files
from icefloe.pipeline.files.mismatched_chunks import copy_mismatched
from icefloe.pipeline.files.source_record import get_group_attribute, set_group_attribute
from icefloe.pipeline.jobs.rechunk import (
    ArrayCopy,
    box_bytes,
    fitting,
    plan_array_copy,
    shown,
    stage_arrays,
)
from icefloe.pipeline.jobs.virtualize import build_manifests, take_markers
from icefloe.pipeline.report import JobFailedError
from icefloe.pipeline.run import TASK_BYTES, Piece
from icefloe.session import contents
from icefloe.session.commit_policy import NO_POLICY
from icefloe.virtual.agreement import SEMANTIC_ATTRIBUTES, Disagreement
from icefloe.virtual.arrays import VirtualArray
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.writer import append as append_dataset
from icefloe.virtual.writer import write as write_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from icefloe.pipeline.arrays.array_document import ChunkSpec
    from icefloe.pipeline.arrays.boxes import Box
    from icefloe.pipeline.arrays.stored_types import ConvertedArray, ValueTransform
    from icefloe.pipeline.files.file_job import CombinedFiles
    from icefloe.pipeline.report import Plan, Report
    from icefloe.pipeline.run import Bench, JobRun
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.session.commit_policy import CommitPolicy
    from icefloe.spark.engine.progress import Progress
    from icefloe.virtual.arrays import AnyArray

_CONVERTED: Final = "_nc_icefloe_converted"
"""Attribute of a group: its arrays that have other data types than their files, or are packed."""


@dataclass(frozen=True, slots=True)
class _Copied:
    """One array on its way into the repository.

    Parameters
    ----------
    copy
        From the snapshot of references to the array as it will be.
    axis, start, pad
        Where it goes: from step ``start`` along ``axis``. Boxes are laid out as if there were
        ``pad`` steps before the first, so that they begin and end with target chunks.
    steps
        What becomes of values between reading and writing.
    """

    copy: ArrayCopy
    axis: int
    start: int
    pad: int
    steps: tuple[ValueTransform, ...]

    def boxes(self) -> list[tuple[Box, Box]]:
        """Return what to read, and where to write it."""
        plan = self.copy.copy
        if plan is None:
            return []
        if not self.copy.source.shape:
            return [((), ())]
        shape = list(self.copy.source.shape)
        shape[self.axis] += self.pad
        found = []
        for box in boxes(shape, plan.write):
            along = box[self.axis]
            read = slice(max(0, along.start - self.pad), along.stop - self.pad)
            if read.start < read.stop:
                write = slice(read.start + self.start, read.stop + self.start)
                found.append((self._with(box, read), self._with(box, write)))
        return found

    def _with(self, box: Box, along: slice) -> Box:
        return (*box[: self.axis], along, *box[self.axis + 1 :])


def ingest(
    spark: SparkSession | None,
    repository: Repository,
    sources: Any,
    *,
    dims: str | Sequence[str] = "time",
    group: str = "/",
    branch: str = "main",
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
    task_bytes: int = TASK_BYTES,
    transaction_id: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Plan | Report:
    """Copy files into a repository as one dataset, and commit it once.

    Parameters
    ----------
    spark, repository
        Who works (this process alone, if None), and on what. The repository has containers that
        cover the files.
    sources
        Paths, URLs or patterns of them, or a table; see `find_sources`.
    dims, order
        The dimensions along which files are combined, and in which order; see `virtualize`.
    group
        The group that gets the arrays; a new one, or with ``append`` one that has them.
    branch
        Gets the commit.
    append
        Whether to go on where the group ends, along the first of ``dims``; chunks, codecs and
        data types are then those that it has. Files that earlier commits brought into the group
        are left alone.
    chunks, shards
        The shapes of chunks and shards, by dimension name; chunks are the files' own if not given,
        and -1 is a whole dimension.
    codecs
        The chain of codecs of a chunk; Zstandard if not given.
    unpack
        Whether numbers that stand for values by ``scale_factor`` and ``add_offset`` are stored as
        those values, missing ones as NaN; else they stay as they are, with their attributes.
    dtype
        The data type of all variables of numbers but those that describe others (bounds, times),
        or data types by the names of variables. Values that do not fit fail the job. Floating point
        is for values: packed numbers are unpacked for it, and missing ones are NaN. If not given,
        unpacked values have the smallest that fits, and others what files have.
    pack
        How values are packed, by the names of variables, in the words of xarray's encoding, as
        ``{"t2m": {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15}}``; NaN becomes
        ``_FillValue``, which is the smallest number (of unsigned ones the largest) if not given.
        Values that are out of range, or would become that number, fail the job.
    on_error, parse_options
        As for `virtualize`.
    task_bytes
        What a task may hold in memory.
    transaction_id
        The name of this job: if it is on the branch already, nothing is done.
    message, metadata
        What the commit records besides.
    dry_run
        Whether to return the plan, and touch nothing.
    progress
        Hears how far Spark is.

    Raises
    ------
    InvalidInputError, AlreadyExistsError, NodeNotFoundError
        If the arguments do not fit the repository. Nothing was written.
    JobFailedError
        If files are damaged, or do not fit together or what they are appended to: names all of
        them. Nothing was committed.
    """
    names = (dims,) if isinstance(dims, str) else tuple(dims)
    wanted = _Wanted(chunks, shards, codecs, TypeOptions.of(unpack, dtype, pack))
    if append and wanted.types.is_set:
        raise InvalidInputError(
            "what is appended is stored as the group has it: leave dtype and pack out",
            kind=ErrorKind.NOT_ALLOWED,
        )
    job = FileJob(
        name="ingest",
        copies=True,
        spark=spark,
        repository=repository,
        sources=sources,
        dims=names,
        group=group,
        branch=branch,
        append=append,
        order=order,
        on_error=on_error,
        parse_options=parse_options,
        task_bytes=task_bytes,
        transaction_id=transaction_id,
        message=message,
        metadata=metadata,
        progress=progress,
    )

    def write(run: JobRun, found: CombinedFiles) -> CommitPolicy:
        source = f"/source-{uuid.uuid4().hex}"
        copied = _create(run, found, wanted, source, group=group, dim=names[0], append=append)
        scratch = run.scratch()
        write_dataset(found.dataset, scratch, group=source, validate_containers=False)
        _, mismatched = take_markers(scratch, found, source, found.mismatched)
        build_manifests(run, scratch, found, source, names[0])
        copy_mismatched(run, scratch, found, source, mismatched)
        run.chunks = run.bytes_written = 0  # those were references
        try:
            _fill(run, scratch.fork(), copied)
        except JobFailedError as error:
            if error.__cause__ is not None:
                raise  # Spark itself failed, and would again
            files = job.grouped(run, [one.url for one in found.files])
            damaged = find_unreadable_files(run, files, parse_options or {})
            if not damaged:
                raise
            raise JobFailedError(run.name, damaged) from error
        return NO_POLICY

    def misfits(session: Session, dataset: VirtualDataset) -> Iterable[Disagreement]:
        return _differences(session, dataset, group=group, dim=names[0])

    how = "as they are" if chunks is None else f"into chunks of {_spec_shown(chunks)}"
    step = f"copy their chunks {how} to {path_of(group)}"
    return job.do(write, misfits=misfits, last_step=step, dry_run=dry_run)


def _spec_shown(chunks: ChunkSpec) -> str:
    if isinstance(chunks, Mapping):
        return ", ".join(f"{name} {length}" for name, length in chunks.items())
    return " x ".join(map(str, chunks))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """How arrays are to be stored."""

    chunks: ChunkSpec | None
    shards: ChunkSpec | None
    codecs: Sequence[Any] | None
    types: TypeOptions

    def apply_to(self, name: str, source: ArrayDocument, *, is_data: bool) -> ConvertedArray:
        """Return an array as it will be, and what becomes of its values."""
        document, steps = self.types.apply_to(name, source, is_data=is_data)
        is_number = document.dtype.kind in "biufcmM"
        codecs = self.codecs or (CODECS if is_number else None)
        return (
            document.with_chunks(_named(self.chunks, source), _named(self.shards, source), codecs),
            steps,
        )

    def require_known(self, dataset: VirtualDataset, sources: Iterable[str]) -> None:
        """Raise `InvalidInputError` where something is asked for what the files do not have."""
        known = {str(name) for array in dataset.arrays.values() for name in array.dimension_names}
        for what, spec in (("chunks", self.chunks), ("shards", self.shards)):
            for name in spec if isinstance(spec, Mapping) else ():
                if name not in known:
                    raise InvalidInputError(
                        f"{what} names the dimension {name!r}; the files have "
                        f"{', '.join(sorted(known))}",
                        kind=ErrorKind.INVALID_ARRAY_METADATA,
                    )
        variables = {*sources}
        self.types.require_known(variables, dataset.arrays.keys() - variables)


def _named(spec: ChunkSpec | None, source: ArrayDocument) -> ChunkSpec | None:
    """Take what is about an array from lengths by dimension."""
    if not isinstance(spec, Mapping):
        return spec
    found = {
        name: spec[name] for name in source.dimension_names if name is not None and name in spec
    }
    return found or None


def _create(
    run: JobRun,
    found: CombinedFiles,
    wanted: _Wanted,
    source_group: str,
    *,
    group: str,
    dim: str,
    append: bool,
) -> list[_Copied]:
    """Make the arrays in the session of the commit, or let them grow; coordinates get values."""
    loaded: dict[str, AnyArray] = {}
    sources: dict[str, ArrayDocument] = {}
    for path, array in found.dataset.arrays.items():
        if isinstance(array, VirtualArray):
            sources[path] = ArrayDocument(f"{source_group}/{path}", array.metadata)
        else:
            loaded[path] = array
    coordinates = VirtualDataset(found.dataset.sources, found.dataset.groups, loaded)
    base = path_of(group).value.rstrip("/")
    wanted.require_known(found.dataset, sources)
    if append:
        stored = _stored(run.session, group)
        like = _as_stored_in(run.session, group)
        if loaded:
            append_dataset(coordinates, run.session, dim=dim, group=group, is_partial=True)
        return [
            _grow(
                run,
                source,
                stored[path],
                source.dimension_names.index(dim),
                like(path, source, stored[path])[1],
            )
            for path, source in sources.items()
            if dim in source.dimension_names
        ]
    write_dataset(coordinates, run.session, group=group)
    copied, other = [], []
    describes = find_auxiliary_variables(
        {path: one.metadata for path, one in found.dataset.arrays.items()}
    )
    for path, source in sources.items():
        own = found.files[0].mismatched.get(path)
        chunked = source if own is None else _in_chunks_of(own, source)
        target, steps = wanted.apply_to(path, chunked.at(path), is_data=path not in describes)
        if wanted.types.is_set and (steps or target.dtype != source.dtype):
            other.append(path)
        target = target.at(f"{base}/{path}")
        axis = source.dimension_names.index(dim) if dim in source.dimension_names else 0
        create_array(run.session, target)
        copied.append(_Copied(plan_array_copy(run, source, target), axis, 0, 0, steps))
    if other:
        set_group_attribute(run.session, group, _CONVERTED, other)
    return copied


def _in_chunks_of(own: Mapping[str, Any], source: ArrayDocument) -> ArrayDocument:
    """Take the chunks of the first file for those of all, where files differ."""
    chunks = ArrayDocument(source.path, own).chunks
    return source.with_chunks(tuple(map(min, chunks, source.shape)), None, None)


def _grow(
    run: JobRun,
    source: ArrayDocument,
    target: ArrayDocument,
    axis: int,
    steps: tuple[ValueTransform, ...],
) -> _Copied:
    """Let an array grow for what comes behind it."""
    start = target.shape[axis]
    shape = list(target.shape)
    shape[axis] += source.shape[axis]
    grown = target.with_shape(shape)
    contents.set_metadata(run.session, path_of(target.path), grown.to_bytes())
    pad = start % target.write_unit[axis]
    padded = list(source.shape)
    padded[axis] += pad
    # Laid out by the grid of the target, in which the first step is `pad` steps into a chunk.
    plan = plan_array_copy(run, source.with_shape(padded), grown.with_shape(padded)).copy
    if plan is not None:
        plan = replace(plan, shape=source.shape)
        if pad % source.chunks[axis] and plan.stage is None and plan.write[axis] < padded[axis]:
            # Boxes end within source chunks, wherever they end with target chunks: only what is
            # between two passes may be read twice.
            whole = tuple(map(min, source.chunks, source.shape))
            plan = replace(plan, read=whole, stage=whole)
    return _Copied(ArrayCopy(source, grown, plan), axis, start, pad, steps)


def _as_stored_in(
    session: Session, group: str
) -> Callable[[str, ArrayDocument, ArrayDocument], ConvertedArray]:
    """Return what does with an array what was done with the one in the group that it goes to."""
    kept = get_group_attribute(session, group, _CONVERTED)
    converted = kept if isinstance(kept, list) else []

    def as_stored(path: str, source: ArrayDocument, target: ArrayDocument) -> ConvertedArray:
        if path in converted:
            return convert_like(source, target)
        has = [
            {"scale_factor", "add_offset"} & one.document.get("attributes", {}).keys()
            for one in (source, target)
        ]
        if not has[0] or has[1]:
            return source, ()
        found, decoder = unpack_array(source, target.dtype)
        return found, () if decoder is None else (decoder.decode,)

    return as_stored


def _stored(session: Session, group: str) -> dict[str, ArrayDocument]:
    """Return the arrays of a group by their paths in it."""
    base = path_of(group).value.rstrip("/")
    return {one.path.removeprefix(f"{base}/"): one for one in arrays_below(session, group)}


def _differences(
    session: Session, dataset: VirtualDataset, *, group: str, dim: str
) -> Iterator[Disagreement]:
    """Find what keeps a file from being appended: all arrays along a dimension grow, or none."""
    stored = _stored(session, group)
    like = _as_stored_in(session, group)
    missing = [
        path
        for path, array in stored.items()
        if dim in array.dimension_names and path not in dataset.arrays
    ]
    if missing:
        text = f"has no {', '.join(missing)}, unlike the repository"
        yield Disagreement(dataset.shown, "", "variables", text)
    extra = [path for path in dataset.arrays if path not in stored]
    if extra:
        text = f"has {', '.join(extra)}, unlike the repository; drop_variables={extra} helps"
        yield Disagreement(dataset.shown, "", "variables", text)
    for path, array in dataset.arrays.items():
        if path not in stored or not isinstance(array, VirtualArray):
            continue
        source = ArrayDocument(path, array.metadata)
        if not _is_alike(like(path, source, stored[path])[0], stored[path], dim):
            text = f"is {_told(source)}, but {_told(stored[path])} in the repository"
            yield Disagreement(dataset.shown, path, "dtype", text)


def _is_alike(expected: ArrayDocument, target: ArrayDocument, dim: str) -> bool:
    lengths = [
        [size for name, size in zip(one.dimension_names, one.shape, strict=True) if name != dim]
        for one in (expected, target)
    ]
    return (
        expected.dimension_names == target.dimension_names
        and lengths[0] == lengths[1]
        and expected.dtype == target.dtype
        and _meaning(expected) == _meaning(target)
    )


def _meaning(array: ArrayDocument) -> dict[str, Any]:
    """Return the attributes that say what numbers mean; NaN stands for nothing, said or not."""
    attributes = array.document.get("attributes", {})
    return {
        name: value
        for name, value in attributes.items()
        if name in SEMANTIC_ATTRIBUTES and not (name in MISSING and is_nan(value))
    }


def _told(array: ArrayDocument) -> str:
    dims = ", ".join(
        f"{name}: {size}" for name, size in zip(array.dimension_names, array.shape, strict=True)
    )
    meaning = "".join(f", {name} {value}" for name, value in _meaning(array).items())
    return f"{array.dtype} ({dims}){meaning}"


def _fill(run: JobRun, reader: Session, copied: Sequence[_Copied]) -> None:
    staged, stages = stage_arrays(run, [one.copy for one in copied], reader)

    def copy(
        bench: Bench, value: tuple[str, str, Box, Box, bool, tuple[ValueTransform, ...]]
    ) -> None:
        source, target, read, write, is_staged, steps = value
        session = staged if is_staged and staged is not None else reader
        values = np.asarray(bench.source(session, source)[read])
        for step in steps:
            values = step(values)
        into = bench.target(target)
        into[write] = fitting(values, into.dtype)

    pieces = [
        Piece(
            shown(one.copy.target.path, write),
            box_bytes(read, max(one.copy.source.item_bytes, one.copy.target.item_bytes)),
            (
                stages.get(one.copy.source.path, one.copy.source.path),
                one.copy.target.path,
                read,
                write,
                one.copy.source.path in stages,
                one.steps,
            ),
        )
        for one in copied
        for read, write in one.boxes()
    ]
    run.write(run.session, pieces, copy)
