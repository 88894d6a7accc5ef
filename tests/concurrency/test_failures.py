"""A commit whose storage fails somewhere happened or did not, and its session can try again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.errors import ConflictError, OutcomeUnknownError, StorageError
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from support.dying_committer import NEW, OLD, config_of, group, read, write
from support.faulty_storage import FaultyStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.session import Session
    from icefloe.storage import Storage

BEFORE = ["old", "base", "Repository initialized"]
# The files of branches in each generation.
WRITTEN = ({"snapshots", "transactions", "manifests"}, {"s", "m"}, {"s", "i"})
REFS = ("repo", "refs/", "state.json", "r/")


class _LostError(StorageError):
    """What the failing calls raise."""


@pytest.fixture(params=["plain", "packed split"])
def inner(request: pytest.FixtureRequest, generation: str) -> Callable[[], Storage]:
    """Make storages with a repository that has the old content."""

    def make() -> Storage:
        storage = in_memory_storage()
        config = config_of(request.param)
        repository = Repository.create(storage, config, generation=generation)
        for message, content in (("base", {"zarr.json": group()}), ("old", OLD)):
            session = repository.writable_session("main")
            write(session, content)
            session.commit(message)
        return storage

    return make


def ready(storage: Storage) -> tuple[FaultyStorage, Session]:
    """Begin a session that has written the new content, on a storage that does not fail yet."""
    faulty = FaultyStorage(storage)
    session = Repository.open(faulty).writable_session("main")
    write(session, NEW)
    return session.connection.storage, session  # type: ignore[return-value]


def history(storage: Storage) -> list[str]:
    return [info.message for info in Repository.open(storage).ancestry(branch="main")]


def check(storage: Storage, *, committed: bool) -> None:
    """Require one of two states, whole."""
    assert history(storage) == ["new"] * committed + BEFORE
    found = read(Repository.open(storage).readonly_session("main"))
    assert found == (NEW if committed else OLD)


def calls_of(inner: Callable[[], Storage]) -> list[tuple[str, str]]:
    """Tell the storage calls of a commit, in their order."""
    calls: list[tuple[str, str]] = []
    faulty, session = ready(inner())
    faulty.fail = lambda _, name, key: calls.append((name, key))
    session.commit("new")
    return calls


def fails_at(number: int, error: Exception) -> Callable[[int, str, str], None]:
    """Make the call of a number fail, counted from now."""
    calls: Iterator[int] = iter(range(10**6))

    def fail(_number: int, _name: str, _key: str) -> None:
        if next(calls) == number:
            raise error

    return fail


def checks_the_outcome(calls: list[tuple[str, str]], number: int) -> bool:
    """Whether a call follows the write of a branch: ``sequence`` looks whether it is the newest."""
    return any(name == "put" and key.startswith(REFS) for name, key in calls[:number])


def commit_unknown(storage: Storage, session: Session) -> None:
    """Commit with an unknown outcome, and check that the changes are there exactly once."""
    with pytest.raises(OutcomeUnknownError):
        session.commit("new")
    check(storage, committed=True)
    with pytest.raises(ConflictError):
        session.commit("new")
    check(storage, committed=True)


def test_a_call_that_fails(inner: Callable[[], Storage]) -> None:
    """Nothing was committed, and the same session commits when the storage is well again."""
    calls = calls_of(inner)
    assert len(calls) >= 4
    for number in range(len(calls)):
        storage = inner()
        faulty, session = ready(storage)
        faulty.fail = fails_at(number, _LostError("gone"))
        if checks_the_outcome(calls, number):
            commit_unknown(storage, session)
            continue
        with pytest.raises(_LostError):
            session.commit("new")
        check(storage, committed=False)
        assert session.has_uncommitted_changes
        assert read(session) == NEW
        made = session.commit("new")
        assert session.read_only
        assert read(session) == NEW
        check(storage, committed=True)
        assert Repository.open(storage).lookup_branch("main") == made


def test_an_answer_that_is_lost(inner: Callable[[], Storage]) -> None:
    """A call that took effect although it failed is not repeated as a second commit."""
    calls = calls_of(inner)
    for number, (name, key) in enumerate(calls):
        storage = inner()
        faulty, session = ready(storage)
        decides = name == "put" and key.startswith(REFS)
        error = OutcomeUnknownError("unknown") if decides else _LostError("gone")
        faulty.fail_after = fails_at(number, error)
        if checks_the_outcome(calls, number):
            commit_unknown(storage, session)
            continue
        if decides:
            # History has the commit.
            session.commit("new")
        else:
            with pytest.raises(_LostError):
                session.commit("new")
            check(storage, committed=False)
            session.commit("new")
        check(storage, committed=True)


@pytest.mark.parametrize("took_effect", [False, True])
def test_an_outcome_that_nobody_knows(
    inner: Callable[[], Storage],
    took_effect: bool,  # noqa: FBT001
) -> None:
    """All files stay, so that a commit that did land is whole; it is never made twice."""
    storage = inner()
    faulty, session = ready(storage)
    unknown = False

    def fail(_: int, name: str, key: str) -> None:
        nonlocal unknown
        decides = name == "put" and key.startswith(REFS)
        if decides or unknown:
            unknown = True
            raise OutcomeUnknownError("unknown") if decides else _LostError("still gone")

    present = {info.key for info in storage.list()}
    if took_effect:
        faulty.fail_after = fail
        faulty.fail = lambda *call: fail(*call) if unknown else None
    else:
        faulty.fail = fail
    with pytest.raises((OutcomeUnknownError, _LostError)):
        session.commit("new")
    assert unknown
    added = {info.key.partition("/")[0] for info in storage.list() if info.key not in present}
    assert any(added >= kinds for kinds in WRITTEN), added
    check(storage, committed=took_effect)
    faulty.fail = faulty.fail_after = lambda *_: None
    if took_effect:
        with pytest.raises(ConflictError):
            session.commit("new")
    else:
        session.commit("new")
    check(storage, committed=True)
