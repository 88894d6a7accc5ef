"""Arguments that are wrong: an error with a kind and a hint, before anything is changed."""

from __future__ import annotations

import asyncio
import pickle
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from icefloe.conflicts import BasicConflictSolver, ConflictDetector, ConflictSolver
from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError
from icefloe.model.repo_info import RepoAvailability, RepoStatus
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from support.counting_storage import CountingStorage
from support.zarr_nodes import array, contents, get, group, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.session import Session


@pytest.fixture
def storage() -> CountingStorage:
    return CountingStorage(MemoryStorage())


@pytest.fixture
def repository(storage: CountingStorage, generation: str) -> Repository:
    repository = Repository.create(storage, generation=generation)
    session = repository.writable_session("main")
    put(session.store, "zarr.json", group())
    put(session.store, "a/zarr.json", array((8,)))
    session.commit("begin")
    return repository


@pytest.fixture
def session(repository: Repository) -> Session:
    """Return one with a change."""
    session = repository.writable_session("main")
    put(session.store, "a/c/0", b"changed")
    return session


def _assert_refused(
    storage: CountingStorage, act: Callable[[], object], kind: ErrorKind, problem: str
) -> None:
    """Check that a call is refused with its kind and words, and writes nothing."""
    storage.forget()
    with pytest.raises(InvalidInputError, match=problem) as caught:
        act()
    assert caught.value.kind is kind
    assert not [call for call in storage.calls if call.name.startswith(("put", "delete", "copy"))]


class _Undecided(ConflictSolver):
    """Does not say how it decides."""


_WRONG_METADATA: list[tuple[Any, str]] = [
    ({"fine": 1, "not fine": object()}, "'not fine' cannot be stored"),
    ({"a": b"bytes"}, "'a' cannot be stored"),
    ({"a": np.int64(1)}, "'a' cannot be stored"),
    ({"a": {1, 2}}, "'a' cannot be stored"),
    ({"a": 2**70}, "'a' cannot be stored"),
    ({"a": "\ud800"}, "'a' cannot be stored"),
    ({"a": {"b": {1: 2}}}, "'a' cannot be stored"),
    ({"\ud800": 1}, "surrogate"),
    ({1: 2}, "the name of a metadata entry must be a str, got 1"),
    ({1: 2, "a": 3}, "the name of a metadata entry must be a str, got 1"),
    ([1], "a mapping"),
    ([("a", 1)], "a mapping"),
    ("text", "a mapping"),
    (5, "a mapping"),
]


@pytest.mark.parametrize("metadata, problem", _WRONG_METADATA)
def test_metadata_of_commits(
    storage: CountingStorage, session: Session, metadata: Any, problem: str
) -> None:
    """Metadata that no file can hold is refused with its entry; the session can be committed."""
    acts: list[Callable[[], object]] = [
        lambda: session.commit("no", metadata),
        lambda: session.commit("no", metadata, rebase_with=ConflictDetector()),
        lambda: session.flush("no", metadata=metadata),
    ]
    if session.connection.generation.has_repo_info:
        acts.append(lambda: session.amend("no", metadata=metadata))
    for act in acts:
        _assert_refused(storage, act, ErrorKind.BAD_METADATA, problem)
        assert session.has_uncommitted_changes
    session.commit("yes", {"fine": 1})
    assert get(session.store, "a/c/0") == b"changed"


@pytest.mark.parametrize("metadata, problem", _WRONG_METADATA)
def test_default_metadata_of_commits(
    storage: CountingStorage, repository: Repository, metadata: Any, problem: str
) -> None:
    """What every commit would be refused for is refused when it is set."""
    repository.set_default_commit_metadata({"fine": 1})
    act = lambda: repository.set_default_commit_metadata(metadata)  # noqa: E731
    _assert_refused(storage, act, ErrorKind.BAD_METADATA, problem)
    assert repository.default_commit_metadata() == {"fine": 1}


def test_metadata_where_rebases_are_counted(storage: CountingStorage, session: Session) -> None:
    """An entry that is in the way of our own is refused where ours is written."""
    for wrong in (5, "x", [1]):
        _assert_refused(
            storage,
            lambda wrong=wrong: session.commit(  # type: ignore[misc]
                "no", {"__icechunk": wrong}, rebase_with=ConflictDetector()
            ),
            ErrorKind.BAD_METADATA,
            "'__icechunk' is",
        )
    session.commit("yes", {"__icechunk": {"k": 1}}, rebase_with=ConflictDetector())


@pytest.mark.parametrize("message", [None, 5, b"bytes", "\ud800"])
def test_messages(storage: CountingStorage, session: Session, message: Any) -> None:
    """A message is text."""
    for act in (
        lambda: session.commit(message),
        lambda: session.flush(message),
        lambda: session.commit(message, rebase_with=ConflictDetector()),
    ):
        _assert_refused(storage, act, ErrorKind.INVALID_COMMIT_CONFIGURATION, "message")
        assert session.has_uncommitted_changes


@pytest.mark.parametrize("solver", ["theirs", 5, BasicConflictSolver, _Undecided()])
def test_solvers(
    storage: CountingStorage, repository: Repository, session: Session, solver: Any
) -> None:
    """An invalid solver is refused, whether there is a conflict or not."""
    for has_conflict in (False, True):
        if has_conflict:
            other = repository.writable_session("main")
            put(other.store, "a/c/0", b"other")
            other.commit("other")
        for act in (
            lambda: session.commit("no", rebase_with=solver),
            lambda: session.rebase(solver),
        ):
            _assert_refused(
                storage, act, ErrorKind.INVALID_COMMIT_CONFIGURATION, "ConflictDetector"
            )
            assert session.has_uncommitted_changes


@pytest.mark.parametrize("wrong", [None, 5, b"1CECHNKREP0F1RSTCMT0", ["x"], "nope"])
def test_ids(storage: CountingStorage, repository: Repository, wrong: Any) -> None:
    """What is no id of a snapshot is refused with an example of one."""
    calls: list[Callable[[], object]] = [
        lambda: repository.create_branch("x", wrong),
        lambda: repository.create_tag("x", wrong),
        lambda: repository.reset_branch("main", wrong),
        lambda: repository.lookup_snapshot(wrong),
        lambda: repository.list_manifest_files(wrong),
        lambda: repository.inspect_snapshot(wrong),
        lambda: repository.inspect_manifest(wrong),
        lambda: repository.inspect_transaction_log(wrong),
    ]
    if wrong is not None:
        calls += [
            lambda: repository.readonly_session(snapshot_id=wrong),
            lambda: repository.ancestry(snapshot_id=wrong),
            lambda: repository.reset_branch(
                "main", repository.lookup_branch("main"), from_snapshot_id=wrong
            ),
        ]
    for call in calls:
        _assert_refused(storage, call, ErrorKind.INVALID_SNAPSHOT_ID, "such as 0000")


@pytest.mark.parametrize("wrong", ["2024-01-01", date(2024, 1, 1), 0])
def test_times(storage: CountingStorage, repository: Repository, wrong: Any) -> None:
    """A time is a datetime; a day or a text could mean many."""
    for act in (
        lambda: repository.readonly_session("main", as_of=wrong),
        lambda: repository.expire_snapshots(wrong),
        lambda: repository.garbage_collect(wrong),
    ):
        _assert_refused(storage, act, ErrorKind.INVALID_REF_TYPE, "expected a datetime, got")


@pytest.mark.parametrize("wrong", [None, 5, b"/a"])
def test_paths(storage: CountingStorage, session: Session, wrong: Any) -> None:
    """The path of a node is text."""
    for act in (
        lambda: session.get_node_id(wrong),
        lambda: session.chunk_type(wrong, (0,)),
        lambda: session.shift_array(wrong, (0,)),
    ):
        _assert_refused(storage, act, ErrorKind.INVALID_PATH, "node path must be a str")


def test_places(tmp_path: Path) -> None:
    """The path of a repository is no storage, and the error says what makes one of it."""
    wrong: Any
    for wrong in (str(tmp_path), tmp_path, None):
        for act in (
            Repository.open,
            Repository.create,
            Repository.open_or_create,
            Repository.exists,
            Repository.fetch_config,
            Repository.fetch_spec_version,
        ):
            with pytest.raises(InvalidInputError, match="local_filesystem_storage") as caught:
                act(wrong)
            assert caught.value.kind is ErrorKind.STORAGE_CONFIG
    assert not list(tmp_path.iterdir())


def test_configurations(storage: CountingStorage, repository: Repository) -> None:
    """A configuration is a RepositoryConfig; nothing is created with anything else."""
    wrong: Any = {"inline_chunk_threshold_bytes": 1}
    empty = MemoryStorage()
    for act in (
        lambda: Repository.create(empty, config=wrong),
        lambda: Repository.open(storage, config=wrong),
        lambda: repository.reopen(config=wrong),
    ):
        _assert_refused(storage, act, ErrorKind.STORAGE_CONFIG, "RepositoryConfig")
    assert not list(empty.list())


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batches(session: Session, batch_size: int) -> None:
    """A batch of no chunks would never end, or never begin."""

    async def collect() -> list[tuple[int, ...]]:
        return [indices async for indices in session.chunk_coordinates("a", batch_size)]

    with pytest.raises(InvalidInputError, match="batch_size"):
        asyncio.run(collect())


def test_sessions_that_do_not_pickle(repository: Repository) -> None:
    """What is advised instead is possible: a rearrange session cannot fork."""
    with pytest.raises(InvalidInputError, match=r"session\.fork\(\)") as caught:
        pickle.dumps(repository.writable_session("main"))
    assert caught.value.kind is ErrorKind.PICKLE
    with pytest.raises(InvalidInputError, match="pickle the repository") as caught:
        pickle.dumps(repository.rearrange_session("main"))
    assert caught.value.kind is ErrorKind.PICKLE
    assert "fork" not in str(caught.value)


def test_writers_of_a_read_only_repository() -> None:
    """Where nothing can be committed, no session to write begins; those that began end."""
    storage = CountingStorage(MemoryStorage())
    repository = Repository.create(storage, spec_version=2)
    began = repository.writable_session("main")
    put(began.store, "zarr.json", group())
    reason = "moving"
    repository.set_status(
        RepoStatus(RepoAvailability.read_only, limited_availability_reason=reason)
    )
    storage.forget()
    for act in (
        lambda: repository.writable_session("main"),
        lambda: repository.rearrange_session("main"),
        lambda: repository.rewrite_manifests("no", branch="main"),
        lambda: repository.transaction("main", message="no").__enter__(),
    ):
        with pytest.raises(ReadOnlyError, match=r"\(moving\).*set_status") as caught:
            act()
        assert caught.value.kind is ErrorKind.READ_ONLY_REPOSITORY
    assert not [call for call in storage.calls if call.name.startswith(("put", "delete", "copy"))]
    assert contents(repository.readonly_session("main").store) == {}
    with pytest.raises(ReadOnlyError):
        began.commit("no")
    repository.set_status(RepoStatus(RepoAvailability.online))
    began.commit("yes")
    repository.writable_session("main")


@pytest.mark.parametrize("wrong", [0, 3, "x"])
def test_a_version_that_there_is_not(wrong: Any) -> None:
    storage = CountingStorage(MemoryStorage())
    _assert_refused(
        storage,
        lambda: Repository.create(storage, spec_version=wrong),
        ErrorKind.UNSUPPORTED_SPEC_VERSION,
        f"version:? {wrong!r}: spec_version must be 1 or 2",
    )
