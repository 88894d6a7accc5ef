"""Two writers on one branch: each conflict by two real sessions, of icefloe and of Icechunk."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import icechunk
import pytest

import icefloe.conflicts
from icefloe.conflicts import (
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictSolver,
    ConflictType,
    VersionSelection,
)
from icefloe.errors import ConflictError, ErrorKind, RebaseFailedError
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from icefloe.transaction import rebase
from support.counting_storage import CountingStorage
from support.generations import GENERATION_NAMES, find_kind
from support.zarr_nodes import array, contents, delete, delete_node, get, group, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from zarr.abc.store import Store

    Change = Callable[[Store], None]

Found = tuple[str, str, tuple[tuple[int, ...], ...] | None]


def _begin(store: Store) -> None:
    put(store, "zarr.json", group())
    put(store, "g/zarr.json", group())
    put(store, "g/a/zarr.json", array((8,)))
    put(store, "g/c/zarr.json", array((8, 8)))
    put(store, "h/zarr.json", group())
    put(store, "b/zarr.json", array((8,)))
    for index in range(4):
        put(store, f"g/a/c/{index}", b"begin")


def _puts(*pairs: tuple[str, bytes]) -> Change:
    def change(store: Store) -> None:
        for key, value in pairs:
            put(store, key, value)

    return change


def _deletes(*paths: str) -> Change:
    def change(store: Store) -> None:
        for path in paths:
            delete_node(store, path)

    return change


def _both(*changes: Change) -> Change:
    def change(store: Store) -> None:
        for apply in changes:
            apply(store)

    return change


def _chunks(path: str, *indices: int, data: bytes = b"x") -> Change:
    return _puts(*[(f"{path}/c/{index}", data) for index in indices])


_A2 = ("g/a/zarr.json", array((8,), units="m"))
_A3 = ("g/a/zarr.json", array((8,), units="km"))
_G2 = ("g/zarr.json", group(title="two"))
_G3 = ("g/zarr.json", group(title="three"))


@dataclass(frozen=True)
class Scenario:
    """What they committed, what we did, and what stands in the way.

    ``icechunk`` is what Icechunk 1.1.21 finds where that is something else, with the reason.
    """

    name: str
    theirs: tuple[Change, ...]
    ours: Change
    conflicts: tuple[Found, ...] = ()
    icechunk: tuple[Found, ...] | None = None
    reason: str = field(default="", kw_only=True)


SCENARIOS = [
    Scenario("different chunks", (_chunks("g/a", 0),), _chunks("g/a", 1)),
    Scenario("different arrays", (_chunks("g/a", 0),), _chunks("b", 0)),
    Scenario(
        "different new nodes",
        (_puts(("x/zarr.json", group())),),
        _puts(("y/zarr.json", group())),
    ),
    Scenario("different metadata", (_puts(_A2),), _puts(_G2)),
    Scenario("both delete the same array", (_deletes("g/a"),), _deletes("g/a")),
    Scenario("both delete the same group", (_deletes("g"),), _deletes("g")),
    Scenario("their chunks, our metadata", (_chunks("g/a", 0),), _puts(_A2)),
    Scenario("they delete, we touch another", (_deletes("h"),), _chunks("g/a", 0)),
    Scenario(
        "both create a group",
        (_puts(("x/zarr.json", group())),),
        _puts(("x/zarr.json", group())),
        (("NewNodeConflictsWithExistingNode", "/x", None),),
    ),
    Scenario(
        "they create an array where we create a group",
        (_puts(("x/zarr.json", array((2,)))),),
        _puts(("x/zarr.json", group())),
        (("NewNodeConflictsWithExistingNode", "/x", None),),
    ),
    Scenario(
        "they create an array around what we create",
        (_puts(("x/zarr.json", array((2,)))),),
        _puts(("x/y/zarr.json", group())),
        (("NewNodeInInvalidGroup", "/x", None),),
    ),
    Scenario(
        "they delete the group that we create something in",
        (_deletes("h"),),
        _puts(("h/y/zarr.json", group())),
        (("NewNodeInInvalidGroup", "/h", None),),
        (),
        reason="our node would be left without its group",
    ),
    Scenario(
        "they replace the group that we create something in by an array",
        (_both(_deletes("h"), _puts(("h/zarr.json", array((2,))))),),
        _puts(("h/y/zarr.json", group())),
        (("NewNodeInInvalidGroup", "/h", None),),
    ),
    Scenario(
        "both update an array's metadata",
        (_puts(_A2),),
        _puts(_A3),
        (("ZarrMetadataDoubleUpdate", "/g/a", None),),
    ),
    Scenario(
        "both update a group's metadata",
        (_puts(_G2),),
        _puts(_G3),
        (("ZarrMetadataDoubleUpdate", "/g", None),),
    ),
    Scenario(
        "we update an array that they delete",
        (_deletes("g/a"),),
        _puts(_A2),
        (("ZarrMetadataUpdateOfDeletedArray", "/g/a", None),),
    ),
    Scenario(
        "we update a group that they delete",
        (_deletes("h"),),
        _puts(("h/zarr.json", group(title="two"))),
        (("ZarrMetadataUpdateOfDeletedGroup", "/h", None),),
    ),
    Scenario(
        "both write the same chunks",
        (_chunks("g/a", 0, 1, 2),),
        _chunks("g/a", 1, 2, 3),
        (("ChunkDoubleUpdate", "/g/a", ((1,), (2,))),),
    ),
    Scenario(
        "they delete a chunk that we write",
        (lambda store: delete(store, "g/a/c/1"),),
        _chunks("g/a", 1),
        (("ChunkDoubleUpdate", "/g/a", ((1,),)),),
    ),
    Scenario(
        "we delete a chunk that they write",
        (_chunks("g/a", 1),),
        lambda store: delete(store, "g/a/c/1"),
        (("ChunkDoubleUpdate", "/g/a", ((1,),)),),
    ),
    Scenario(
        "we write chunks of an array that they delete",
        (_deletes("g/a"),),
        _chunks("g/a", 1),
        (("ChunksUpdatedInDeletedArray", "/g/a", None),),
    ),
    Scenario(
        "we write chunks of an array that they update",
        (_puts(_A2),),
        _chunks("g/a", 1),
        (("ChunksUpdatedInUpdatedArray", "/g/a", None),),
    ),
    Scenario(
        "we delete an array whose metadata they update",
        (_puts(_A2),),
        _deletes("g/a"),
        (("DeleteOfUpdatedArray", "/g/a", None),),
    ),
    Scenario(
        "we delete an array whose chunks they write",
        (_chunks("g/a", 1),),
        _deletes("g/a"),
        (("DeleteOfUpdatedArray", "/g/a", None),),
    ),
    Scenario(
        "we delete a group whose metadata they update",
        (_puts(("h/zarr.json", group(title="two"))),),
        _deletes("h"),
        (("DeleteOfUpdatedGroup", "/h", None),),
    ),
    Scenario(
        "we delete a group, they write chunks inside",
        (_chunks("g/a", 1),),
        _deletes("g"),
        (("DeleteOfUpdatedArray", "/g/a", None),),
    ),
    Scenario(
        "we delete a group that they create something in",
        (_puts(("h/y/zarr.json", group())),),
        _deletes("h"),
        (("NewNodeInInvalidGroup", "/h", None),),
        (),
        reason="a gap that Icechunk's source names: the child would be left without its group",
    ),
    Scenario(
        "we delete a group that they create something deep in",
        (_puts(("h/y/zarr.json", group()), ("h/y/z/zarr.json", array((1,)))),),
        _deletes("h"),
        (("NewNodeInInvalidGroup", "/h", None),),
        (),
        reason="the same gap",
    ),
    Scenario(
        "they delete and recreate what we delete",
        (_both(_deletes("g/a"), _puts(("g/a/zarr.json", array((3,))))),),
        _deletes("g/a"),
    ),
    Scenario(
        "they delete and recreate what we delete and recreate",
        (_both(_deletes("g/a"), _puts(("g/a/zarr.json", array((3,))))),),
        _both(_deletes("g/a"), _puts(("g/a/zarr.json", array((4,))))),
        (("NewNodeConflictsWithExistingNode", "/g/a", None),),
        (),
        reason="the array that they made is none that we deleted, and would be lost without a word",
    ),
    Scenario(
        "we delete and recreate, they touch another",
        (_chunks("b", 0),),
        _both(_deletes("g/a"), _puts(("g/a/zarr.json", array((4,))))),
    ),
    Scenario(
        "we shrink an array below chunks that they write",
        (_chunks("g/a", 6),),
        _puts(("g/a/zarr.json", array((4,)))),
        (("ChunksUpdatedInUpdatedArray", "/g/a", None),),
        (),
        reason="their chunk would be dropped without a word",
    ),
    Scenario(
        "we shrink an array below a chunk that they delete",
        (lambda store: delete(store, "g/a/c/3"),),
        _puts(("g/a/zarr.json", array((3,)))),
    ),
    Scenario(
        "we shrink an array below chunks that they delete and write",
        (_both(lambda store: delete(store, "g/a/c/3"), _chunks("g/a", 6)),),
        _puts(("g/a/zarr.json", array((3,)))),
        (("ChunksUpdatedInUpdatedArray", "/g/a", None),),
        (),
        reason="the chunk that they wrote would be dropped without a word",
    ),
    Scenario(
        "we shrink and write an array that they update and write",
        (_both(_puts(_A2), _chunks("g/a", 6)),),
        _both(_puts(("g/a/zarr.json", array((4,)))), _chunks("g/a", 1)),
        (
            ("ZarrMetadataDoubleUpdate", "/g/a", None),
            ("ChunksUpdatedInUpdatedArray", "/g/a", None),
        ),
    ),
    Scenario(
        "we rechunk an array that they write",
        (_chunks("g/a", 6),),
        _puts(("g/a/zarr.json", array((16,), (2,)))),
        (("ChunksUpdatedInUpdatedArray", "/g/a", None),),
        (),
        reason="their chunk would be read with another shape than it was written with",
    ),
    Scenario(
        "we grow an array that they write",
        (_chunks("g/a", 6),),
        _puts(("g/a/zarr.json", array((10,)))),
    ),
    Scenario(
        "the order of kinds",
        (
            _both(
                _puts(("x/zarr.json", group())),
                _puts(_A2, _G2),
                _chunks("b", 2),
                _puts(("h/zarr.json", group(title="theirs"))),
                _puts(("g/c/c/0/0", b"theirs")),
            ),
        ),
        _both(
            _deletes("h", "b"),
            _puts(("g/c/c/0/0", b"ours"), ("g/c/c/0/1", b"ours")),
            _puts(_A3, _G3),
            _chunks("g/a", 5),
            _puts(("x/zarr.json", group())),
        ),
        (
            ("NewNodeConflictsWithExistingNode", "/x", None),
            ("ZarrMetadataDoubleUpdate", "/g/a", None),
            ("ZarrMetadataDoubleUpdate", "/g", None),
            ("ChunksUpdatedInUpdatedArray", "/g/a", None),
            ("ChunkDoubleUpdate", "/g/c", ((0, 0),)),
            ("DeleteOfUpdatedArray", "/b", None),
            ("DeleteOfUpdatedGroup", "/h", None),
        ),
    ),
    Scenario(
        "only the first commit that conflicts is reported",
        (_chunks("b", 0), _chunks("g/a", 1), _puts(_G2)),
        _both(_chunks("g/a", 1), _puts(_G3)),
        (("ChunkDoubleUpdate", "/g/a", ((1,),)),),
    ),
]


def _list_conflicts(error: Any) -> tuple[Found, ...]:
    return tuple(
        (
            getattr(conflict.conflict_type, "name", repr(conflict.conflict_type)),
            conflict.path,
            None
            if conflict.conflicted_chunks is None
            else tuple(sorted(tuple(chunk) for chunk in conflict.conflicted_chunks)),
        )
        for conflict in error.conflicts
    )


def _play(repository: Any, scenario: Scenario) -> Any:
    """Return our session with its changes, after theirs were committed."""
    session = repository.writable_session("main")
    _begin(session.store)
    session.commit("begin")
    ours = repository.writable_session("main")
    for number, change in enumerate(scenario.theirs):
        theirs = repository.writable_session("main")
        change(theirs.store)
        theirs.commit(f"theirs {number}")
    scenario.ours(ours.store)
    return ours


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_conflicts(scenario: Scenario, generation: str) -> None:
    """A rebase reports exactly the conflicts, and succeeds without any."""
    storage = MemoryStorage()
    ours = _play(Repository.create(storage, generation=generation), scenario)
    # Nothing of what the other writer knows may be needed.
    cold = Repository.open(storage).writable_session("main")
    base = ours.snapshot_id
    changes = ours.transaction.changes
    cold.transaction.replace_base(ours.transaction.base_id, changes.copy())
    for session in (ours, cold):
        seen = contents(session.store)
        if not scenario.conflicts:
            session.rebase(ConflictDetector())
            continue
        with pytest.raises(RebaseFailedError) as caught:
            session.rebase(ConflictDetector())
        assert _list_conflicts(caught.value) == scenario.conflicts
        assert caught.value.kind is ErrorKind.REBASE_FAILED
        for kind, path, _ in scenario.conflicts:
            if len(scenario.conflicts) <= 5:
                assert kind in str(caught.value)
                assert path in str(caught.value)
        if len(scenario.theirs) == 1:
            assert session.snapshot_id == base
            assert contents(session.store) == seen
        assert session.has_uncommitted_changes
        again: RebaseFailedError = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
        assert again.conflicts == caught.value.conflicts
    if not scenario.conflicts:
        assert ours.snapshot_id == cold.snapshot_id
        after = contents(ours.store)
        assert after == contents(cold.store)
        ours.commit("ours", allow_empty=True)
        assert contents(Repository.open(storage).readonly_session("main").store) == after


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_icechunk_finds_the_same_conflicts(scenario: Scenario) -> None:
    """Icechunk 1.1.21 reports the same conflicts and ends with the same content.

    Where it does not, the scenario says what it does and why icefloe differs.
    """
    theirs = icechunk.Repository.create(icechunk.in_memory_storage())
    session = _play(theirs, scenario)
    expected = scenario.conflicts if scenario.icechunk is None else scenario.icechunk
    if expected:
        with pytest.raises(icechunk.RebaseFailedError) as caught:
            session.rebase(icechunk.ConflictDetector())
        assert sorted(_list_conflicts(caught.value)) == sorted(expected)
        return
    session.rebase(icechunk.ConflictDetector())
    if scenario.icechunk is None:
        ours = _play(Repository.create(MemoryStorage()), scenario)
        ours.rebase(ConflictDetector())
        assert contents(ours.store) == contents(session.store)


@pytest.mark.parametrize("selection", ["UseOurs", "UseTheirs", "Fail"])
def test_chunk_conflicts_are_solved(selection: str, generation: str) -> None:
    """Of chunks that both wrote the chosen side's stay; all other changes of both stay anyway."""
    scenario = Scenario(
        "",
        (_both(_chunks("g/a", 0, 1, data=b"theirs"), _chunks("b", 7, data=b"theirs")),),
        _both(_chunks("g/a", 1, 2, data=b"ours"), _chunks("b", 6, data=b"ours")),
    )
    found = []
    for module, repository in (
        (icefloe.conflicts, Repository.create(MemoryStorage(), generation=generation)),
        (icechunk, icechunk.Repository.create(icechunk.in_memory_storage())),
    ):
        session = _play(repository, scenario)
        names: Any = module
        chosen = getattr(names.VersionSelection, selection)
        solver = names.BasicConflictSolver(on_chunk_conflict=chosen)
        if selection == "Fail":
            with pytest.raises((RebaseFailedError, icechunk.RebaseFailedError)):
                session.commit("ours", rebase_with=solver)
            found.append(contents(session.store))
        else:
            session.commit("ours", rebase_with=solver)
            found.append(contents(repository.readonly_session("main").store))
    assert all(result == found[0] for result in found)
    if selection != "Fail":
        assert found[0]["g/a/c/0"] == b"theirs"
        assert found[0]["g/a/c/1"] == (b"ours" if selection == "UseOurs" else b"theirs")
        assert found[0]["g/a/c/2"] == b"ours"
        assert found[0]["b/c/6"] == b"ours"
        assert found[0]["b/c/7"] == b"theirs"


@pytest.mark.parametrize("selection", ["UseOurs", "UseTheirs"])
def test_conflicts_in_a_scalar_array(selection: str, generation: str) -> None:
    """The one chunk of a scalar array is a chunk like others."""
    repository = Repository.create(MemoryStorage(), generation=generation)
    session = repository.writable_session("main")
    put(session.store, "s/zarr.json", array(()))
    session.commit("scalar")
    ours, theirs = (repository.writable_session("main") for _ in range(2))
    put(ours.store, "s/c", b"UseOurs")
    put(theirs.store, "s/c", b"UseTheirs")
    theirs.commit("theirs")
    chosen = getattr(VersionSelection, selection)
    ours.commit("ours", rebase_with=BasicConflictSolver(on_chunk_conflict=chosen), allow_empty=True)
    assert get(repository.readonly_session("main").store, "s/c") == selection.encode()


@pytest.mark.parametrize("kind", ["array", "group"])
@pytest.mark.parametrize("fails", [True, False])
def test_deletes_of_updated_nodes(kind: str, *, fails: bool) -> None:
    """Updated nodes are deleted, unless the solver is set to fail."""
    path = "g/a" if kind == "array" else "h"
    update = _puts(_A2) if kind == "array" else _puts(("h/zarr.json", group(title="two")))
    scenario = Scenario("", (update,), _deletes(path))
    for module, repository in (
        (icefloe.conflicts, Repository.create(MemoryStorage())),
        (icechunk, icechunk.Repository.create(icechunk.in_memory_storage())),
    ):
        session = _play(repository, scenario)
        names: Any = module
        solver = names.BasicConflictSolver(**{f"fail_on_delete_of_updated_{kind}": fails})
        if fails:
            with pytest.raises((RebaseFailedError, icechunk.RebaseFailedError)):
                session.commit("ours", rebase_with=solver)
        else:
            session.commit("ours", rebase_with=solver)
            assert f"{path}/zarr.json" not in contents(repository.readonly_session("main").store)


_SOLVABLE = {"ChunkDoubleUpdate", "DeleteOfUpdatedArray", "DeleteOfUpdatedGroup"}


class _Chooser(ConflictSolver):
    """Always chooses the same side, and remembers what it was asked."""

    def __init__(self, choice: VersionSelection) -> None:
        self.choice = choice
        self.asked: list[Conflict] = []

    def decide(self, conflict: Conflict) -> VersionSelection:
        self.asked.append(conflict)
        return self.choice


@pytest.mark.parametrize("choice", VersionSelection)
@pytest.mark.parametrize(
    "scenario", [case for case in SCENARIOS if case.conflicts], ids=lambda case: case.name
)
def test_a_solver_of_ones_own(
    scenario: Scenario, choice: VersionSelection, generation: str
) -> None:
    """A solver is asked about every conflict, and none solves what a choice cannot solve."""
    session = _play(Repository.create(MemoryStorage(), generation=generation), scenario)
    solver = _Chooser(choice)
    can = {
        VersionSelection.UseOurs: _SOLVABLE,
        VersionSelection.UseTheirs: {"ChunkDoubleUpdate"},
        VersionSelection.Fail: set(),
    }[choice]
    unsolved = tuple(conflict for conflict in scenario.conflicts if conflict[0] not in can)
    if unsolved or len(scenario.theirs) > 1:
        with pytest.raises(RebaseFailedError) as caught:
            session.rebase(solver)
        if len(scenario.theirs) == 1:
            assert _list_conflicts(caught.value) == unsolved
    else:
        session.rebase(solver)
    if len(scenario.theirs) == 1:
        asked = RebaseFailedError(snapshot="", conflicts=solver.asked)
        assert _list_conflicts(asked) == scenario.conflicts


def test_a_solver_that_answers_nothing() -> None:
    """The base class itself decides nothing."""
    with pytest.raises(NotImplementedError):
        ConflictSolver().decide(Conflict(ConflictType.ChunkDoubleUpdate, "/a", [[0]]))


def test_replay_stops_at_the_commit_that_conflicts(generation: str) -> None:
    """A session stays rebased up to the last good commit, sees it, and can go on from there."""
    repository = Repository.create(MemoryStorage(), generation=generation)
    scenario = Scenario(
        "",
        (
            _chunks("b", 0, data=b"first"),
            _chunks("b", 1, data=b"second"),
            _chunks("g/a", 1, data=b"third"),
            _chunks("b", 2, data=b"fourth"),
        ),
        _chunks("g/a", 1, data=b"ours"),
    )
    session = _play(repository, scenario)
    history = [info.id for info in repository.ancestry(branch="main")]
    with pytest.raises(RebaseFailedError) as caught:
        session.rebase(ConflictDetector())
    assert caught.value.snapshot == history[1]
    assert session.snapshot_id == history[2]
    assert get(session.store, "b/c/0") == b"first"
    assert get(session.store, "b/c/1") == b"second"
    assert get(session.store, "b/c/2") is None
    assert get(session.store, "g/a/c/1") == b"ours"
    session.commit("ours", rebase_with=BasicConflictSolver())
    after = repository.readonly_session("main").store
    assert [get(after, f"b/c/{index}") for index in range(3)] == [b"first", b"second", b"fourth"]
    assert get(after, "g/a/c/1") == b"ours"
    assert [info.id for info in repository.ancestry(branch="main")][1:] == history


def test_without_a_solver_any_commit_is_a_conflict(generation: str) -> None:
    """The error has both parents, and the session can still be rebased."""
    repository = Repository.create(MemoryStorage(), generation=generation)
    session = _play(repository, Scenario("", (_chunks("b", 0),), _chunks("g/a", 0)))
    tip, base = repository.lookup_branch("main"), session.snapshot_id
    with pytest.raises(ConflictError) as caught:
        session.commit("ours")
    assert not isinstance(caught.value, RebaseFailedError)
    assert (caught.value.expected_parent, caught.value.actual_parent) == (base, tip)
    assert session.snapshot_id == base
    session.rebase(ConflictDetector())
    assert session.snapshot_id == tip
    session.commit("ours")
    assert repository.lookup_snapshot(session.snapshot_id).parent_id == tip


@pytest.mark.parametrize(
    "generation, how", [*product(GENERATION_NAMES, ["reset"]), ("v2", "amend")]
)
def test_a_base_that_left_the_branch(generation: str, how: str) -> None:
    """A session whose base is no longer on the branch cannot be rebased, and says so."""
    repository = Repository.create(MemoryStorage(), generation=generation)
    session = _play(repository, Scenario("", (), _chunks("g/a", 0)))
    if how == "reset":
        parent = repository.lookup_snapshot(session.snapshot_id).parent_id
        repository.reset_branch("main", str(parent))
    else:
        other = repository.writable_session("main")
        put(other.store, "b/c/0", b"x")
        other.amend("amended")
    with pytest.raises(ConflictError, match="reset or amended"):
        session.commit("ours", rebase_with=BasicConflictSolver())
    assert session.has_uncommitted_changes


@pytest.mark.parametrize("change", [_chunks("g/a", 0), _puts(("b/zarr.json", array((9,))))])
def test_their_moves_cannot_be_rebased(change: Change, generation: str) -> None:
    """After a move no other session can be rebased."""
    repository = Repository.create(MemoryStorage(), generation=generation)
    session = _play(repository, Scenario("", (), change))
    mover = repository.rearrange_session("main")
    mover.move("/b", "/h/b")
    mover.commit("moved")
    with pytest.raises(RebaseFailedError) as caught:
        session.rebase(BasicConflictSolver())
    assert _list_conflicts(caught.value) == (("MoveOperationCannotBeRebased", "/b", None),)


def test_our_moves_take_their_updates_along(generation: str) -> None:
    """What we moved while others wrote into it has their chunks and metadata at its new place."""
    storage = MemoryStorage()
    repository = Repository.create(storage, generation=generation)
    first = _play(repository, Scenario("", (), _chunks("b", 1)))
    first.commit("begin")
    mover = repository.rearrange_session("main")
    theirs = repository.writable_session("main")
    _both(_chunks("g/a", 0, 7, data=b"theirs"), _puts(_A2))(theirs.store)
    theirs.commit("theirs")
    mover.move("/g", "/h/moved")
    mover.commit("moved", rebase_with=BasicConflictSolver())
    for session in (mover, Repository.open(storage).readonly_session("main")):
        found = contents(session.store)
        assert found["h/moved/a/zarr.json"] == _A2[1]
        assert found["h/moved/a/c/0"] == b"theirs"
        assert found["h/moved/a/c/1"] == b"begin"
        assert found["h/moved/a/c/7"] == b"theirs"
        assert not any(key.startswith("g/") for key in found)


def test_our_moves_do_not_meet_their_new_nodes(generation: str) -> None:
    """Where others created or deleted nodes, our moves are not replayed."""
    repository = Repository.create(MemoryStorage(), generation=generation)
    _play(repository, Scenario("", (), _chunks("b", 1))).commit("begin")
    mover = repository.rearrange_session("main")
    theirs = repository.writable_session("main")
    put(theirs.store, "g/new/zarr.json", group())
    theirs.commit("theirs")
    mover.move("/g", "/h/moved")
    with pytest.raises(RebaseFailedError) as caught:
        mover.commit("moved", rebase_with=BasicConflictSolver())
    assert _list_conflicts(caught.value) == (("MoveOperationCannotBeRebased", "/g", None),)


def test_other_rank_on_their_side(generation: str) -> None:
    """An array that others gave another rank conflicts with our chunks, and with nothing worse."""
    for ours, theirs in (((8,), (8, 8)), ((8, 8), (8,))):
        repository = Repository.create(MemoryStorage(), generation=generation)
        first = repository.writable_session("main")
        put(first.store, "x/zarr.json", array(ours))
        first.commit("begin")
        session, other = (repository.writable_session("main") for _ in range(2))
        put(other.store, "x/zarr.json", array(theirs))
        put(other.store, "/".join(["x/c", *["1"] * len(theirs)]), b"theirs")
        other.commit("theirs")
        put(session.store, "/".join(["x/c", *["1"] * len(ours)]), b"ours")
        with pytest.raises(RebaseFailedError) as caught:
            session.rebase(BasicConflictSolver())
        assert _list_conflicts(caught.value) == (("ChunksUpdatedInUpdatedArray", "/x", None),)


def test_rebase_attempts_are_recorded(generation: str) -> None:
    """A commit with a solver records how often it was rebased, one without does not."""
    repository = Repository.create(MemoryStorage(), generation=generation)
    session = _play(repository, Scenario("", (_chunks("b", 0),), _chunks("g/a", 0)))
    tip = session.commit("ours", {"mine": 1}, rebase_with=ConflictDetector())
    assert repository.lookup_snapshot(tip).metadata == {
        "mine": 1,
        "__icechunk": {"rebase_attempts": 1},
    }
    session = repository.writable_session("main")
    put(session.store, "b/c/1", b"x")
    tip = session.commit("ours", rebase_with=ConflictDetector())
    assert repository.lookup_snapshot(tip).metadata == {"__icechunk": {"rebase_attempts": 0}}
    session = repository.writable_session("main")
    put(session.store, "b/c/1", b"y")
    assert repository.lookup_snapshot(session.commit("ours")).metadata == {}


def test_no_tries_left(generation: str) -> None:
    """With no tries left the conflict is raised, and nothing was rebased."""
    repository = Repository.create(MemoryStorage(), generation=generation)
    session = _play(repository, Scenario("", (_chunks("b", 0),), _chunks("g/a", 0)))
    base = session.snapshot_id
    with pytest.raises(ConflictError):
        session.commit("ours", rebase_with=ConflictDetector(), rebase_tries=0)
    assert session.snapshot_id == base


def test_manifests_are_not_written_again_after_a_rebase(generation: str) -> None:
    """A second attempt writes manifests only of arrays that the other commit touched."""
    counting = CountingStorage(MemoryStorage())
    repository = Repository.create(counting, generation=generation)
    session = _play(repository, Scenario("", (_chunks("b", 0),), _chunks("g/a", 0)))
    counting.forget()
    session.commit("ours", rebase_with=ConflictDetector())
    written = [find_kind(key, generation) for key in counting.keys("put")]
    assert written.count("manifests") == 1
    assert written.count("snapshots") == 2


def test_commits_of_chunks_of_other_arrays_are_not_examined() -> None:
    repository = Repository.create(MemoryStorage())
    with repository.transaction("main", message="begin") as store:
        _begin(store)
    session = repository.writable_session("main")
    put(session.store, "b/c/0", b"ours")
    for number in range(3):
        with repository.transaction("main", message="theirs") as store:
            put(store, f"g/a/c/{number}", b"theirs")
    with patch.object(rebase, "_find_conflicts", side_effect=AssertionError):
        session.rebase(ConflictDetector())
    session.commit("ours")
    found = contents(repository.readonly_session("main").store)
    assert found["b/c/0"] == b"ours"
    assert [found[f"g/a/c/{number}"] for number in range(4)] == [b"theirs"] * 3 + [b"begin"]
