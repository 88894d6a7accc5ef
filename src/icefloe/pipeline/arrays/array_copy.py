"""Copies arrays into other chunks on executors, in one or two passes.

The intermediate array of two passes is in a snapshot that no branch refers to; garbage collection
deletes it, like the objects of failed tasks.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.pipeline.arrays.boxes import (
    CopyPlan,
    count_boxes,
    format_box,
    get_box_bytes,
    iter_boxes,
    plan_copy,
)
from icefloe.pipeline.arrays.casting import cast_values
from icefloe.pipeline.arrays.nodes import create_array
from icefloe.pipeline.run import JobRun, TaskWriter, WorkUnit, writing_repository

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.pipeline.arrays.array_document import ArrayDocument, Shape
    from icefloe.pipeline.arrays.boxes import Box
    from icefloe.pipeline.arrays.stored_types import ValueTransform
    from icefloe.session import Session

_StageKey: TypeAlias = "tuple[str, Shape | None]"
"""The path of a source, and the intermediate chunk shape."""

STAGE_CODECS: Final = ({"name": "zstd", "configuration": {"level": 1, "checksum": False}},)
"""Fast compression of intermediate chunks, after the serializer."""

_MIN_CORES_PER_BOX: Final = 4
"""With this many cores per box of a single pass, two passes are faster."""

_MIN_STAGED_BYTES: Final = 128_000_000
"""Smaller arrays are copied in one pass if possible."""


@dataclass(frozen=True, slots=True)
class ArrayCopy:
    """The copy of an array into other chunks; ``plan`` is None if the array is empty.

    Values are written from index ``start`` along ``axis``. Boxes are laid out as if the source had
    ``pad`` more steps at its start, so that they align with target chunks. Only ``length`` steps
    from index ``offset`` of the source are copied, or all if ``length`` is None. ``transforms`` are
    applied to values between reading and writing.
    """

    source: ArrayDocument
    target: ArrayDocument
    plan: CopyPlan | None
    axis: int = 0
    start: int = 0
    pad: int = 0
    transforms: tuple[ValueTransform, ...] = ()
    offset: int = 0
    length: int | None = None

    @property
    def stage(self) -> Shape | None:
        """The intermediate chunk shape, None with one pass."""
        return None if self.plan is None else self.plan.stage

    @property
    def item_bytes(self) -> int:
        """The in-memory size of an item: the larger of source and target."""
        return max(self.source.item_bytes, self.target.item_bytes)

    @property
    def max_box_bytes(self) -> int:
        """The memory of the largest box."""
        if self.plan is None:
            return 0
        return max(prod(self.plan.read_box), prod(self.plan.write_box)) * self.item_bytes

    @property
    def first_boxes(self) -> list[Box]:
        """The boxes of the first of two passes; empty with one pass."""
        return [] if self.plan is None or self.plan.stage is None else list(self.plan.first_boxes)

    @property
    def last_boxes(self) -> list[tuple[Box, Box]]:
        """The boxes of the last pass, as (read, write) pairs."""
        if self.plan is None:
            return []
        if not self.start and not self.pad and self.length is None:
            return [(box, box) for box in self.plan.last_boxes]
        shape = list(self.source.shape)
        shape[self.axis] = self.pad + (shape[self.axis] if self.length is None else self.length)
        pairs = []
        for box in iter_boxes(shape, self.plan.write_box):
            span = box[self.axis]
            read = slice(max(0, span.start - self.pad), span.stop - self.pad)
            if read.start < read.stop:
                write = slice(read.start + self.start, read.stop + self.start)
                read = slice(read.start + self.offset, read.stop + self.offset)
                pairs.append((self._replace(box, read), self._replace(box, write)))
        return pairs

    def _replace(self, box: Box, span: slice) -> Box:
        return (*box[: self.axis], span, *box[self.axis + 1 :])


@dataclass(frozen=True, slots=True)
class _BoxCopy:
    source: str
    is_staged: bool
    target: str
    read: Box
    write: Box
    transforms: tuple[ValueTransform, ...] = ()


def plan_boxes(
    run: JobRun,
    label: str,
    shape: Sequence[int],
    item_bytes: int,
    chunks: tuple[Shape, Shape],
    *,
    total_bytes: int,
) -> CopyPlan:
    """Plan a copy from source to target ``chunks`` within the task memory; see `plan_copy`.

    Error messages begin with ``label``.
    """
    max_bytes, min_boxes = run.task_bytes, run.choose_min_boxes(total_bytes)
    try:
        return plan_copy(shape, item_bytes, *chunks, max_bytes=max_bytes, min_boxes=min_boxes)
    except InvalidInputError as error:
        message = f"{label}: {error.message} (task_bytes)"
        raise InvalidInputError(message, kind=error.kind) from error


def plan_array_copy(run: JobRun, source: ArrayDocument, target: ArrayDocument) -> ArrayCopy:
    """Plan the copy of an array; raise `InvalidInputError` if a chunk exceeds the task memory."""
    if not source.nbytes:
        return ArrayCopy(source, target, None)
    item_bytes = max(source.item_bytes, target.item_bytes)

    shape, chunks = source.shape, (source.chunks, target.write_unit)
    plan = plan_boxes(run, source.path, shape, item_bytes, chunks, total_bytes=source.nbytes)
    is_idle = count_boxes(plan.shape, plan.read_box) * _MIN_CORES_PER_BOX <= run.slots
    if is_idle and source.nbytes > _MIN_STAGED_BYTES:
        # One pass would leave most cores idle: two passes on all cores are faster.
        unit = item_bytes * max(prod(source.chunks), prod(target.write_unit))
        max_bytes = min(run.task_bytes, max(unit, source.nbytes // run.slots))
        min_boxes = run.choose_min_boxes(source.nbytes)
        plan = plan_copy(shape, item_bytes, *chunks, max_bytes=max_bytes, min_boxes=min_boxes)
    return ArrayCopy(source, target, plan)


def copy_arrays(run: JobRun, copies: Sequence[ArrayCopy], reader: Session) -> None:
    """Copy values from arrays of ``reader`` into existing arrays of the job's session."""
    stage_session, stages = _stage_arrays(run, copies, reader)

    def copy_box(writer: TaskWriter, box: _BoxCopy) -> None:
        session = stage_session if box.is_staged and stage_session is not None else reader
        values = np.asarray(writer.open_source(session, box.source)[box.read])
        for transform in box.transforms:
            values = transform(values)
        target = writer.open_target(box.target)
        cast = cast_values(values, target.dtype)
        with writing_repository():
            target[box.write] = cast

    units = []
    for copy in copies:
        path, target, key = copy.source.path, copy.target.path, _get_stage_key(copy)
        for read, write in copy.last_boxes:
            value = _BoxCopy(
                stages.get(key, path), key in stages, target, read, write, copy.transforms
            )
            size = get_box_bytes(read, copy.item_bytes)
            units.append(WorkUnit(format_box(target, write), size, value))
    run.write_units(run.session, units, copy_box)


def build_stage_document(copy: ArrayCopy) -> ArrayDocument:
    """Build the metadata of the intermediate array.

    It has the serializer of the source and fast compression, but no filters: they may be lossy.
    """
    chain = copy.source.with_chunks(shards=False).document["codecs"]
    serializers = [
        codec for codec in chain if codec["name"] in {"bytes", "vlen-utf8", "vlen-bytes"}
    ]
    codecs = [*serializers, *STAGE_CODECS] if serializers else list(chain)
    return copy.source.with_chunks(copy.stage, shards=False, codecs=codecs)


def _get_stage_key(copy: ArrayCopy) -> _StageKey:
    return copy.source.path, copy.stage


def _stage_arrays(
    run: JobRun, copies: Sequence[ArrayCopy], reader: Session
) -> tuple[Session | None, dict[_StageKey, str]]:
    """Run the first of two passes; return a session with the stages, and their paths.

    Copies of parts of an array into the same intermediate chunks share a stage.
    """
    staged_copies = [copy for copy in copies if copy.stage is not None]
    if not staged_copies:
        return None, {}
    scratch = run.fork_scratch()
    folder = f"/stage-{uuid.uuid4().hex}"
    stages: dict[_StageKey, str] = {}
    units = []
    for number, copy in enumerate(staged_copies):
        path, key = copy.source.path, _get_stage_key(copy)
        if key in stages:
            continue
        stages[key] = f"{folder}/{number}"
        create_array(scratch, build_stage_document(copy).with_path(stages[key]))
        for box in copy.first_boxes:
            value = (path, stages[key], box)
            size = get_box_bytes(box, copy.source.item_bytes)
            units.append(WorkUnit(format_box(path, box), size, value))

    def stage_box(writer: TaskWriter, value: tuple[str, str, Box]) -> None:
        source, target, box = value
        values = writer.open_source(reader, source)[box]
        with writing_repository():
            writer.open_target(target)[box] = values

    run.write_units(scratch, units, stage_box)
    return scratch.fork(), stages
