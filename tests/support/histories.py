"""Makes repositories with a history that has something to expire and to collect."""

from __future__ import annotations

import os
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import zarr

from icefloe.format.generation import GENERATIONS, get_generation
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.repository import Repository
from icefloe.storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.session import Session

FIRST_WRITTEN = datetime(2020, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
UNPACKED = RepositoryConfig(packing=PackingConfig(max_chunk_bytes=0))
_FOLDERS = {
    kind.prefix
    for generation in GENERATIONS.values()
    for kind in (getattr(generation.layout, field.name) for field in fields(generation.layout))
    if kind is not None
}
SHAPE, CHUNKS = (4, 300), (1, 100)


def write(session: Session, name: str, row: int, value: float) -> None:
    """Write one row of an array, which is made if need be: three chunks."""
    group = zarr.open_group(session.store, mode="a")
    if name not in group:
        group.create_array(
            name, shape=SHAPE, chunks=CHUNKS, dtype="f8", compressors=None, fill_value=0
        )
    array = group[name]
    assert isinstance(array, zarr.Array)
    array[row] = value


def commit(repository: Repository, name: str, row: int, value: float, branch: str = "main") -> str:
    session = repository.writable_session(branch)
    write(session, name, row, value)
    return session.commit(f"{name}[{row}] = {value:g}")


def make_history(root: Path, generation: str) -> tuple[Repository, list[str]]:
    """Make a history of six commits on main, with branches, tags and what nothing points at.

    Returns the repository and its snapshots: the first one, six on main, two on the branch dev
    (from the second of main), one that a reset left behind, one detached and, in version 2, one
    that was amended away. The files of snapshot ``i`` seem to be ``i`` hours younger than those of
    the first.
    """
    repository = Repository.create(
        LocalStorage(root, durable=False), UNPACKED, generation=generation
    )
    ids = [repository.lookup_branch("main")]
    _age(root, 0)
    for number in range(1, 7):
        name = "a" if number % 2 else "b"
        ids.append(commit(repository, name, number % 3, number))
        _age(root, number)
    repository.create_branch("dev", ids[2])
    for number in (7, 8):
        ids.append(commit(repository, "a", 3, number, branch="dev"))
        _age(root, number)
    ids.append(commit(repository, "b", 3, 9))
    _age(root, 9)
    repository.reset_branch("main", ids[6])
    session = repository.writable_session("main")
    write(session, "c", 0, 10)
    ids.append(session.flush("detached"))
    _age(root, 10)
    if get_generation(generation).has_repo_info:
        ids.append(commit(repository, "c", 0, 11, branch="dev"))
        _age(root, 11)
        session = repository.writable_session("dev")
        write(session, "c", 1, 12)
        session.amend("amended")
        _age(root, 12)
    repository.create_tag("first", ids[0])
    repository.create_tag("old", ids[1])
    repository.create_tag("three", ids[3])
    if get_generation(generation).can_delete_tags:
        repository.create_tag("gone", ids[4])
        repository.delete_tag("gone")
    repository.create_branch("same-as-main", ids[6])
    session = repository.writable_session("main")
    write(session, "a", 0, -1)  # chunks that no commit ever had
    return repository, ids


def written_at(number: int) -> datetime:
    """Tell when the files of a commit of `make_history` seem to have been written."""
    return FIRST_WRITTEN + number * HOUR


def files(root: Path) -> set[str]:
    """List the immutable files of a repository of any generation."""
    return {str(path.relative_to(root)) for kind in _FOLDERS for path in (root / kind).glob("*")}


def read_everything(repository: Repository) -> dict[str, dict[str, bytes]]:
    """Read every array of every snapshot that a branch or a tag has in its history."""
    tips = [{"branch": name} for name in repository.list_branches()]
    tips += [{"tag": name} for name in repository.list_tags()]
    ids = {info.id for tip in tips for info in repository.ancestry(**tip)}
    return {snapshot_id: read_snapshot(repository, snapshot_id) for snapshot_id in sorted(ids)}


def read_snapshot(repository: Repository, snapshot_id: str) -> dict[str, bytes]:
    store = repository.readonly_session(snapshot_id=snapshot_id).store
    try:
        group = zarr.open_group(store, mode="r")
    except FileNotFoundError:
        return {}
    return {name: np.ascontiguousarray(array[...]).tobytes() for name, array in group.arrays()}


def _age(root: Path, number: int) -> None:
    """Let the files that were written last seem to be of one hour."""
    time = written_at(number).timestamp()
    for name in files(root):
        if (root / name).stat().st_mtime > written_at(1000).timestamp():
            os.utime(root / name, (time, time))
