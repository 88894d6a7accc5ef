"""What each operation asks of the storage: how often, in which order, and what at one time.

The storage of these tests forbids listing, as some credentials do. Only generation ``sequence``
needs it: one bounded listing finds the newest file of a branch.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import zarr

from icefloe.conflicts import ConflictDetector
from icefloe.errors import AbsentOrDeniedError
from icefloe.format.generation import get_generation
from icefloe.model.config import RepositoryConfig
from icefloe.model.manifest_config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.refs.opening import RefsAtOpening
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage, local_filesystem_storage
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.latency import LatencyStorage
from support.counting_storage import CountingStorage, overlapping
from support.generations import GENERATION_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from icefloe.storage import ObjectInfo, Storage
    from support.counting_storage import Call

LATENCY_MS = 10
# So long that requests meet which start together on a machine with much else to do.
LONG_LATENCY_MS = 250


# The requests that find the tip of a branch in an open repository, and those that publish a commit.
FIND_TIP = {
    "draft": ["get state"],
    "sequence": ["list_first branch", "get branch"],
    "v1": ["get branch"],
    "v2": ["get_if_changed repo"],
}
PUBLISH = {
    "draft": ["put state"],
    "sequence": ["put branch", "list_first branch"],
    "v1": ["put branch"],
    "v2": ["put backup", "put repo"],
}
# The requests of opening except ``get repo``; those of v1 and v2 are concurrent with it.
DETECT = {
    "draft": ["get branch", "get config", "get state"],
    "sequence": ["get branch", "get branch", "get config", "get state", "list_first branch"],
    "v1": ["get branch", "get config"],
    "v2": ["get branch", "get config"],
}


class WithoutListing(ForwardingStorage):
    """Another storage whose owner forbids listing."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Refuse."""
        raise AbsentOrDeniedError(f"listing {prefix!r} is forbidden")

    def list_first(self, prefix: str, limit: int) -> Sequence[ObjectInfo]:
        """Refuse."""
        raise AbsentOrDeniedError(f"listing {prefix!r} is forbidden")


class WithoutFullListing(WithoutListing):
    """Allows a page of a listing, which the generation sequence needs."""

    def list_first(self, prefix: str, limit: int) -> Sequence[ObjectInfo]:
        """List the first objects of the other storage."""
        return ForwardingStorage.list_first(self, prefix, limit)


@dataclass
class Setup:
    """A repository with one array of four chunks, none of them inlined."""

    generation: str
    inner: Storage
    storage: CountingStorage

    @property
    def has_logs(self) -> bool:
        """Whether commits write transaction logs."""
        return get_generation(self.generation).has_transaction_logs

    def slow_down(self) -> None:
        """Let requests take so long that those that start together are seen together."""
        slow = self.storage.inner
        assert isinstance(slow, LatencyStorage)
        slow.read_latency_ms = slow.write_latency_ms = LONG_LATENCY_MS

    def requests(self) -> list[str]:
        """Tell the requests since the last time: what was done to which kind of file."""
        calls = sorted(self.storage.calls, key=lambda call: call.started)
        self.storage.forget()
        return [_name(call) for call in calls]

    def call(self, name: str) -> Call:
        """Return the one request of that name since the last time."""
        (found,) = [call for call in self.storage.calls if _name(call) == name]
        return found


def _name(call: Call) -> str:
    verb = call.name.removesuffix("_async").removesuffix("_bytes")
    return f"{verb} {_kind(call.key)}"


def _kind(key: str) -> str:
    first, _, rest = key.partition("/")
    if first == "refs":
        return "deleted tag" if rest.endswith(".deleted") else rest.partition(".")[0]
    if first == "r":
        return "branch" if "/" in rest else "tag"
    return {
        "s": "snapshot",
        "m": "manifest",
        "i": "manifest",
        "c": "chunk",
        "state.json": "state",
        "snapshots": "snapshot",
        "manifests": "manifest",
        "transactions": "log",
        "chunks": "chunk",
        "overwritten": "backup",
        "config.yaml": "config",
    }.get(first, first)


def commit(storage: Storage, value: int, branch: str = "main") -> str:
    session = Repository.open(storage).writable_session(branch)
    open_array(session, "r+")[0:2] = value
    return session.commit(str(value))


def open_array(session: Any, mode: Any = "r") -> Any:
    return zarr.open_array(session.store, path="a", mode=mode)


@pytest.fixture(params=GENERATION_NAMES)
def setup(request: pytest.FixtureRequest) -> Setup:
    inner = in_memory_storage()
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    repository = Repository.create(inner, config, generation=request.param)
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(2,), dtype="i8")[:] = 1
    repository.create_tag("t", session.commit("made"))
    restricted = (WithoutFullListing if request.param == "sequence" else WithoutListing)(inner)
    slow = LatencyStorage(restricted, read_latency_ms=LATENCY_MS, write_latency_ms=LATENCY_MS)
    return Setup(request.param, inner, CountingStorage(slow))


def test_one_chunk_from_nothing(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening, a session and a chunk are six requests in versions 1 and 2, three concurrent.

    The older generations are looked for when the others are absent.
    """
    monkeypatch.setattr(RefsAtOpening, "_VALID_S", 60)  # however busy the machine is
    setup.slow_down()
    session = Repository.open(setup.storage).readonly_session("main")
    assert open_array(session)[0:2].tolist() == [1, 1]
    if setup.generation in {"v1", "v2"}:
        assert overlapping([setup.call(f"get {kind}") for kind in ("repo", "config", "branch")])
    *detection, snapshot, manifest, chunk = setup.requests()
    assert sorted(detection) == sorted(["get repo", *DETECT[setup.generation]])
    assert [snapshot, manifest, chunk] == ["get snapshot", "get manifest", "get chunk"]


def test_more_chunks_and_sessions(setup: Setup) -> None:
    """What is immutable is fetched once, for all sessions of a repository."""
    setup.slow_down()
    repository = Repository.open(setup.storage)
    open_array(repository.readonly_session("main"))[0:2]
    setup.requests()
    session = repository.readonly_session(snapshot_id=repository.lookup_branch("main"))
    setup.requests()
    open_array(session)[2:4]
    assert setup.requests() == ["get chunk"]
    open_array(session)[:]
    assert setup.storage.most_at_once() == 4  # the chunks of one read come together
    assert setup.requests() == ["get chunk"] * 4


def test_a_commit_of_one_chunk(setup: Setup) -> None:
    """A commit writes each kind of file once, the immutable ones together."""
    setup.slow_down()
    repository = Repository.open(setup.storage)
    setup.requests()
    find_tip = FIND_TIP[setup.generation]
    session = repository.writable_session("main")
    assert setup.requests() == [*find_tip, "get snapshot"]
    open_array(session, "r+")[0:2] = 5
    assert setup.requests() == ["put chunk"]
    session.commit("five")
    files = ["put manifest", "put snapshot", *(["put log"] if setup.has_logs else [])]
    assert overlapping([setup.call(name) for name in files])
    publish = PUBLISH[setup.generation]
    requests = setup.requests()
    begin, end = len(find_tip) + 1, len(requests) - len(publish)
    assert requests[:begin] == [*find_tip, "get manifest"]
    assert sorted(requests[begin:end]) == sorted(files)
    assert requests[end:] == publish
    # The session and the repository have the new snapshot at hand.
    assert open_array(session)[2:4].tolist() == [1, 1]
    assert setup.requests() == ["get chunk"]
    repository.writable_session("main")
    assert setup.requests() == find_tip


def test_chunks_are_written_side_by_side(setup: Setup) -> None:
    """Four chunks of one assignment are under way together, and share all other requests."""
    setup.slow_down()
    session = Repository.open(setup.storage).writable_session("main")
    setup.requests()
    open_array(session, "r+")[:] = 2
    assert setup.storage.most_at_once() == 4
    assert setup.requests() == ["put chunk"] * 4
    session.commit("all")
    num_refs_requests = len(FIND_TIP[setup.generation]) + len(PUBLISH[setup.generation])
    assert len(setup.requests()) == num_refs_requests + 3 + setup.has_logs


def test_rebase_over_five_commits(setup: Setup) -> None:
    """A rebase over commits of chunks reads their logs together, and one snapshot, the last.

    In version 1 the snapshots say what comes before them, so each is read, but once.
    """
    if not setup.has_logs:
        pytest.skip("compares snapshots")
    setup.slow_down()
    session = Repository.open(setup.storage).writable_session("main")
    open_array(session, "r+")[6:8] = 7
    for value in range(5):
        commit(setup.inner, value)
    setup.requests()
    session.rebase(ConflictDetector())
    assert setup.storage.most_at_once() == 5
    find_tip = FIND_TIP[setup.generation]
    if setup.generation == "v1":
        assert setup.requests() == [*find_tip, *["get snapshot"] * 5, *["get log"] * 5]
    else:
        assert setup.requests() == [*find_tip, *["get log"] * 5, "get snapshot"]
    session.commit("rebased")
    session = Repository.open(setup.inner).readonly_session("main")
    assert open_array(session)[:].tolist() == [4, 4, 1, 1, 1, 1, 7, 7]


def test_looking_things_up(setup: Setup) -> None:
    """Names are one request each, one more for what version 1 keeps in files of its own."""
    is_v1 = setup.generation == "v1"
    find_tip = FIND_TIP[setup.generation]
    assert Repository.exists(setup.storage)
    probes = ["get repo", "head branch", "head state", "list_first branch"]
    num_probes = {"v2": 1, "v1": 2, "draft": 3, "sequence": 4}[setup.generation]
    assert setup.requests() == probes[:num_probes]
    assert not Repository.exists(WithoutListing(in_memory_storage()))
    repository = Repository.open(setup.storage)
    assert len(setup.requests()) == 1 + len(DETECT[setup.generation])
    repository.lookup_branch("main")
    assert setup.requests() == find_tip
    repository.lookup_tag("t")
    tag = ["get tag"] if setup.generation == "sequence" else find_tip
    tag = ["head deleted tag", "get tag"] if is_v1 else tag
    assert setup.requests() == tag
    repository.readonly_session(tag="t")
    assert setup.requests() == [*tag, "get snapshot"]
    repository.readonly_session("main", as_of=datetime.now(UTC))
    assert setup.requests() == find_tip
    list(repository.ancestry(branch="main"))
    assert setup.requests() == (["get branch", "get snapshot"] if is_v1 else find_tip)


def test_a_known_state_is_not_transferred() -> None:
    """Version 2 transfers ``repo`` only if another process changed it."""
    inner = in_memory_storage()
    Repository.create(inner, generation="v2")
    storage = CountingStorage(inner)
    repository = Repository.open(storage)
    storage.forget()
    tip = repository.lookup_branch("main")
    repository.create_tag("ours", tip)
    repository.lookup_tag("ours")
    assert storage.counts() == {"get_if_changed": 3, "put": 2}
    assert storage.size_bytes("get_if_changed") == 0
    Repository.open(inner).create_tag("theirs", tip)
    repository.lookup_tag("theirs")
    assert storage.size_bytes("get_if_changed") > 0


def test_forks(setup: Setup, tmp_path: Path) -> None:
    """Forking a clean session asks nothing, and neither does its copy until it has to read."""
    session = Repository.open(setup.storage).writable_session("main")
    setup.requests()
    session.fork()
    assert setup.requests() == []
    local = local_filesystem_storage(tmp_path)
    repository = Repository.create(local, generation=setup.generation)
    with repository.transaction("main", message="made") as store:
        zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i8")
    fork = pickle.loads(pickle.dumps(repository.writable_session("main").fork()))  # noqa: S301
    counting = fork.connection.assets.storage = CountingStorage(local)
    assert fork.store.session is fork
    assert str(repository.lookup_branch("main")) in repr(fork)
    assert counting.calls == ()
    open_array(fork, "r+")[0:2] = 7
    assert counting.counts() == {"get": 1}  # the snapshot; so small a chunk stays in memory


def test_a_split_array(setup: Setup) -> None:
    """A commit of one chunk replaces the manifest around it and leaves the others alone."""
    rules = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Axis(0): 1}}
    config = RepositoryConfig(
        manifest=ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rules))
    )
    Repository.open(setup.inner, config).rewrite_manifests("split", branch="main")
    before = _manifests(setup)
    assert len(before) == 4
    session = Repository.open(setup.storage, config).writable_session("main")
    open_array(session, "r+")[2:4] = 3
    setup.requests()
    session.commit("one")
    requests = setup.requests()
    assert (requests.count("get manifest"), requests.count("put manifest")) == (1, 1)
    assert len(_manifests(setup) & before) == 3


def _manifests(setup: Setup) -> set[str]:
    repository = Repository.open(setup.inner)
    tip = repository.lookup_branch("main")
    return {info.id for info in repository.list_manifest_files(tip)}


def test_two_thousand_small_arrays(setup: Setup) -> None:
    """Arrays with few chunks share manifest files, and so a commit of many is few requests."""
    repository = Repository.open(setup.inner)
    session = repository.writable_session("main")
    for number in range(2000):
        path = session.path(f"many/{number}")
        session.transaction.set_metadata(path, _ARRAY)
        session.transaction.set_chunk(path, (0,), b"12345678")
    counting = CountingStorage(setup.inner)
    session.connection.assets.storage = counting
    session.commit("many")
    written = [_kind(key) for key in counting.keys("put")]
    assert written.count("log") == setup.has_logs
    assert written.count("manifest") <= 2
    assert _manifests(setup)


_ARRAY = (
    b'{"zarr_format":3,"node_type":"array","shape":[8],"data_type":"int8",'
    b'"chunk_grid":{"name":"regular","configuration":{"chunk_shape":[8]}},'
    b'"chunk_key_encoding":{"name":"default"},"fill_value":0,"codecs":[{"name":"bytes"}]}'
)


def test_what_opening_read_is_soon_forgotten(setup: Setup) -> None:
    """Only the first reader right after opening may use it; later ones see newer commits."""
    repository = Repository.open(setup.storage)
    setup.requests()
    newer = commit(setup.inner, 2)
    time.sleep(0.06)
    assert repository.readonly_session("main").snapshot_id == newer
    repository = Repository.open(setup.storage)
    newer = commit(setup.inner, 3)
    assert repository.writable_session("main").snapshot_id == newer
    repository = Repository.open(setup.storage)
    repository.readonly_session("main")
    newer = commit(setup.inner, 4)
    assert repository.readonly_session("main").snapshot_id == newer
    assert repository.lookup_branch("main") == newer


def test_a_session_keeps_its_snapshot(setup: Setup) -> None:
    """Whatever others commit, a session reads what it began with."""
    session = Repository.open(setup.storage).readonly_session("main")
    commit(setup.inner, 9)
    assert open_array(session)[0:2].tolist() == [1, 1]
