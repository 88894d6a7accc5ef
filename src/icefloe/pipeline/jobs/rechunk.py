"""The rechunk job: rewrites arrays with other chunks, shards, codecs or data types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from icefloe.conflicts import Conflict, ConflictType
from icefloe.errors import ErrorKind, InvalidInputError, RebaseFailedError
from icefloe.pipeline.argument_errors import array_error
from icefloe.pipeline.arrays import nodes
from icefloe.pipeline.arrays.array_copy import ArrayCopy, copy_arrays, plan_array_copy
from icefloe.pipeline.arrays.boxes import get_box_bytes
from icefloe.pipeline.arrays.nodes import parse_path, read_arrays
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options
from icefloe.pipeline.report import Plan, Report, format_bytes
from icefloe.pipeline.run import JobRun, WorkUnit
from icefloe.session import Session, contents
from icefloe.session.commit_policy import NO_POLICY, CommitPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icefloe.model.tree import Tree
    from icefloe.pipeline.arrays.array_document import ArrayDocument, ChunkSpec
    from icefloe.pipeline.opening import RepositoryOrPlace


def rechunk(
    spark: SparkSession | None,
    repository: RepositoryOrPlace,
    arrays: str | Sequence[str] | Mapping[str, ChunkSpec],
    chunks: ChunkSpec | None = None,
    *,
    target: str | None = None,
    shards: ChunkSpec | bool | None = None,
    codecs: Sequence[Any] | None = None,
    dtype: Any = None,
    run_options: RunOptions | None = None,
    commit_options: CommitOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> Plan | Report:
    """Rechunk arrays, and commit once. Each source chunk is read once.

    Attributes, dimension names, fill values, codecs and data types are kept unless a parameter
    changes them. A concurrent change of an array that is rechunked in place is a conflict; with
    ``target``, the array is copied as it was when the job started.

    Parameters
    ----------
    spark, repository
        Spark session (None runs in-process) and repository, or its directory or URL.
    arrays
        The path of an array or group, several paths, or a mapping of paths to chunks. A group
        selects its arrays that have a dimension in ``chunks`` (all arrays if None), except
        dimension coordinates.
    chunks
        The new chunk shape: lengths by dimension (``{"time": 365, "lat": 10}``, others are kept)
        or a tuple; -1 is the length of the dimension. Unchanged if None.
    target
        The path of a new array, or of a new group that also gets the other nodes of the old one
        (arrays that are not rechunked share their chunks); in place if None.
    shards
        The shard shape, False for no sharding; unchanged if None.
    codecs
        The codecs of a chunk; unchanged if None.
    dtype
        Another data type that NumPy's ``same_kind`` casting allows; the job fails if a value does
        not fit.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Raises
    ------
    InvalidInputError, NodeNotFoundError, AlreadyExistsError
        If the arguments do not fit the repository. Nothing was written.
    JobFailedError
        If parts of an array could not be copied. Nothing was committed.
    RebaseFailedError
        If a concurrent commit changed or deleted an array rechunked in place, or created a node
        at the target. Nothing was committed.
    """
    options = merge_options(run_options, commit_options, keywords)
    run = JobRun.start("rechunk", spark, repository, options)
    if (earlier := run.find_earlier_result()) is not None:
        return earlier
    selected = _select_arrays(run.session, arrays, chunks)
    if target is not None:
        nodes.require_free(run.session, target)
    copies = []
    for source, spec in selected:
        result = source.with_chunks(spec, shards, codecs)
        if dtype is not None:
            result = result.with_dtype(dtype)
        if target is not None:
            result = result.with_path(_relocate(source.path, _require_one_path(arrays), target))
        elif result.document == source.document:
            continue
        copies.append(plan_array_copy(run, source, result))
    if run.dry_run:
        return _plan(run, copies)
    if not copies:
        return run.report_nothing()
    if target is not None:
        _copy_other_nodes(run.session, _require_one_path(arrays), target, copies)
    for copy in copies:
        nodes.create_array(run.session, copy.target, replace=target is None)
    copy_arrays(run, copies, run.open_reader())
    policy = _make_deletion_policy(run.session, copies) if target is None else NO_POLICY
    paths = [copy.target.path for copy in copies]
    return run.commit(
        f"rechunked {', '.join(paths[:3])}{' and others' if len(paths) > 3 else ''}",
        about={"arrays": paths},
        policy=policy,
    )


def _make_deletion_policy(session: Session, copies: Sequence[ArrayCopy]) -> CommitPolicy:
    """Make a policy that rejects the commit if a rechunked array was deleted during the job.

    A rebase alone would succeed, because deleting a deleted array is not a conflict, and the
    commit would restore data that another writer deleted.
    """
    paths = {parse_path(copy.source.path) for copy in copies}
    snapshot = contents.get_base_snapshot(session)
    old_ids = {node.path: node.id for node in snapshot.nodes if node.path in paths}

    def require_not_deleted(base: Tree) -> None:
        for path, node_id in old_ids.items():
            if node_id not in base.by_id:
                raise RebaseFailedError(
                    f"{path} was deleted by another commit during the job, and stays deleted",
                    snapshot=str(base.snapshot.id),
                    conflicts=[Conflict(ConflictType.ChunksUpdatedInDeletedArray, str(path))],
                )

    return CommitPolicy(check_rebased=require_not_deleted)


def _plan(run: JobRun, copies: Sequence[ArrayCopy]) -> Plan:
    total_bytes = sum(copy.source.nbytes for copy in copies)
    staged_bytes = sum(copy.source.nbytes for copy in copies if copy.stage)
    first_pass = [(copy, box) for copy in copies for box in copy.first_boxes]
    last_pass = [(copy, box) for copy in copies for box, _ in copy.last_boxes]
    num_tasks = 0
    for boxes in (first_pass, last_pass):
        units = [WorkUnit("", get_box_bytes(box, copy.item_bytes), None) for copy, box in boxes]
        num_tasks += len(run.group_units(units))
    return run.plan(
        [_describe(copy) for copy in copies] or ["nothing to do: all chunks are as requested"],
        num_tasks or len(copies),
        bytes_read=total_bytes + staged_bytes,
        bytes_written=total_bytes + staged_bytes,
        task_bytes=max((copy.max_box_bytes for copy in copies), default=0),
    )


def _describe(copy: ArrayCopy) -> str:
    is_in_place = copy.source.path == copy.target.path
    return (
        f"{copy.source.path} {_format_layout(copy.source)} becomes {_format_layout(copy.target)} "
        f"{'in place' if is_in_place else f'at {copy.target.path}'}, "
        f"{format_bytes(copy.source.nbytes)} in {'two passes' if copy.stage else 'one pass'}"
    )


def _select_arrays(
    session: Session,
    arrays: str | Sequence[str] | Mapping[str, ChunkSpec],
    chunks: ChunkSpec | None,
) -> list[tuple[ArrayDocument, ChunkSpec | None]]:
    specs: list[tuple[str, ChunkSpec | None]]
    if isinstance(arrays, Mapping):
        if chunks is not None:
            raise array_error("arrays already has the chunks of each array: omit chunks")
        specs = list(arrays.items())
    else:
        specs = [(path, chunks) for path in ([arrays] if isinstance(arrays, str) else arrays)]
    selected: dict[str, tuple[ArrayDocument, ChunkSpec | None]] = {}
    for path, spec in specs:
        node = contents.require_node(session, parse_path(path))
        if node.is_array:
            selected[node.path.value] = read_arrays(session, path)[0], spec
            continue
        for array, lengths in _select_in_group(session, node.path.value, spec):
            # The path of an array takes precedence over its group.
            selected.setdefault(array.path, (array, lengths))
    return list(selected.values())


def _select_in_group(
    session: Session, group: str, spec: ChunkSpec | None
) -> list[tuple[ArrayDocument, ChunkSpec | None]]:
    arrays = [array for array in read_arrays(session, group) if not array.is_coordinate]
    if spec is None:
        return [(array, None) for array in arrays]
    if not isinstance(spec, Mapping):
        raise array_error(
            f"{group} is a group: pass chunks by dimension name, or the paths of its arrays "
            "instead of the group"
        )
    for name in spec:
        if not any(name in array.dimension_names for array in arrays):
            raise array_error(f"no array in {group} has the dimension {name!r}")
    return [(array, lengths) for array in arrays if (lengths := array.select_lengths(spec))]


def _require_one_path(arrays: str | Sequence[str] | Mapping[str, Any]) -> str:
    if isinstance(arrays, str):
        return parse_path(arrays).value
    raise InvalidInputError(
        "with target, pass the path of one array or one group: run the job for each path, or omit "
        "target",
        kind=ErrorKind.INVALID_PATH,
    )


def _relocate(path: str, root: str, target: str) -> str:
    return parse_path(target + "/" + path[len(root.rstrip("/")) :].lstrip("/")).value


def _copy_other_nodes(
    session: Session, root: str, target: str, copies: Sequence[ArrayCopy]
) -> None:
    """Copy the subgroups of a group, and share the chunks of arrays that are not rechunked."""
    if contents.require_node(session, parse_path(root)).is_array:
        return
    rechunked = {copy.source.path for copy in copies}
    others = [array for array in read_arrays(session, root) if array.path not in rechunked]
    nodes.copy_group(session, root, target)
    for array in others:
        nodes.share_array(session, array, _relocate(array.path, root, target))


def _format_layout(array: ArrayDocument) -> str:
    text = f"{'x'.join(map(str, array.chunks)) or 'one chunk'} {array.dtype}"
    return text + (f" in shards of {'x'.join(map(str, array.shards))}" if array.shards else "")
