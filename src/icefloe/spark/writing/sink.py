"""Rows into a repository, exactly once; knows nothing of Spark.

Two ways lead to a commit. Where labels are known beforehand, tasks write the chunks of their own
blocks through a fork, and answer with change sets (`WriteJob`). Where they are not, tasks put rows
aside in the repository, in files that nothing refers to, and whoever commits takes them from there
(`put_aside`, `commit_rows`): for what fits into the memory of one process, such as a micro-batch.
Rows that nobody routed go both ways: blocks that a task has whole are its own, and what it has of
others is put aside, because the rest of them may be anywhere.

Either way an attempt that failed, or that ran twice, leaves files under random names that no
snapshot has: garbage for collection, which nobody deletes before, because nobody can know whether
another attempt, or a commit whose answer was lost, needs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icefloe.errors import ConflictError
from icefloe.model.chunk_payload import ChunkRef
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.model.ids import ChunkId
from icefloe.session import contents
from icefloe.session.exactly_once import commit_once, find_committed
from icefloe.session.parallel_write import ForkPoint, copy_changes, session_at, task_changes
from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.writing.write_grid import BLOCK_COLUMN, distinct
from icefloe.spark.writing.write_planning import plan_write, prepare_write
from icefloe.store.open_array import OpenArrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import zarr
    from numpy.typing import NDArray

    from icefloe.repository import Repository
    from icefloe.session import ForkSession, Session
    from icefloe.session.connection import Connection
    from icefloe.session.exactly_once import Committed, JobId
    from icefloe.session.parallel_write import ChangeSet
    from icefloe.spark.writing.write_grid import Grid
    from icefloe.spark.writing.write_options import WriteOptions
    from icefloe.spark.writing.write_plan import WritePlan

_FILE_BYTES: Final = 64 << 20
"""So much is put aside in one file."""

_MAX_ASIDE_BYTES: Final = 4 << 30
"""So much of it one process takes into memory, before compression."""

_TRIES: Final = 20
_NO_BLOCK: Final = -2
_FRIENDLY: Final = "icefloe.spark.write(df, …) brings rows to where they belong"


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did.

    Parameters
    ----------
    snapshot_id
        Its commit; None if there was nothing to write, or the commit was made before and has
        expired since.
    is_new
        Whether the commit was made now, rather than found.
    rows
        How many rows were written now.
    """

    snapshot_id: str | None
    is_new: bool
    rows: int = 0

    @classmethod
    def of(cls, made: Committed, rows: int) -> Written:
        """Tell of a commit."""
        return cls(made.snapshot_id, made.is_new, rows if made.is_new else 0)


@dataclass(frozen=True, slots=True)
class Part:
    """What one task wrote: references, and nothing that is a secret.

    Parameters
    ----------
    base
        The snapshot that the write started from.
    changes
        The chunks that it wrote.
    blocks
        The blocks that these are of.
    rows
        How many rows these have.
    aside
        Its rows of other blocks.
    """

    base: str
    changes: ChangeSet
    blocks: tuple[int, ...]
    rows: int
    aside: Aside | None = None


@dataclass(frozen=True, slots=True)
class Aside:
    """Rows that one task put aside."""

    files: tuple[ChunkRef, ...]
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class WriteJob:
    """A write whose labels are known: pickles, with the credentials of its repository inside.

    Parameters
    ----------
    repository
        As it is open for this write: small chunks are packed.
    options
        What was asked for.
    kind
        What it does, for the record.
    point
        Where tasks fork from, with the nodes and labels of the write.
    prepared
        These nodes and labels, as changes of the base.
    grid
        Where rows go.
    """

    repository: Repository
    options: WriteOptions
    kind: str
    point: ForkPoint
    prepared: ChangeSet
    grid: Grid

    @classmethod
    def start(
        cls,
        repository: Repository,
        session: Session,
        options: WriteOptions,
        intent: WritePlan,
        grid: Grid,
    ) -> WriteJob:
        """Begin with a session that `prepare_write` has made nodes and labels in."""
        point = ForkPoint.of(session)
        return cls(repository, options, intent.kind, point, copy_changes(session), grid)

    def write_routed(self, batches: Iterable[pa.RecordBatch]) -> Part:
        """Write rows that come block after block, as `route` sorted them; one block in memory."""
        fork = self.point.fork()
        arrays = OpenArrays(fork.store)
        blocks: list[int] = []
        rows = 0
        for block, table in _by_block(batches):
            self.grid.write_block(block, table, arrays)
            blocks.append(block)
            rows += len(table)
        return self._part(fork, blocks, rows)

    def write_unrouted(self, batches: Iterable[pa.RecordBatch]) -> Part:
        """Write rows in any order, those of the task all at once.

        Only blocks of which it has every cell; the others' rows it puts aside.
        """
        fork = self.point.fork()
        listed = [batch for batch in batches if len(batch)]
        if not listed:
            return self._part(fork, [], 0)
        table = pa.Table.from_batches(listed)
        is_whole = self._is_in_whole_block(self.grid.blocks(self.grid.positions(table)))
        whole = table.filter(pa.array(is_whole))
        rest = table.filter(pa.array(~is_whole))
        blocks = write_table(self.grid, whole, OpenArrays(fork.store)) if len(whole) else []
        aside = put_aside(self.point.connection, rest.to_batches()) if len(rest) else None
        return self._part(fork, blocks, len(whole), aside)

    def route(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Tell for each row in which block it is."""
        for batch in batches:
            yield batch.append_column(BLOCK_COLUMN, pa.array(self.grid.route(batch)))

    def commit(self, parts: Sequence[Part], job: JobId | None) -> Written:
        """Commit what tasks wrote, on top of the snapshot that the write started from.

        What others committed since is rebased over; a conflict is an error, never overwritten.

        Raises
        ------
        InvalidInputError
            If cells come twice, or are missing that must not be; or if tasks put more rows aside
            than one process takes.
        RebaseFailedError
            If others changed the same chunks or nodes. Nothing was committed.
        """
        if job is not None:
            found = find_committed(self.repository, self.options.branch, job)
            if found is not None:
                return Written.of(found, 0)
        for part in parts:
            if part.base != str(self.point.base_id):
                raise invalid_input(
                    f"a task wrote for snapshot {part.base}, and this write started from "
                    f"{self.point.base_id}: nothing was committed; write again"
                )
        blocks = np.array([block for part in parts for block in part.blocks], np.int64)
        numbers, counts = np.unique(blocks, return_counts=True)
        if (counts > 1).any():
            box = self.grid.box(int(numbers[counts > 1][0]))
            where = ", ".join(
                f"{one.name} {one.labels[start].as_py()!s} to {one.labels[stop - 1].as_py()!s}"
                for one, (start, stop) in zip(self.grid.dims, box, strict=True)
            )
            raise invalid_input(
                f"cells come more than once, such as all of {where}; nothing was committed: "
                f"aggregate the rows, or df.dropDuplicates({[one.name for one in self.grid.dims]})"
            )
        asides = [part.aside for part in parts if part.aside is not None]
        rows = sum(part.rows for part in parts) + sum(aside.rows for aside in asides)
        _require_fitting_memory(asides)
        session = session_at(
            self.point.connection, self.point.base_id, self.options.branch, self.prepared.copy()
        )
        self.point.merge(session, (part.changes for part in parts))
        written = set(numbers.tolist())
        if asides:
            written |= self._write_asides(session, asides, numbers)
        # After those that come twice were found: their number tells nothing of what is missing.
        self.grid.require_complete(rows)
        _clear(session, self.grid, self.kind, written)
        return _commit(self.repository, session, self.options, job, kind=self.kind, rows=rows)

    def _write_asides(
        self, session: Session, asides: Sequence[Aside], written: NDArray[np.int64]
    ) -> set[int]:
        """Write what tasks put aside, and tell the blocks that it was in."""
        table = _fetch_rows(session, asides)
        # Whoever wrote a block had every cell of it.
        again = np.flatnonzero(np.isin(self.grid.blocks(self.grid.positions(table)), written))
        if len(again):
            raise self.grid.duplicate_cells_error(len(again), table, int(again[0]))
        return set(write_table(self.grid, table, OpenArrays(session.store)))

    def _is_in_whole_block(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say of rows, by their blocks, whether all cells of these are among them."""
        found, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        cells = [prod(stop - start for start, stop in self.grid.box(int(block))) for block in found]
        # With more rows than cells some come twice, which whoever writes them finds out.
        return (counts >= np.array(cells))[places]

    def _part(
        self, fork: ForkSession, blocks: list[int], rows: int, aside: Aside | None = None
    ) -> Part:
        base = str(self.point.base_id)
        return Part(base, task_changes(fork), tuple(blocks), rows, aside)


# -- rows put aside


def put_aside(connection: Connection, batches: Iterable[pa.RecordBatch]) -> Aside:
    """Write rows to files of a repository that nothing refers to."""
    files: list[ChunkRef] = []
    waiting: list[pa.RecordBatch] = []
    size = total = rows = 0
    for batch in batches:
        if not len(batch):
            continue
        waiting.append(batch)
        size += batch.nbytes
        rows += len(batch)
        if size >= _FILE_BYTES:
            files.append(_put(connection, waiting))
            waiting, total, size = [], total + size, 0
    if waiting:
        files.append(_put(connection, waiting))
    return Aside(tuple(files), rows, total + size)


def commit_rows(
    repository: Repository,
    options: WriteOptions,
    schema: pa.Schema,
    asides: Sequence[Aside],
    *,
    overwrite: bool,
    job: JobId | None,
    base: str | None = None,
) -> Written:
    """Write and commit rows that tasks put aside.

    Parameters
    ----------
    repository, options, schema, overwrite
        As the write was planned.
    asides
        What the tasks answered.
    job
        Which commit it is.
    base
        The snapshot that the commit is based on. Without one it is the tip: rows find their places
        in what is there by then, and once more where somebody else is faster.
    """
    # The tip first: a commit of this very job that comes after it is a conflict, and found then.
    if base is None:
        session = repository.writable_session(options.branch)
    else:
        reader = repository.readonly_session(snapshot_id=base)
        session = session_at(reader.connection, contents.base_id(reader), options.branch)
    if job is not None:
        found = find_committed(repository, options.branch, job)
        if found is not None:
            return Written.of(found, 0)
    _require_fitting_memory(asides)
    has_rows = any(one.rows for one in asides)
    rows = _fetch_rows(session, asides) if has_rows else schema.empty_table()
    for attempt in range(_TRIES):
        try:
            return _write_rows(repository, session, options, rows, overwrite=overwrite, job=job)
        except ConflictError:
            if base is not None or attempt + 1 == _TRIES:
                raise
            session = repository.writable_session(options.branch)
            found = None if job is None else find_committed(repository, options.branch, job)
            if found is not None:
                return Written.of(found, 0)
    raise AssertionError("the last try raises or returns")


def packing(repository: Repository) -> Repository:
    """Open a repository so that small chunks are packed."""
    if repository.config.packing is not None:
        return repository
    return repository.reopen(RepositoryConfig(packing=PackingConfig()))


def write_table(
    grid: Grid, table: pa.Table, open_array: Callable[[str], zarr.Array[Any]]
) -> list[int]:
    """Write rows in any order, and tell the blocks that they were in."""
    numbers = grid.blocks(grid.positions(table))
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    for block, start, stop in zip(found.tolist(), starts.tolist(), ends, strict=True):
        grid.write_block(block, table.take(pa.array(order[start:stop])), open_array)
    return [int(block) for block in found]


def _write_rows(
    repository: Repository,
    session: Session,
    options: WriteOptions,
    rows: pa.Table,
    *,
    overwrite: bool,
    job: JobId | None,
) -> Written:
    intent = plan_write(session, options, rows.schema, overwrite=overwrite)
    if not len(rows) and intent.kind != "region":
        return Written(None, is_new=False)
    labels = {name: distinct(rows[name].chunks) for name in intent.unknown}
    # Each row once is checked later; here it only decides whether integers need a fill value.
    has_gaps = len(rows) < np.prod([len(one) for one in labels.values()]) or any(
        rows[name].null_count for name in intent.variables
    )
    grid = prepare_write(
        session, options, intent, labels, has_gaps=bool(has_gaps), distinct_rows=rows.select
    )
    arrays = OpenArrays(session.store)
    blocks = write_table(grid, rows, arrays) if len(rows) else []
    grid.require_complete(len(rows))
    _clear(session, grid, intent.kind, set(blocks))
    return _commit(repository, session, options, job, kind=intent.kind, rows=len(rows))


def _put(connection: Connection, batches: list[pa.RecordBatch]) -> ChunkRef:
    sink = pa.BufferOutputStream()
    settings = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batches[0].schema, options=settings) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data = sink.getvalue()
    chunk_id = ChunkId.random()
    connection.assets.write_chunk(chunk_id, memoryview(data))
    return ChunkRef(chunk_id, 0, data.size)


def _require_fitting_memory(asides: Sequence[Aside]) -> None:
    size_bytes = sum(one.size_bytes for one in asides)
    if size_bytes > _MAX_ASIDE_BYTES:
        raise invalid_input(
            f"the rows that tasks put aside take {size_bytes:,} bytes, more than the "
            f"{_MAX_ASIDE_BYTES:,} that the process that commits should hold; nothing was "
            f"committed. {_FRIENDLY}; with the options 'coords' or 'replaceWhere', a task that has "
            "every row of a chunk writes it at once: repartition by whole chunks"
        )


def _fetch_rows(session: Session, asides: Sequence[Aside]) -> pa.Table:
    assets = session.connection.assets
    files = assets.run_concurrently(
        assets.chunks.fetch, [file for aside in asides for file in aside.files]
    )
    tables = [pa.ipc.open_stream(pa.py_buffer(data)).read_all() for data in files]
    return pa.concat_tables(tables)


# -- the end of both ways


def _clear(session: Session, grid: Grid, kind: str, written: set[int]) -> None:
    """Make what no row told of missing; new groups are so already."""
    if kind == "create":
        return
    arrays = OpenArrays(session.store)
    for block in range(grid.num_blocks):
        if block not in written:
            grid.clear_block(block, arrays)


def _commit(
    repository: Repository,
    session: Session,
    options: WriteOptions,
    job: JobId | None,
    *,
    kind: str,
    rows: int,
) -> Written:
    verb = {"create": "wrote", "append": "appended", "region": "overwrote"}[kind]
    about = {
        "job": "write_rows",
        "kind": kind,
        "group": options.group,
        "rows": rows,
        "base": session.snapshot_id,
    }
    message = options.message or f"{verb} {rows:,} rows in {options.group}"
    made = commit_once(repository, session, message, job, about=about)
    return Written.of(made, rows)


def _by_block(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Gather sorted rows into blocks."""
    current: int | None = None
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if not len(batch):
            continue
        numbers = batch[BLOCK_COLUMN].to_numpy()
        starts = np.flatnonzero(np.diff(numbers, prepend=_NO_BLOCK)).tolist()
        for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True):
            if current is not None and numbers[start] != current:
                yield current, pa.Table.from_batches(waiting)
                waiting = []
            current = int(numbers[start])
            waiting.append(batch.slice(start, stop - start))
    if current is not None:
        yield current, pa.Table.from_batches(waiting)
