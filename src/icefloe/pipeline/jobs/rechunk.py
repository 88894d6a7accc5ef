"""Arrays in other chunks: shapes, shards, codecs or data types, each source chunk read once."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.conflicts import Conflict, ConflictType
from icefloe.errors import ErrorKind, InvalidInputError, RebaseFailedError
from icefloe.pipeline.arrays.boxes import CopyPlan, count_boxes, plan_copy
from icefloe.pipeline.arrays.nodes import (
    arrays_below,
    copy_group,
    create_array,
    path_of,
    require_free,
    share_array,
)
from icefloe.pipeline.report import format_bytes
from icefloe.pipeline.run import TASK_BYTES, JobRun, Piece
from icefloe.session import Session, contents
from icefloe.session.commit_policy import NO_POLICY, CommitPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from icefloe.model.tree import Tree
    from icefloe.pipeline.arrays.array_document import ArrayDocument, ChunkSpec, Shape
    from icefloe.pipeline.arrays.boxes import Box
    from icefloe.pipeline.report import Plan, Report
    from icefloe.pipeline.run import Bench
    from icefloe.repository import Repository
    from icefloe.spark.engine.progress import Progress

_STAGE_CODECS: Final = ({"name": "zstd", "configuration": {"level": 1, "checksum": False}},)


_LONELY: Final = 4
"""One pass is given up for two where each of its boxes would have so many cores to itself."""

_WORTH_TWO_PASSES: Final = 128_000_000
"""Smaller arrays are done before it matters."""


@dataclass(frozen=True, slots=True)
class ArrayCopy:
    """One array that is to be copied into other chunks.

    Parameters
    ----------
    source, target
        The array as it is, and as it will be.
    copy
        How; None where the array has no items.
    """

    source: ArrayDocument
    target: ArrayDocument
    copy: CopyPlan | None

    @property
    def is_in_place(self) -> bool:
        """Whether the new array takes the place of the old one."""
        return self.source.path == self.target.path

    @property
    def stage(self) -> Shape | None:
        """The chunks between two passes, None where one does."""
        return None if self.copy is None else self.copy.stage

    @property
    def first(self) -> list[Box]:
        """The boxes of the first pass; none where one pass does."""
        return [] if self.copy is None or self.copy.stage is None else list(self.copy.first_boxes)

    @property
    def last(self) -> list[Box]:
        """The boxes that are written to the target."""
        return [] if self.copy is None else list(self.copy.second_boxes)

    @property
    def box_bytes(self) -> int:
        """How much memory the largest box takes."""
        if self.copy is None:
            return 0
        return max(prod(self.copy.read), prod(self.copy.write)) * self.source.item_bytes

    def __str__(self) -> str:
        where = "in place" if self.is_in_place else f"into {self.target.path}"
        passes = "two passes" if self.stage else "one pass"
        return (
            f"{self.source.path} {_layout(self.source)} becomes {_layout(self.target)} {where}, "
            f"{format_bytes(self.source.nbytes)} in {passes}"
        )


def rechunk(
    spark: SparkSession | None,
    repository: Repository,
    arrays: str | Sequence[str] | Mapping[str, ChunkSpec],
    chunks: ChunkSpec | None = None,
    *,
    branch: str = "main",
    target: str | None = None,
    shards: ChunkSpec | bool | None = None,
    codecs: Sequence[Any] | None = None,
    dtype: Any = None,
    task_bytes: int = TASK_BYTES,
    transaction_id: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Plan | Report:
    """Cut arrays into other chunks, and commit them once.

    Attributes, dimension names, fill values, codecs and data types stay unless they are what is
    asked to change. Who changes or deletes an array meanwhile that is rechunked in place causes a
    conflict, never a loss; what goes to a ``target`` is the array as it was at the start.

    Parameters
    ----------
    spark, repository
        Who works, and on what; without a Spark session this process does it all.
    arrays
        The path of an array, several, or chunks by path. A group stands for the arrays in it that
        have a dimension which ``chunks`` names; coordinates stay as they are.
    chunks
        The new chunk shape: lengths by dimension (``{"time": 365, "lat": 10}``, the others stay)
        or a tuple; -1 is a whole dimension.
    branch
        Read from, and committed to.
    target
        Where the new array goes, or the new group with all that is in the old one (what is not
        rechunked shares its chunks); in place if not given.
    shards
        Shapes of shards, False for no shards; as they are if not given.
    codecs
        The chain of codecs of a chunk, in place of the one that it has.
    dtype
        Another data type of the same kind; items that do not fit it fail the job.
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
    InvalidInputError, NodeNotFoundError, AlreadyExistsError
        If the arguments do not fit the repository. Nothing was written.
    JobFailedError
        If blocks failed. Nothing was committed.
    RebaseFailedError
        If somebody else changed or deleted an array that was rechunked in place, or made something
        where a new one goes. Nothing was committed.
    """
    run = JobRun.start(
        "rechunk",
        spark,
        repository,
        branch=branch,
        transaction_id=transaction_id,
        task_bytes=task_bytes,
        progress=progress,
    )
    before = run.earlier(dry_run=dry_run)
    if before is not None:
        return before
    wanted = _chosen(run.session, arrays, chunks)
    if target is not None:
        require_free(run.session, target)
    copies = []
    for source, spec in wanted:
        changed = source.with_chunks(spec, shards, codecs)
        if dtype is not None:
            changed = changed.with_dtype(dtype)
        if target is not None:
            changed = changed.at(_moved(source.path, _root(arrays), target))
        elif changed.document == source.document:
            continue  # it is as it should be
        copies.append(plan_array_copy(run, source, changed))
    if dry_run:
        return _plan(run, copies)
    if not copies:
        return run.nothing()
    if target is not None and not isinstance(arrays, Mapping):
        _share_the_rest(run.session, _root(arrays), target, copies)
    for one in copies:
        create_array(run.session, one.target, replaced=one.is_in_place)
    copy_arrays(run, copies)
    policy = _require_replaced(run.session, copies) if target is None else NO_POLICY
    paths = [one.target.path for one in copies]
    return run.commit(
        message or f"rechunked {', '.join(paths[:3])}{' and others' if len(paths) > 3 else ''}",
        about={"arrays": paths},
        metadata=metadata,
        policy=policy,
    )


def plan_array_copy(run: JobRun, source: ArrayDocument, target: ArrayDocument) -> ArrayCopy:
    """Decide how to copy one array; raises where a chunk does not fit into memory."""
    if not source.nbytes:
        return ArrayCopy(source, target, None)
    item = max(source.item_bytes, target.item_bytes)

    def plan(max_bytes: int) -> CopyPlan:
        return plan_copy(
            source.shape,
            item,
            source.chunks,
            target.write_unit,
            max_bytes=max_bytes,
            min_boxes=run.min_boxes(source.nbytes),
        )

    try:
        copy = plan(run.task_bytes)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{source.path}: {error.message} (task_bytes)", kind=error.kind
        ) from error
    if (
        count_boxes(copy.shape, copy.read) * _LONELY <= run.slots
        and source.nbytes > _WORTH_TWO_PASSES
    ):
        # One pass would leave most cores without work: two passes of all of them are sooner done.
        unit = item * max(prod(source.chunks), prod(target.write_unit))
        copy = plan(min(run.task_bytes, max(unit, source.nbytes // run.slots)))
    return ArrayCopy(source, target, copy)


def copy_arrays(run: JobRun, copies: Sequence[ArrayCopy]) -> None:
    """Fill the targets, which are in the session already, with what is in the sources."""
    reader = run.reader()
    staged, stages = stage_arrays(run, copies, reader)

    def copy(bench: Bench, value: tuple[str, str, Box, bool]) -> None:
        source, target, box, is_staged = value
        session = staged if is_staged and staged is not None else reader
        into = bench.target(target)
        into[box] = fitting(bench.source(session, source)[box], into.dtype)

    pieces = [
        Piece(
            shown(one.target.path, box),
            box_bytes(box, one.source.item_bytes),
            (
                stages.get(one.source.path, one.source.path),
                one.target.path,
                box,
                one.source.path in stages,
            ),
        )
        for one in copies
        for box in one.last
    ]
    run.write(run.session, pieces, copy)


def fitting(values: Any, dtype: np.dtype[Any]) -> Any:
    """Convert to another data type; what does not fit it is an error."""
    found = np.asarray(values)
    if found.dtype == dtype:
        return found
    with np.errstate(over="ignore", invalid="ignore"):
        converted = found.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted.astype(found.dtype), found):
        raise InvalidInputError(
            f"it holds numbers that do not fit {dtype}, between {found.min()} and {found.max()}",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    # Texts that are cut off, and times between two of the coarser unit.
    if dtype.kind in "SUmM" and not np.array_equal(
        converted.astype(found.dtype), found, equal_nan=dtype.kind in "mM"
    ):
        raise InvalidInputError(
            f"it holds items of {found.dtype} that do not fit {dtype}",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    if dtype.kind in "fc" and not np.array_equal(np.isfinite(converted), np.isfinite(found)):
        raise InvalidInputError(
            f"it holds numbers that are too large for {dtype}",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    return converted


def shown(path: str, box: Box) -> str:
    """Name a block of an array."""
    return f"{path} [{', '.join(f'{part.start}:{part.stop}' for part in box)}]"


def box_bytes(box: Box, item_bytes: int) -> int:
    """Tell how much memory a box takes."""
    return int(prod(part.stop - part.start for part in box)) * item_bytes


def stage_arrays(
    run: JobRun, copies: Sequence[ArrayCopy], reader: Session
) -> tuple[Session | None, dict[str, str]]:
    """Do the first pass of arrays that need two: into arrays that no branch will ever show.

    Their snapshot is written so that executors can read it, and nothing refers to it: like what
    a failed attempt leaves, it is garbage that collection finds.
    """
    needed = [one for one in copies if one.stage is not None]
    if not needed:
        return None, {}
    scratch = run.scratch()
    folder = f"/stage-{uuid.uuid4().hex}"
    stages: dict[str, str] = {}
    for number, one in enumerate(needed):
        stages[one.source.path] = f"{folder}/{number}"
        create_array(scratch, stage_document(one).at(stages[one.source.path]))

    def stage(bench: Bench, value: tuple[str, str, Box]) -> None:
        source, target, box = value
        bench.target(target)[box] = bench.source(reader, source)[box]

    pieces = [
        Piece(
            shown(one.source.path, box),
            box_bytes(box, one.source.item_bytes),
            (one.source.path, stages[one.source.path], box),
        )
        for one in needed
        for box in one.first
    ]
    run.write(scratch, pieces, stage)
    return scratch.fork(), stages


def stage_document(one: ArrayCopy) -> ArrayDocument:
    """Return the metadata of what lies between two passes.

    It keeps how items become bytes, and compresses fast; filters, which may lose something, go.
    """
    chain = one.source.with_chunks(shards=False).document["codecs"]
    serializers = [
        codec for codec in chain if codec["name"] in {"bytes", "vlen-utf8", "vlen-bytes"}
    ]
    codecs = [*serializers, *_STAGE_CODECS] if serializers else list(chain)
    return one.source.with_chunks(one.stage, shards=False, codecs=codecs)


def _require_replaced(session: Session, copies: Sequence[ArrayCopy]) -> CommitPolicy:
    """Refuse to commit arrays in place of others that were deleted during the job.

    A rebase alone would accept it: deleting a deleted array conflicts with nothing. But the new
    arrays are made of data that another writer chose not to keep.
    """
    paths = {path_of(copy.source.path) for copy in copies}
    snapshot = contents.base_snapshot(session)
    replaced = {node.path: node.id for node in snapshot.nodes if node.path in paths}

    def check(base: Tree) -> None:
        for path, node_id in replaced.items():
            if node_id not in base.by_id:
                raise RebaseFailedError(
                    f"{path} was deleted by another commit during the job, and stays deleted",
                    snapshot=str(base.snapshot.id),
                    conflicts=[Conflict(ConflictType.ChunksUpdatedInDeletedArray, str(path))],
                )

    return CommitPolicy(check_rebased=check)


def _plan(run: JobRun, copies: Sequence[ArrayCopy]) -> Plan:
    total = sum(one.source.nbytes for one in copies)
    staged = sum(one.source.nbytes for one in copies if one.stage)
    tasks = 0
    for passes in ([one.first for one in copies], [one.last for one in copies]):
        pieces = [
            Piece("", box_bytes(box, one.source.item_bytes), None)
            for one, found in zip(copies, passes, strict=True)
            for box in found
        ]
        tasks += len(run.grouped(pieces))
    return run.plan(
        [str(one) for one in copies] or ["nothing: all chunks are as they should be"],
        tasks or len(copies),
        bytes_read=total + staged,
        bytes_written=total + staged,
        task_bytes=max((one.box_bytes for one in copies), default=0),
    )


def _chosen(
    session: Session,
    arrays: str | Sequence[str] | Mapping[str, ChunkSpec],
    chunks: ChunkSpec | None,
) -> list[tuple[ArrayDocument, ChunkSpec | None]]:
    if isinstance(arrays, Mapping):
        if chunks is not None:
            raise InvalidInputError(
                "arrays says the chunks of each already: leave chunks out",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        wanted = list(arrays.items())
    else:
        paths = [arrays] if isinstance(arrays, str) else list(arrays)
        wanted = [(path, chunks) for path in paths]  # type: ignore[misc]
    found: dict[str, tuple[ArrayDocument, ChunkSpec | None]] = {}
    for path, spec in wanted:
        node = contents.require_node(session, path_of(path))
        if node.is_array:
            found[node.path.value] = arrays_below(session, path)[0], spec
            continue
        for one, own in _of_group(session, node.path.value, spec):
            found.setdefault(one.path, (one, own))
    return list(found.values())


def _of_group(
    session: Session, group: str, spec: ChunkSpec | None
) -> list[tuple[ArrayDocument, ChunkSpec | None]]:
    data = [one for one in arrays_below(session, group) if not is_coordinate(one)]
    if spec is None:
        return [(one, None) for one in data]
    if not isinstance(spec, Mapping):
        raise InvalidInputError(
            f"{group} is a group, whose arrays differ: give chunks by the names of dimensions, or "
            "name the arrays",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    for name in spec:
        if not any(name in one.dimension_names for one in data):
            raise InvalidInputError(
                f"no array in {group} has the dimension {name!r}",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
    own = [
        (
            one,
            {name: spec[name] for name in one.dimension_names if name is not None and name in spec},
        )
        for one in data
    ]
    return [(one, mine) for one, mine in own if mine]


def is_coordinate(array: ArrayDocument) -> bool:
    """Whether an array holds the labels of a dimension: its only one, which has its name."""
    return array.dimension_names == (path_of(array.path).name,)


def _root(arrays: str | Sequence[str] | Mapping[str, Any]) -> str:
    if isinstance(arrays, str):
        return path_of(arrays).value
    raise InvalidInputError(
        "a target goes with one array or one group: run the job for each, or work in place",
        kind=ErrorKind.INVALID_PATH,
    )


def _moved(path: str, root: str, target: str) -> str:
    return path_of(target + "/" + path[len(root.rstrip("/")) :].lstrip("/")).value


def _share_the_rest(session: Session, root: str, target: str, copies: Sequence[ArrayCopy]) -> None:
    if contents.require_node(session, path_of(root)).is_array:
        return
    rechunked = {one.source.path for one in copies}
    others = [one for one in arrays_below(session, root) if one.path not in rechunked]
    copy_group(session, root, target)
    for one in others:
        share_array(session, one, _moved(one.path, root, target))


def _layout(array: ArrayDocument) -> str:
    text = f"{'x'.join(map(str, array.chunks)) or 'one chunk'} {array.dtype}"
    return text + (f" in shards of {'x'.join(map(str, array.shards))}" if array.shards else "")
