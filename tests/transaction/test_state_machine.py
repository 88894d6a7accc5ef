"""Any sequence of calls, against models that are plain dictionaries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count, product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from icefloe.conflicts import BasicConflictSolver, ConflictDetector, VersionSelection
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    RebaseFailedError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.generation import get_generation
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.model.manifest_config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.model.path import Path
from icefloe.repository import Repository
from icefloe.types import ChunkType
from support.zarr_nodes import array, chunk_key, contents, delete, delete_node, group, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.session import ForkSession, Session
    from icefloe.storage import Storage
    from transaction.conftest import Place

Content = dict[str, bytes]

_SETTINGS = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

_SPLIT = ManifestConfig(
    splitting=ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 2}}
    )
)
_CONFIGS = [
    RepositoryConfig(inline_chunk_threshold_bytes=2),
    RepositoryConfig(inline_chunk_threshold_bytes=2, manifest=_SPLIT),
    RepositoryConfig(
        inline_chunk_threshold_bytes=2,
        manifest=_SPLIT,
        packing=PackingConfig(max_chunk_bytes=50, target_object_bytes=20),
    ),
]

_NAMES = st.sampled_from(["a", "b", "a/b", "b/a", "a/b/a"])
_GRIDS = st.sampled_from([(), (3,), (2, 2), (5,)])
_BRANCHES = st.sampled_from(["main", "dev", "old"])
_TAGS = st.sampled_from(["v1", "v2", "v3"])
_VALUES = st.sampled_from([b"i", b"native", b"another native"])


_PICKS = st.integers(0, 30)
_CHUNK_CHANGES = st.tuples(st.just("set_chunk"), _PICKS, _VALUES) | st.tuples(
    st.just("delete_chunk"), _PICKS
)
_CHANGES = st.one_of(
    _CHUNK_CHANGES,
    _CHUNK_CHANGES,
    st.tuples(st.just("set_group"), _NAMES, st.integers(0, 2)),
    st.tuples(st.just("create_array"), _NAMES, _GRIDS),
    st.tuples(st.just("delete_node"), _NAMES),
    st.tuples(st.just("resize"), _PICKS, st.integers(1, 6)),
    st.tuples(st.just("shift"), _PICKS, st.integers(-3, 3)),
    st.tuples(st.just("create_root")),
)

_ENDS = st.sampled_from(["commit", "commit", "go_on", "amend", "flush", "discard"])


def _is_array(content: Content, path: str) -> bool:
    document = content.get(f"{path}/zarr.json")
    return document is not None and json.loads(document)["node_type"] == "array"


def _arrays(content: Content) -> list[str]:
    paths = [key.removesuffix("/zarr.json") for key in content if key.endswith("/zarr.json")]
    return sorted(path for path in paths if _is_array(content, path))


def _chunk_keys(content: Content, path: str) -> list[str]:
    shape = json.loads(content[f"{path}/zarr.json"])["shape"]
    return ["/".join([path, "c", *map(str, coords)]) for coords in product(*map(range, shape))]


def _nodes(content: Content) -> dict[str, bytes]:
    """Return the documents of all nodes, by the paths that diffs tell."""
    return {
        f"/{key.removesuffix('zarr.json').strip('/')}": document
        for key, document in content.items()
        if key == "zarr.json" or key.endswith("/zarr.json")
    }


def _below(content: Content, path: str) -> list[str]:
    return [key for key in content if key.startswith(f"{path}/")]


@dataclass
class _Fork:
    session: ForkSession
    content: Content
    touched: dict[str, bytes | None] = field(default_factory=dict)


class OneWriter(RuleBasedStateMachine):
    """All of the API, one writer at a time; the model of a snapshot is its keys and values."""

    generation = "v1"
    has_logs = True
    make_storage: Callable[[], Storage]

    @initialize(config=st.sampled_from(_CONFIGS))
    def create(self, config: RepositoryConfig) -> None:
        self.storage = self.make_storage()
        self.repository = Repository.create(self.storage, config, generation=self.generation)
        first = self.repository.lookup_branch("main")
        self.snapshots: dict[str, Content] = {first: {}}
        self.parents: dict[str, str | None] = {first: None}
        self.branches = {"main": first}
        self.tags: dict[str, str] = {}
        self.deleted_tags: set[str] = set()
        self.with_moves: set[str] = set()
        self.begin("main")
        self.create_root()
        self.set_group("a", 0)
        self.create_array("b", (5,))
        for pick in range(5):
            self.set_chunk(pick, b"begin")
        self.commit()

    # -- the session

    @rule(steps=st.lists(_CHANGES, min_size=1, max_size=5), end=_ENDS)
    def work(self, steps: list[tuple[Any, ...]], end: str) -> None:
        """Do several things to nodes and chunks, and perhaps end the session."""
        self._change(steps)
        self.sees_its_own_writes()
        getattr(self, end)()

    def _change(self, steps: list[tuple[Any, ...]]) -> None:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)

    def go_on(self) -> None:
        """Leave the changes uncommitted for now."""

    @rule(branch=_BRANCHES)
    def begin(self, branch: str) -> None:
        """Leave the session that there is, and begin another."""
        branch = branch if branch in self.branches else "main"
        self.session = self.repository.writable_session(branch)
        self.branch = branch
        self.base = self.branches[branch]
        self.content = dict(self.snapshots[self.base])
        self.created: set[str] = set()
        self.forks: list[_Fork] = []

    def set_group(self, path: str, number: int) -> None:
        """Create a group, or give one other attributes."""
        self._set_node(path, group(number=number), is_array=False)

    def create_array(self, path: str, grid: tuple[int, ...]) -> None:
        """Create an array where nothing is, or be refused."""
        if f"{path}/zarr.json" not in self.content:
            self._set_node(path, array(grid), is_array=True)

    def _set_node(self, path: str, document: bytes, *, is_array: bool) -> None:
        key = f"{path}/zarr.json"
        above = ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)]
        present = key in self.content
        is_refused = (
            _is_array(self.content, path) != is_array
            if present
            else any(_is_array(self.content, parent) for parent in above)
            or (is_array and bool(_below(self.content, path)))
        )
        if is_refused:
            with pytest.raises((AlreadyExistsError, ValueError)):
                put(self.session.store, key, document)
        else:
            put(self.session.store, key, document)
            self.content[key] = document
            if present:
                self.forks.clear()
            else:
                self.created.add(f"/{path}")

    def delete_node(self, path: str) -> None:
        """Delete a node and all below it, or nothing where nothing is."""
        delete_node(self.session.store, path)
        for key in _below(self.content, path):
            del self.content[key]
        self.created &= _nodes(self.content).keys()
        self.forks.clear()

    def set_chunk(self, pick: int, value: bytes) -> None:
        """Write a chunk of some array."""
        if key := self._some_chunk(self.content, pick):
            put(self.session.store, key, value)
            self.content[key] = value

    def delete_chunk(self, pick: int) -> None:
        """Delete a chunk of some array, there or not."""
        if key := self._some_chunk(self.content, pick):
            delete(self.session.store, key)
            self.content.pop(key, None)

    @staticmethod
    def _some_chunk(content: Content, pick: int) -> str | None:
        every = [key for path in _arrays(content) for key in _chunk_keys(content, path)]
        return every[pick % len(every)] if every else None

    def resize(self, pick: int, length: int) -> None:
        """Give an array another length, and delete what is outside, as Zarr does."""
        if arrays := _arrays(self.content):
            path = arrays[pick % len(arrays)]
            rank = len(json.loads(self.content[f"{path}/zarr.json"])["shape"])
            document = array((length,) * rank)
            inside = {**self.content, f"{path}/zarr.json": document}
            kept = {*_chunk_keys(inside, path), f"{path}/zarr.json"}
            for key in set(_below(self.content, path)) - kept:
                delete(self.session.store, key)
                del self.content[key]
            put(self.session.store, f"{path}/zarr.json", document)
            self.content[f"{path}/zarr.json"] = document
            self.forks.clear()

    def shift(self, pick: int, offset: int) -> None:
        """Move all chunks of an array along all of its dimensions."""
        if arrays := _arrays(self.content):
            path = arrays[pick % len(arrays)]
            places = _chunk_keys(self.content, path)
            rank = len(json.loads(self.content[f"{path}/zarr.json"])["shape"])
            self.session.shift_array(path, [offset] * rank)
            moved = {key: self.content.pop(key) for key in places if key in self.content}
            for key, value in moved.items():
                indices = key.split("/")[-rank:] if rank else []
                target = "/".join([path, "c", *(str(int(index) + offset) for index in indices)])
                if target in places:
                    self.content[target] = value
            self.forks.clear()

    def discard(self) -> None:
        """Forget what was not committed."""
        self.session.discard_changes()
        self.created.clear()
        self.content = dict(self.snapshots[self.base])
        self.forks.clear()

    # -- forks

    @rule(
        ours=st.lists(_CHUNK_CHANGES, min_size=1, max_size=3),
        theirs=st.lists(_CHUNK_CHANGES, min_size=1, max_size=3),
        end=_ENDS,
    )
    def work_in_parallel(
        self, ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]], end: str
    ) -> None:
        """Fork, write on both sides, and merge."""
        self.fork()
        self.change_in_fork(len(self.forks) - 1, theirs)
        self._change(ours)
        self.merge()
        self.sees_its_own_writes()
        getattr(self, end)()

    def fork(self) -> None:
        """Fork the session as it is."""
        if len(self.forks) < 2:
            self.forks.append(_Fork(self.session.fork(), dict(self.content)))

    def change_in_fork(self, number: int, steps: list[tuple[Any, ...]]) -> None:
        """Write and delete chunks in a fork, unseen by other sessions."""
        fork = self.forks[number % len(self.forks)]
        for name, pick, *value in steps:
            key = self._some_chunk(fork.content, pick)
            if key is None:
                continue
            if name == "set_chunk":
                put(fork.session.store, key, value[0])
                fork.content[key] = fork.touched[key] = value[0]
            else:
                delete(fork.session.store, key)
                if fork.content.pop(key, None) is not None:
                    fork.touched[key] = None

    def merge(self) -> None:
        """Merge the oldest fork; its chunks win."""
        fork = self.forks.pop(0)
        assert contents(fork.session.store) == fork.content
        self.session.merge(fork.session, on_chunk_conflict=VersionSelection.UseTheirs)
        for key, value in fork.touched.items():
            if value is None:
                self.content.pop(key, None)
            else:
                self.content[key] = value

    # -- becoming snapshots

    def commit(self) -> None:
        """Commit, unless the branch went elsewhere meanwhile."""
        if self.branches.get(self.branch) != self.base:
            self._expect_conflict(lambda: self.session.commit("stale", allow_empty=True))
            return
        if self.content != self.snapshots[self.base]:
            assert self.session.has_uncommitted_changes
        self.tells_its_changes()
        status, base = self.session.status(), self.base
        tip = self.session.commit("commit", allow_empty=True)
        if not self.has_logs:
            self._drop_rewrites(status.updated_chunks, base, tip)
        assert self.repository.diff(from_snapshot_id=base, to_snapshot_id=tip) == status
        self._now_there(tip, self.base)
        self.branches[self.branch] = tip
        self.begin(self.branch)

    def _drop_rewrites(self, chunks: dict[str, list[list[int]]], before: str, after: str) -> None:
        """Drop chunks with the same references as before, which leave no trace without logs."""
        old, new = (
            self.repository.readonly_session(snapshot_id=snapshot_id).transaction
            for snapshot_id in (before, after)
        )
        for name, rows in list(chunks.items()):
            path = Path(name)
            rows[:] = [
                row
                for row in rows
                if (None if name in self.created else old.get_payload(path, tuple(row)))
                != new.get_payload(path, tuple(row))
            ]
            if not rows:
                del chunks[name]

    def amend(self) -> None:
        """Amend the last commit, where that can be."""
        if self.branches.get(self.branch) != self.base:
            return
        parent = self.parents[self.base]
        if not get_generation(self.generation).has_repo_info:
            with pytest.raises(FormatError) as refused:
                self.session.amend("amended", allow_empty=True)
            assert refused.value.kind is ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
        elif parent is None or self.base in self.with_moves:
            with pytest.raises(SessionStateError):
                self.session.amend("amended", allow_empty=True)
        else:
            tip = self.session.amend("amended", allow_empty=True)
            self._now_there(tip, parent)
            self.branches[self.branch] = tip
            self.begin(self.branch)

    def flush(self) -> None:
        """Write a snapshot that no branch shows."""
        tip = self.session.flush("flushed")
        self._now_there(tip, self.base)
        self.begin(self.branch)

    @rule(source=_NAMES, aim=_NAMES)
    def move(self, source: str, aim: str) -> None:
        """Move a node in a session of its own, and commit that."""
        if self.session.has_uncommitted_changes:
            return
        self.begin(self.branch)
        mover = self.repository.rearrange_session(self.branch)
        parent = aim.rpartition("/")[0]
        can = (
            f"{source}/zarr.json" in self.content
            and not f"{aim}/".startswith(f"{source}/")
            and not _below(self.content, aim)
            and f"{parent}/zarr.json".lstrip("/") in self.content
            and not _is_array(self.content, parent)
        )
        if not can:
            with pytest.raises((SessionStateError, AlreadyExistsError, KeyError)):
                mover.move(f"/{source}", f"/{aim}")
            assert not mover.has_uncommitted_changes
            return
        mover.move(f"/{source}", f"/{aim}")
        for key in _below(self.content, source):
            self.content[aim + key[len(source) :]] = self.content.pop(key)
        assert contents(mover.store) == self.content
        tip = mover.commit("moved")
        self.with_moves.add(tip)
        self._now_there(tip, self.base)
        self.branches[self.branch] = tip
        self.begin(self.branch)

    def create_root(self) -> None:
        """Create the root group, below which nodes can be moved."""
        put(self.session.store, "zarr.json", group())
        if "zarr.json" not in self.content:
            self.created.add("/")
        self.content["zarr.json"] = group()

    def _now_there(self, snapshot_id: str, parent: str | None) -> None:
        self.snapshots[snapshot_id] = dict(self.content)
        self.parents[snapshot_id] = parent
        assert self.session.read_only or self.session.snapshot_id == self.base

    def _expect_conflict(self, act: Callable[[], object]) -> None:
        with pytest.raises((ConflictError, KeyError)):
            act()
        assert contents(self.session.store) == self.content

    # -- references

    def _some_snapshot(self, pick: int) -> str:
        """Choose by age: ids are random, and a run must be the same when it is repeated."""
        return list(self.snapshots)[pick % len(self.snapshots)]

    @rule(branch=_BRANCHES, pick=_PICKS)
    def create_branch(self, branch: str, pick: int) -> None:
        """Create a branch anywhere, or get the error that it exists."""
        target = self._some_snapshot(pick)
        if branch in self.branches:
            with pytest.raises(AlreadyExistsError):
                self.repository.create_branch(branch, target)
        else:
            self.repository.create_branch(branch, target)
            self.branches[branch] = target

    @rule(branch=_BRANCHES, pick=_PICKS)
    def reset_branch(self, branch: str, pick: int) -> None:
        """Let a branch point anywhere."""
        if branch in self.branches:
            target = self._some_snapshot(pick)
            self.repository.reset_branch(branch, target)
            self.branches[branch] = target

    @rule(branch=_BRANCHES)
    def delete_branch(self, branch: str) -> None:
        """Delete any branch but main."""
        if branch in self.branches and branch != "main":
            self.repository.delete_branch(branch)
            del self.branches[branch]

    @rule(tag=_TAGS, pick=_PICKS)
    def create_tag(self, tag: str, pick: int) -> None:
        """Create a tag, whose name was never used."""
        target = self._some_snapshot(pick)
        if tag in self.tags or tag in self.deleted_tags:
            with pytest.raises(AlreadyExistsError):
                self.repository.create_tag(tag, target)
        else:
            self.repository.create_tag(tag, target)
            self.tags[tag] = target

    @rule(tag=_TAGS)
    def delete_tag(self, tag: str) -> None:
        """Delete a tag, where that can be."""
        if tag in self.tags and not get_generation(self.generation).can_delete_tags:
            with pytest.raises(FormatError) as refused:
                self.repository.delete_tag(tag)
            assert refused.value.kind is ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
        elif tag in self.tags:
            self.repository.delete_tag(tag)
            self.deleted_tags.add(tag)
            del self.tags[tag]

    # -- what must hold

    @rule(pick=_PICKS)
    def travel(self, pick: int) -> None:
        """Read any snapshot as it was, and its history."""
        target = self._some_snapshot(pick)
        reader = self.repository.readonly_session(snapshot_id=target)
        assert contents(reader.store) == self.snapshots[target]
        line = [info.id for info in self.repository.ancestry(snapshot_id=target)]
        expected: list[str] = []
        step: str | None = target
        while step is not None:
            expected.append(step)
            step = self.parents[step]
        assert line == expected

    @rule(branch=_BRANCHES, pick=_PICKS)
    def travel_in_time(self, branch: str, pick: int) -> None:
        """Read a branch as it was at the moment of a commit, and right before it."""
        if branch not in self.branches:
            return
        line = list(self.repository.ancestry(branch=branch))
        moment = line[pick % len(line)].written_at
        for as_of in (moment, moment - timedelta(microseconds=1)):
            older = [info.id for info in line if info.written_at <= as_of]
            if older:
                reader = self.repository.readonly_session(branch, as_of=as_of)
                assert reader.snapshot_id == older[0]
                assert contents(reader.store) == self.snapshots[older[0]]
            else:
                with pytest.raises(SnapshotNotFoundError) as refused:
                    self.repository.readonly_session(branch, as_of=as_of)
                assert refused.value.kind is ErrorKind.NO_SNAPSHOT_AT_TIME

    @rule()
    def tells_its_changes(self) -> None:
        """Compare the status with the model: nodes exactly, chunks at least those that differ."""
        status = self.session.status()
        before, now = self.snapshots[self.base], self.content
        nodes, nodes_before = _nodes(now), _nodes(before)
        kept = nodes.keys() - self.created
        updated = {path for path in kept if nodes[path] != nodes_before[path]}
        assert status.new_groups | status.new_arrays == self.created
        assert status.deleted_groups | status.deleted_arrays == nodes_before.keys() - kept
        assert status.updated_groups | status.updated_arrays == updated
        assert not status.moved_nodes
        for path in _arrays(now):
            known = {} if f"/{path}" in self.created else before
            updated = {
                chunk_key(path, indices) for indices in status.updated_chunks.get(f"/{path}", [])
            }
            places = _chunk_keys(now, path)
            assert updated >= {key for key in places if known.get(key) != now.get(key)}

    @rule(pick=_PICKS)
    def tells_where_chunks_are(self, pick: int) -> None:
        """Compare with what the configurations say: up to two bytes are inlined."""
        key = self._some_chunk(self.content, pick)
        if key is not None:
            path, _, indices = f"{key}/".rpartition("/c/")
            found = self.session.chunk_type(
                path, [int(index) for index in indices.split("/") if index]
            )
            value = self.content.get(key)
            expected = ChunkType.native if value is not None else ChunkType.uninitialized
            assert found is (
                ChunkType.inline if value is not None and len(value) <= 2 else expected
            )

    @invariant()
    def sees_its_own_writes(self) -> None:
        """Compare what the session shows with the model."""
        if hasattr(self, "session"):
            assert contents(self.session.store) == self.content

    def teardown(self) -> None:
        """Check that a repository that is opened again has everything."""
        if not hasattr(self, "session"):
            return
        fresh = Repository.open(self.storage)
        assert fresh.list_branches() == set(self.branches)
        assert fresh.list_tags() == set(self.tags)
        for name, tip in self.branches.items():
            assert fresh.lookup_branch(name) == tip
        for name, tip in self.tags.items():
            assert contents(fresh.readonly_session(tag=name).store) == self.snapshots[tip]
        for tip, content in self.snapshots.items():
            assert contents(fresh.readonly_session(snapshot_id=tip).store) == content


def _describe(generation: str, place: Place) -> dict[str, Any]:
    """Return the attributes of a machine for a generation and a place."""
    return {
        "generation": generation,
        "has_logs": get_generation(generation).has_transaction_logs,
        "make_storage": staticmethod(place.make_storage),
    }


def test_one_writer(generation: str, place: Place) -> None:
    """Whatever one writer does, everybody sees what a dictionary would show."""
    machine = type("OneWriter", (OneWriter,), _describe(generation, place))
    run_state_machine_as_test(machine, settings=place.limit(_SETTINGS, generation))


@dataclass
class _Node:
    """A node of the model; ``token`` stands for its id."""

    token: int
    document: bytes
    chunks: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> _Node:
        return _Node(self.token, self.document, dict(self.chunks))


_Tree = dict[str, _Node]


def _copy(tree: _Tree) -> _Tree:
    return {path: node.copy() for path, node in tree.items()}


def _content(tree: _Tree) -> Content:
    found = {f"{path}/zarr.json": node.document for path, node in tree.items()}
    for path, node in tree.items():
        found |= {f"{path}/c/{index}": value for index, value in node.chunks.items()}
    return found


@dataclass
class _Changes:
    """What one commit did, by tokens."""

    created: set[int]
    deleted: set[int]
    updated: set[int]
    chunks: dict[int, set[int]]


@dataclass
class _Writer:
    session: Session
    base_number: int
    base: _Tree
    tree: _Tree
    touched: dict[int, set[int]] = field(default_factory=dict)

    def committed(self, *, has_logs: bool) -> _Changes:
        """Say what others know of a commit: without logs, not what is inlined as before."""
        changes = self.changes()
        if has_logs:
            return changes
        before = {node.token: node.chunks for node in self.base.values()}
        after = {node.token: node.chunks for node in self.tree.values()}
        for token, chunks in list(changes.chunks.items()):
            old, new = before.get(token, {}), after[token]
            changes.chunks[token] = {
                index
                for index in chunks
                if old.get(index) != new.get(index) or len(new.get(index, b"")) > 2
            }
            if not changes.chunks[token]:
                del changes.chunks[token]
        return changes

    def changes(self) -> _Changes:
        before = {node.token: node.document for node in self.base.values()}
        after = {node.token: node.document for node in self.tree.values()}
        return _Changes(
            after.keys() - before.keys(),
            before.keys() - after.keys(),
            {key for key in before.keys() & after.keys() if before[key] != after[key]},
            {token: chunks for token, chunks in self.touched.items() if chunks and token in after},
        )


def _conflicts(base: _Tree, ours: _Tree, mine: _Changes, tree: _Tree, their: _Changes) -> set[str]:
    """Say by brute force which kinds of conflicts there are."""
    found = set()
    for path, node in ours.items():
        if node.token not in mine.created:
            continue
        if path in tree and tree[path].token not in mine.deleted:
            found.add("NewNodeConflictsWithExistingNode")
        above = path.rpartition("/")[0]
        if above in base and above not in tree and base[above].token not in mine.deleted:
            found.add("NewNodeInInvalidGroup")
    for path, node in tree.items():
        above = path.rpartition("/")[0]
        if node.token in their.created and above in tree and tree[above].token in mine.deleted:
            found.add("NewNodeInInvalidGroup")
    tokens = {node.token: path for path, node in base.items()}
    groups = {token for token, path in tokens.items() if path == "g"}
    if mine.updated & their.updated:
        found.add("ZarrMetadataDoubleUpdate")
    for token in mine.updated & their.deleted:
        kind = "Group" if token in groups else "Array"
        found.add(f"ZarrMetadataUpdateOfDeleted{kind}")
    for token, chunks in mine.chunks.items():
        if token in their.deleted:
            found.add("ChunksUpdatedInDeletedArray")
        if token in their.updated:
            found.add("ChunksUpdatedInUpdatedArray")
        if chunks & their.chunks.get(token, set()):
            found.add("ChunkDoubleUpdate")
    for token in mine.deleted:
        if token in their.updated or token in their.chunks:
            found.add("DeleteOfUpdatedGroup" if token in groups else "DeleteOfUpdatedArray")
    return found


_SOLVED = {"ChunkDoubleUpdate", "DeleteOfUpdatedArray", "DeleteOfUpdatedGroup"}


_ARRAYS = st.sampled_from(["g/a", "g/b", "c", "d"])
_INDICES = st.integers(0, 3)
_STEPS = st.one_of(
    st.tuples(st.just("set_chunk"), _ARRAYS, _INDICES, _VALUES),
    st.tuples(st.just("set_chunk"), _ARRAYS, _INDICES, _VALUES),
    st.tuples(st.just("delete_chunk"), _ARRAYS, _INDICES),
    st.tuples(st.just("update"), st.sampled_from(["g", "g/a", "g/b", "c"]), st.integers(0, 2)),
    st.tuples(st.just("delete_node"), st.sampled_from(["g", "g/a", "g/b", "c", "d"])),
    st.tuples(st.just("create_node"), st.sampled_from(["g", "g/a", "g/b", "d"])),
)

_WAYS = st.sampled_from(
    ["commit_with_solver", "commit_with_solver", "commit_without_solver", "rebase", "start_over"]
)


class TwoWriters(RuleBasedStateMachine):
    """Two sessions on one branch; the model says which commits conflict, and how it ends."""

    generation = "v1"
    has_logs = True
    make_storage: Callable[[], Storage]
    use_theirs = False

    @initialize()
    def create(self) -> None:
        self.storage = self.make_storage()
        config = RepositoryConfig(inline_chunk_threshold_bytes=2, manifest=_SPLIT)
        self.repository = Repository.create(self.storage, config, generation=self.generation)
        self.tokens = count()
        session = self.repository.writable_session("main")
        tree: _Tree = {}
        for path in ("g", "g/a", "g/b", "c"):
            document = group() if path == "g" else array((4,))
            put(session.store, f"{path}/zarr.json", document)
            tree[path] = _Node(next(self.tokens), document)
        session.commit("begin")
        self.history: list[tuple[_Tree, _Changes | None]] = [(tree, None)]
        self.writers = [self._begin(), self._begin()]

    def _begin(self) -> _Writer:
        tree = self.history[-1][0]
        session = self.repository.writable_session("main")
        return _Writer(session, len(self.history) - 1, _copy(tree), _copy(tree))

    @rule(
        first=st.lists(_STEPS, min_size=1, max_size=3),
        second=st.lists(_STEPS, min_size=1, max_size=3),
        ends=st.tuples(_WAYS, _WAYS),
    )
    def race(
        self,
        first: list[tuple[Any, ...]],
        second: list[tuple[Any, ...]],
        ends: tuple[str, str],
    ) -> None:
        """Let both writers change something, and end one after the other."""
        for writer_number, steps in enumerate((first, second)):
            for name, *arguments in steps:
                getattr(self, name)(writer_number, *arguments)
        for writer_number, end in enumerate(ends):
            self.sees_its_own_writes()
            getattr(self, end)(writer_number)

    def start_over(self, writer_number: int) -> None:
        """Leave all changes, and begin at the tip."""
        self.writers[writer_number] = self._begin()

    def set_chunk(self, writer_number: int, path: str, index: int, value: bytes) -> None:
        """Write a chunk."""
        writer = self.writers[writer_number]
        if path in writer.tree:
            put(writer.session.store, f"{path}/c/{index}", value)
            node = writer.tree[path]
            node.chunks[index] = value
            writer.touched.setdefault(node.token, set()).add(index)

    def delete_chunk(self, writer_number: int, path: str, index: int) -> None:
        """Delete a chunk."""
        writer = self.writers[writer_number]
        if path in writer.tree:
            delete(writer.session.store, f"{path}/c/{index}")
            node = writer.tree[path]
            if node.chunks.pop(index, None) is not None:
                writer.touched.setdefault(node.token, set()).add(index)

    def update(self, writer_number: int, path: str, number: int) -> None:
        """Change attributes."""
        writer = self.writers[writer_number]
        if path in writer.tree:
            document = group(number=number) if path == "g" else array((4,), number=number)
            put(writer.session.store, f"{path}/zarr.json", document)
            writer.tree[path].document = document

    def delete_node(self, writer_number: int, path: str) -> None:
        """Delete a node and what is below it."""
        writer = self.writers[writer_number]
        delete_node(writer.session.store, path)
        for key in [key for key in writer.tree if f"{key}/".startswith(f"{path}/")]:
            del writer.tree[key]

    def create_node(self, writer_number: int, path: str) -> None:
        """Create a node that is not there, in a group that is."""
        writer = self.writers[writer_number]
        above = path.rpartition("/")[0]
        if path not in writer.tree and (not above or above in writer.tree):
            document = group() if path == "g" else array((4,))
            put(writer.session.store, f"{path}/zarr.json", document)
            writer.tree[path] = _Node(next(self.tokens), document)

    def commit_without_solver(self, writer_number: int) -> None:
        """Commit, which fails if anybody was faster."""
        writer = self.writers[writer_number]
        if writer.base_number != len(self.history) - 1:
            with pytest.raises(ConflictError):
                writer.session.commit("stale", allow_empty=True)
            return
        writer.session.commit("commit", allow_empty=True)
        self.history.append((_copy(writer.tree), writer.committed(has_logs=self.has_logs)))
        self.writers[writer_number] = self._begin()

    def rebase(self, writer_number: int) -> None:
        """Rebase without a solver; it stops at the first commit that conflicts."""
        self._rebase(
            self.writers[writer_number],
            lambda writer: writer.session.rebase(ConflictDetector()),
            set(),
        )

    def commit_with_solver(self, writer_number: int) -> None:
        """Commit with a solver that prefers ours or theirs."""
        writer = self.writers[writer_number]
        side = VersionSelection.UseTheirs if self.use_theirs else VersionSelection.UseOurs
        solver = BasicConflictSolver(on_chunk_conflict=side)
        if self._rebase(
            writer,
            lambda one: one.session.commit("commit", rebase_with=solver, allow_empty=True),
            _SOLVED,
        ):
            self.history.append((_copy(writer.tree), writer.committed(has_logs=self.has_logs)))
            self.writers[writer_number] = self._begin()

    def _rebase(self, writer: _Writer, act: Callable[[_Writer], Any], solved: set[str]) -> bool:
        for number in range(writer.base_number + 1, len(self.history)):
            tree, theirs = self.history[number]
            assert theirs is not None
            mine = writer.changes()
            conflicts = _conflicts(writer.base, writer.tree, mine, tree, theirs)
            if conflicts - solved:
                with pytest.raises(RebaseFailedError) as caught:
                    act(writer)
                found = {conflict.conflict_type.name for conflict in caught.value.conflicts}
                assert found == conflicts - solved
                return False
            self._replay(writer, mine, tree, theirs)
            writer.base_number = number
        act(writer)
        return True

    def _replay(self, writer: _Writer, mine: _Changes, tree: _Tree, theirs: _Changes) -> None:
        """Do to their tree what we did to ours."""
        ours = {node.token: (path, node) for path, node in writer.tree.items()}
        after = {path: n.copy() for path, n in tree.items() if n.token not in mine.deleted}
        for path, node in after.items():
            if node.token in ours:
                assert ours[node.token][0] == path
                if node.token in mine.updated:
                    node.document = ours[node.token][1].document
                touched = writer.touched.get(node.token, set())
                if self.use_theirs:
                    touched -= theirs.chunks.get(node.token, set())
                for index in touched:
                    node.chunks.pop(index, None)
                    if index in ours[node.token][1].chunks:
                        node.chunks[index] = ours[node.token][1].chunks[index]
        for token in mine.created:
            path, node = ours[token]
            after[path] = node.copy()
        writer.base, writer.tree = _copy(tree), after

    @invariant()
    def sees_its_own_writes(self) -> None:
        """Compare what both sessions show with the model."""
        for writer in getattr(self, "writers", []):
            assert contents(writer.session.store) == _content(writer.tree)

    def teardown(self) -> None:
        """Check that a repository that is opened again has every commit."""
        if not hasattr(self, "history"):
            return
        fresh = Repository.open(self.storage)
        ids = [info.id for info in fresh.ancestry(branch="main")][::-1][1:]
        assert len(ids) == len(self.history)
        for snapshot_id, (tree, _) in zip(ids, self.history, strict=True):
            reader = fresh.readonly_session(snapshot_id=snapshot_id)
            assert contents(reader.store) == _content(tree)


@pytest.mark.parametrize("use_theirs", [False, True], ids=["ours", "theirs"])
def test_two_writers(generation: str, place: Place, *, use_theirs: bool) -> None:
    """Each of two writers commits, or gets exactly the conflicts."""
    attributes = _describe(generation, place) | {"use_theirs": use_theirs}
    machine = type("TwoWriters", (TwoWriters,), attributes)
    short = settings(_SETTINGS, stateful_step_count=8)
    run_state_machine_as_test(machine, settings=place.limit(short, generation))
