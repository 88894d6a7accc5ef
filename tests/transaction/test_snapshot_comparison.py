"""The changes of a commit, found by comparing snapshots, against its transaction log."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from icefloe.assets import Assets
from icefloe.format.generation import V2
from icefloe.model.chunk_payload import (
    ChunkRef,
    ETag,
    InlineChunk,
    LastModified,
    VirtualChunkRef,
)
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from icefloe.model.manifest_config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    DimensionShape,
    ManifestExtents,
    ManifestRef,
    NodeSnapshot,
)
from icefloe.model.path import Path
from icefloe.model.snapshot import Snapshot
from icefloe.model.transaction_log import NODE_SETS
from icefloe.model.tree import Tree
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from icefloe.storage.latency import LatencyStorage
from icefloe.transaction import payload_comparison
from icefloe.transaction.adopted import AdoptedManifest
from icefloe.transaction.array_manifests import compute_extents
from icefloe.transaction.commit_log import fetch_commit_logs
from icefloe.transaction.payload_comparison import find_different_rows
from icefloe.transaction.row_order import to_matrix
from icefloe.transaction.snapshot_comparison import compare_snapshots
from support.counting_storage import CountingStorage
from support.format_strategies import PAYLOADS
from support.hypothesis_examples import examples
from support.numbering_generation import NUMBERING, numbering_generation
from support.zarr_nodes import array, group

if TYPE_CHECKING:
    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.session import Session
    from icefloe.transaction.transaction import Transaction

Coords = tuple[int, ...]

_PATHS = [Path(f"/{name}") for name in ("a", "b", "g/a", "g/b")]
_PAYLOADS: list[ChunkPayload] = [
    InlineChunk(b"x"),
    InlineChunk(b"y"),
    InlineChunk(b"longer"),
    VirtualChunkRef("s3://bucket/a.nc", 0, 4),
    VirtualChunkRef("s3://bucket/a.nc", 4, 4),
    VirtualChunkRef("s3://bucket/b.nc", 0, 4),
    VirtualChunkRef("s3://bucket/b.nc", 0, 4, ETag("one")),
    VirtualChunkRef("s3://bucket/b.nc", 0, 4, ETag("two")),
    VirtualChunkRef("s3://bucket/b.nc", 0, 4, LastModified(7)),
]
_GRIDS = st.sampled_from([(), (3,), (6,), (2, 2), (3, 1)])
_PICKS = st.integers(0, 100)
_STEPS = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(_PATHS), _GRIDS),
    st.tuples(st.just("set_payload"), _PICKS, st.sampled_from(_PAYLOADS)),
    st.tuples(st.just("set_payload"), _PICKS, st.sampled_from(_PAYLOADS)),
    st.tuples(st.just("fill"), _PICKS, st.sampled_from(_PAYLOADS)),
    st.tuples(st.just("write"), _PICKS),
    st.tuples(st.just("delete_chunk"), _PICKS),
    st.tuples(st.just("resize"), _PICKS, st.integers(1, 6), st.booleans()),
    st.tuples(st.just("reshape"), _PICKS, _GRIDS),
    st.tuples(st.just("set_attributes"), _PICKS, st.integers(0, 2)),
    st.tuples(st.just("delete_node"), st.sampled_from([*_PATHS, Path("/g")])),
    st.tuples(st.just("adopt"), _PICKS),
)
_COMMITS = st.one_of(
    st.lists(_STEPS, max_size=6),
    st.lists(_STEPS, max_size=6),
    st.tuples(st.just("move"), st.sampled_from(_PATHS), st.sampled_from(_PATHS)),
    st.tuples(st.just("rewrite"), st.integers(1, 3)),
)


def _split(size: int) -> RepositoryConfig:
    rule = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): size}}
    return RepositoryConfig(
        inline_chunk_threshold_bytes=2,
        manifest=ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rule)),
    )


class _Writer:
    """Makes commits from the steps of a strategy, leaving out what is not possible."""

    def __init__(self, spec_version: int, split_size: int) -> None:
        self.storage = MemoryStorage()
        self.repository = Repository.create(
            self.storage, _split(split_size), spec_version=spec_version
        )
        self.ids = [self.repository.lookup_branch("main")]
        self.can_move = spec_version == 2
        self.commit([("create", Path("/a"), (6,)), ("fill", 0, _PAYLOADS[0])])

    def commit(self, steps: list[tuple[Any, ...]]) -> None:
        session = self.repository.writable_session("main")
        for name, *arguments in steps:
            getattr(self, name)(session, *arguments)
        self.ids.append(session.commit("commit", allow_empty=True))

    def move(self, source: Path, target: Path) -> None:
        session = self.repository.rearrange_session("main")
        transaction = session.transaction
        parent = target.ancestors()
        can_move = (
            transaction.get_node(source) is not None
            and transaction.get_node(target) is None
            and all(above.is_root or transaction.get_node(above) for above in parent)
        )
        if can_move and transaction.get_node(Path("/")) is not None:
            session.move(str(source), str(target))
            self.ids.append(session.commit("move"))

    def rewrite(self, size: int) -> None:
        self.repository = Repository.open(self.storage, _split(size))
        session = self.repository.writable_session("main")
        self.ids.append(session.rewrite_manifests("rewrite"))

    # -- steps

    def create(self, session: Session, path: Path, grid: Coords) -> None:
        transaction = session.transaction
        for above in path.ancestors():
            transaction.set_metadata(above, group())
        if transaction.get_node(path) is None:
            transaction.set_metadata(path, array(grid))

    def set_payload(self, session: Session, pick: int, payload: ChunkPayload) -> None:
        if place := _pick_chunk(session, pick):
            session.transaction.set_payload(*place, payload)

    def fill(self, session: Session, pick: int, payload: ChunkPayload) -> None:
        if place := _pick_chunk(session, pick):
            rows = list(product(*map(range, session.transaction.get_grid(place[0]))))
            coords = to_matrix(rows, len(place[1]))
            payloads = ChunkPayloads.of([payload] * len(rows))
            session.transaction.set_payloads(place[0], coords, payloads)

    def write(self, session: Session, pick: int) -> None:
        if place := _pick_chunk(session, pick):
            session.transaction.set_chunk(*place, b"a native chunk")

    def delete_chunk(self, session: Session, pick: int) -> None:
        if place := _pick_chunk(session, pick):
            session.transaction.delete_chunk(*place)

    def resize(self, session: Session, pick: int, length: int, deletes: bool) -> None:  # noqa: FBT001
        if place := _pick_chunk(session, pick):
            path, transaction = place[0], session.transaction
            grid = transaction.get_grid(path)
            new_grid = (length,) * len(grid)
            for indices in product(*map(range, grid)) if deletes else ():
                if not all(index < count for index, count in zip(indices, new_grid, strict=True)):
                    transaction.delete_chunk(path, indices)
            transaction.set_metadata(path, array(new_grid))

    def reshape(self, session: Session, pick: int, grid: Coords) -> None:
        if place := _pick_chunk(session, pick):
            session.transaction.set_metadata(place[0], array(grid))

    def set_attributes(self, session: Session, pick: int, number: int) -> None:
        if place := _pick_chunk(session, pick):
            grid = session.transaction.get_grid(place[0])
            session.transaction.set_metadata(place[0], array(grid, number=number))

    def delete_node(self, session: Session, path: Path) -> None:
        session.transaction.delete_node(path)

    def adopt(self, session: Session, pick: int) -> None:
        """Adopt a manifest for an array without chunks."""
        place = _pick_chunk(session, pick)
        if place is None or any(
            len(part) for part in session.transaction.fetch_chunk_refs(place[0])
        ):
            return
        transaction = session.transaction
        node = transaction.require_array(place[0])
        data = node.node_data
        base = transaction.base.by_id.get(node.id)
        base_data = None if base is None else base.node_data
        has_manifests = isinstance(base_data, ArrayNodeData) and bool(base_data.manifests)
        if has_manifests or transaction.changes.adopted.get(node.id):
            return
        assert isinstance(data, ArrayNodeData)
        coords = to_matrix([place[1]], len(place[1]))
        refs = ArrayManifest(coords, ChunkPayloads.of([InlineChunk(b"adopted")]))
        manifest = Manifest.of_array(ManifestId.random(), node.id, refs)
        info = transaction.assets.write_manifest(manifest)
        ref = ManifestRef(manifest.id, compute_extents(coords))
        transaction.adopt_manifests(place[0], (AdoptedManifest(ref, info),))


def _pick_chunk(session: Session, pick: int) -> tuple[Path, Coords] | None:
    """Choose a chunk of some array, stored or not."""
    transaction = session.transaction
    nodes = sorted(transaction.iter_nodes_below(Path("/")), key=lambda node: node.path)
    places = [
        (node.path, indices)
        for node in nodes
        if node.is_array
        for indices in product(*map(range, transaction.get_grid(node.path)))
    ]
    return places[pick % len(places)] if places else None


def _read_all(transaction: Transaction, tree: Tree) -> dict[NodeId, dict[Coords, ChunkPayload]]:
    """Look up every chunk of every array, one by one."""
    found: dict[NodeId, dict[Coords, ChunkPayload]] = {}
    for node in tree.snapshot.nodes:
        if isinstance(node.node_data, ArrayNodeData):
            grid = [dimension.num_chunks for dimension in node.node_data.shape]
            payloads = {
                indices: transaction.get_payload(node.path, indices)
                for indices in product(*map(range, grid))
            }
            found[node.id] = {key: value for key, value in payloads.items() if value is not None}
    return found


def _get_rank(tree: Tree, node_id: NodeId) -> int | None:
    node = tree.by_id.get(node_id)
    data = None if node is None else node.node_data
    return len(data.shape) if isinstance(data, ArrayNodeData) else None


def _to_sets(log: Any) -> dict[NodeId, set[Coords]]:
    columns = log.updated_chunks
    rows = {
        node_id: [tuple(row) for row in columns.get_coords(position).tolist()]
        for position, node_id in enumerate(columns.iter_node_ids())
    }
    assert all(sorted(set(value)) == value for value in rows.values()), "sorted and distinct"
    return {node_id: set(value) for node_id, value in rows.items()}


# The array gets another number of dimensions, and so loses the adopted manifest.
_ADOPTED_AND_RESHAPED = [
    ("create", Path("/b"), ()),
    ("delete_node", Path("/a")),
    ("adopt", 0),
    ("reshape", 0, (3,)),
    ("set_payload", 0, InlineChunk(b"x")),
]


@pytest.mark.parametrize("spec_version", [1, 2])
@settings(max_examples=examples(40, thorough=1000), deadline=None)
@given(commits=st.lists(_COMMITS, min_size=1, max_size=6), split_size=st.integers(1, 4))
@example(commits=[_ADOPTED_AND_RESHAPED], split_size=1)
def test_comparison_equals_the_log(spec_version: int, commits: list[Any], split_size: int) -> None:
    """A comparison finds the nodes of the log exactly, and its chunks except equal rewrites.

    It also finds chunks that a resize dropped without deleting them.
    """
    writer = _Writer(spec_version, split_size)
    for commit in commits:
        match commit:
            case ("move", source, target):
                if writer.can_move:
                    writer.move(source, target)
            case ("rewrite", size):
                writer.rewrite(size)
            case steps:
                writer.commit(steps)
    connection = Repository.open(writer.storage).readonly_session("main").connection
    assets = connection.assets
    ids = [SnapshotId.parse(snapshot_id) for snapshot_id in writer.ids]
    for before_id, after_id in pairwise(ids):
        before, after = assets.fetch_tree(before_id), assets.fetch_tree(after_id)
        found, log = (
            compare_snapshots(before, after, assets),
            assets.fetch_transaction_log(after_id),
        )
        assert found.id == after_id
        for name in (*NODE_SETS, "moved_nodes"):
            assert getattr(found, name) == getattr(log, name), name
        old = _read_all(connection.begin_transaction(before_id), before)
        new = _read_all(connection.begin_transaction(after_id), after)
        found_chunks, logged = _to_sets(found), _to_sets(log)
        assert all(found_chunks.values()), "arrays without changed chunks are not listed"
        for node_id, payloads in new.items():
            known = old.get(node_id, {})
            if _get_rank(before, node_id) != _get_rank(after, node_id):
                known = {}
            differing = {key for key in {*known, *payloads} if known.get(key) != payloads.get(key)}
            assert found_chunks.get(node_id, set()) == differing
            dropped = known.keys() - payloads.keys() if node_id in log.updated_arrays else set()
            assert differing <= logged.get(node_id, set()) | dropped
        assert found_chunks.keys() <= new.keys()


def test_the_first_snapshot_is_all_new() -> None:
    """Without a parent, all nodes and chunks are new."""
    writer = _Writer(1, 4)
    assets = writer.repository.readonly_session("main").connection.assets
    tree = assets.fetch_tree(SnapshotId.parse(writer.ids[-1]))
    log = compare_snapshots(None, tree, assets)
    assert {tree.by_id[node_id].path for node_id in log.new_arrays} == {Path("/a")}
    assert {tree.by_id[node_id].path for node_id in log.new_groups} == {Path("/")}
    assert len(log.updated_chunks) == 6


# -- manifests that overlap


_BOXES = st.tuples(*[st.tuples(st.integers(0, 4), st.integers(1, 3))] * 2)


@st.composite
def _array_versions(
    draw: st.DrawFn,
) -> tuple[list[Manifest], list[tuple[list[ManifestRef], Coords]]]:
    """Draw manifests, and two versions of an array that each have some of them in some order."""
    node_id = NodeId.from_number(1)
    manifests = []
    for _ in range(draw(st.integers(1, 4))):
        keys = draw(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1))
        values = [InlineChunk(draw(st.sampled_from([b"x", b"y", b"zz"]))) for _ in keys]
        refs = ArrayManifest.of(to_matrix(list(keys), 2), ChunkPayloads.of(values))
        manifests.append(Manifest.of_array(ManifestId.random(), node_id, refs))
    extents = st.one_of(
        st.just(ManifestExtents(())),
        _BOXES.map(
            lambda box: ManifestExtents(
                tuple(ChunkIndexRange(start, start + size) for start, size in box)
            )
        ),
    )
    pool = [ManifestRef(draw(st.sampled_from(manifests)).id, draw(extents)) for _ in range(5)]
    grids = st.sampled_from([(6, 6), (6, 6), (4, 5)])
    versions: list[tuple[list[ManifestRef], Coords]] = [
        (draw(st.lists(st.sampled_from(pool), max_size=5, unique=True)), draw(grids))
        for _ in range(2)
    ]
    return manifests, versions


def _make_tree(refs: list[ManifestRef], grid: Coords) -> Tree:
    shape = tuple(DimensionShape(count, count) for count in grid)
    data = ArrayNodeData(shape, None, tuple(refs))
    node = NodeSnapshot(NodeId.from_number(1), Path("/a"), b"{}", data)
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    return Tree(Snapshot(SnapshotId.random(), None, moment, "", {}, (node,), ()))


@settings(max_examples=examples(100, thorough=5000), deadline=None)
@given(_array_versions())
def test_the_first_of_overlapping_manifests_wins(
    drawn: tuple[list[Manifest], list[tuple[list[ManifestRef], Coords]]],
) -> None:
    """A comparison sees the references that readers see, however manifests overlap."""
    manifests, versions = drawn
    repository = Repository.create(MemoryStorage())
    connection = repository.readonly_session("main").connection
    assets = connection.assets
    for manifest in manifests:
        assets.write_manifest(manifest)
    trees = [_make_tree(*version) for version in versions]
    contents = []
    for tree in trees:
        assets.cache(tree, ())
        transaction = connection.begin_transaction(tree.snapshot.id)
        contents.append(_read_all(transaction, tree)[NodeId.from_number(1)])
    log = compare_snapshots(trees[0], trees[1], assets)
    old, new = contents
    differing = {key for key in {*old, *new} if old.get(key) != new.get(key)}
    assert _to_sets(log).get(NodeId.from_number(1), set()) == differing


def _box(start: int, stop: int) -> ManifestExtents:
    return ManifestExtents((ChunkIndexRange(start, stop),))


@pytest.mark.parametrize(
    "old, new, changed",
    [
        pytest.param([(0, 0, 4), (1, 0, 4)], [(1, 0, 4), (0, 0, 4)], {0, 1, 2, 3}, id="order"),
        pytest.param([(0, 0, 2), (0, 2, 4)], [(0, 0, 2)], {2, 3}, id="same file, fewer extents"),
        pytest.param([(0, 0, 2), (1, 2, 4)], [(1, 2, 4), (0, 0, 2)], set(), id="no overlap"),
        pytest.param([(0, 0, 2), (1, 0, 4)], [(1, 0, 4)], {0, 1}, id="no longer hidden"),
        pytest.param([(1, 0, 4)], [(0, 3, 4), (1, 0, 4)], {3}, id="hidden"),
        pytest.param(
            [(0, 0, 4), (2, 0, 4), (2, 4, 5)], [(2, 0, 4), (0, 0, 4)], set(), id="equal content"
        ),
    ],
)
def test_manifests_that_both_snapshots_have(
    old: list[tuple[int, int, int]], new: list[tuple[int, int, int]], changed: set[int]
) -> None:
    """Manifests with other extents, or in another order, may show other chunks."""
    assets = Repository.create(MemoryStorage()).readonly_session("main").connection.assets
    coords = to_matrix([(index,) for index in range(4)], 1)
    manifests = []
    for value in (b"x", b"y", b"x"):
        refs = ArrayManifest(coords, ChunkPayloads.of([InlineChunk(value)] * 4))
        manifests.append(Manifest.of_array(ManifestId.random(), NodeId.from_number(1), refs))
        assets.write_manifest(manifests[-1])
    before, after = (
        _make_tree([ManifestRef(manifests[file].id, _box(*box)) for file, *box in refs], (4,))
        for refs in (old, new)
    )
    found = _to_sets(compare_snapshots(before, after, assets))
    assert found.get(NodeId.from_number(1), set()) == {(index,) for index in changed}


# -- references as columns


def test_every_field_of_a_reference_counts() -> None:
    """References that differ in one field only are different, in tables of any order."""
    native = [ChunkRef(ChunkId(bytes(11) + bytes([number])), 0, 4) for number in range(2)]
    payloads = [*_PAYLOADS, *native, ChunkRef(native[0].id, 1, 4), ChunkRef(native[0].id, 0, 5)]
    pairs = list(product(payloads, payloads))
    left, right = (ChunkPayloads.of(list(side)) for side in zip(*pairs[::-1], strict=True))
    rows = np.arange(len(pairs))
    found = find_different_rows([left], rows, [right], rows)
    assert found.tolist() == [ours != theirs for ours, theirs in pairs[::-1]]


@settings(max_examples=examples(100, thorough=5000), deadline=None)
@given(
    st.lists(st.tuples(PAYLOADS, PAYLOADS, st.booleans()), max_size=12),
    st.lists(st.integers(0, 12), max_size=3),
    st.sampled_from([1, 3, 1 << 20]),
    st.randoms(use_true_random=False),
)
def test_rows_differ_if_payloads_do(
    pairs: list[tuple[ChunkPayload, ChunkPayload, bool]],
    cuts: list[int],
    block_bytes: int,
    random: Any,
) -> None:
    """Columns in any number of parts, in any order, differ where their payloads do."""
    left = [ours for ours, _, _ in pairs]
    right = [ours if is_equal else theirs for ours, theirs, is_equal in pairs]
    order = list(range(len(right)))
    random.shuffle(order)
    bounds = sorted({0, len(left), *(cut for cut in cuts if cut < len(left))})
    parts = [ChunkPayloads.of(left[start:end]) for start, end in pairwise(bounds)] or [
        ChunkPayloads.of([])
    ]
    shuffled = ChunkPayloads.of([right[position] for position in order])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload_comparison, "_BLOCK_BYTES", block_bytes)
        found = find_different_rows(
            parts,
            np.arange(len(left)),
            [shuffled],
            np.argsort(np.array(order, np.int64)),
        )
    assert found.tolist() == [ours != theirs for ours, theirs in zip(left, right, strict=True)]


# -- requests


def _make_split_repository(storage: Any) -> tuple[list[SnapshotId], CountingStorage, Assets]:
    """Commit an array with ten manifests, and a change of one chunk of it."""
    repository = Repository.create(storage, _split(1))
    ids = []
    for payload, rows in ((InlineChunk(b"x"), range(10)), (InlineChunk(b"y"), range(3, 4))):
        session = repository.writable_session("main")
        session.transaction.set_metadata(Path("/a"), array((10,)))
        for row in rows:
            session.transaction.set_payload(Path("/a"), (row,), payload)
        ids.append(SnapshotId.parse(session.commit("commit")))
    counting = CountingStorage(storage)
    return ids, counting, Assets(counting, V2)


def test_shared_manifests_are_not_read() -> None:
    """A comparison reads both snapshots and the two manifests that differ, nothing else."""
    (before, after), storage, assets = _make_split_repository(MemoryStorage())
    trees = [assets.fetch_tree(before), assets.fetch_tree(after)]
    storage.forget()
    log = compare_snapshots(trees[0], trees[1], assets)
    assert _to_sets(log) == {trees[1].snapshot.nodes[-1].id: {(3,)}}
    assert sorted(key.partition("/")[0] for key in storage.keys()) == ["manifests"] * 2  # noqa: SIM118


def test_logs_are_compared_once() -> None:
    """The changes of a commit are cached, together with the parent that they refer to."""
    (before, after), storage, _ = _make_split_repository(MemoryStorage())
    assets = Assets(storage, replace(V2, layout=NUMBERING.layout))
    pair = (after, before)
    first = fetch_commit_logs(assets, [pair, pair])
    assert storage.counts() == {"get": 4}
    storage.forget()
    assert fetch_commit_logs(assets, [pair]) == first[:1]
    assert not storage.calls
    (whole,) = fetch_commit_logs(assets, [(after, None)])
    assert len(whole.updated_chunks) == 10


def test_many_commits_with_few_threads() -> None:
    """Comparisons of many commits do not wait for threads that wait for them."""
    with numbering_generation():
        storage = LatencyStorage(MemoryStorage(), read_latency_ms=1, write_latency_ms=0)
        config = replace(_split(1), max_concurrent_requests=2)
        repository = Repository.create(storage, config, spec_version=1)
        first = repository.lookup_branch("main")
        for number in range(20):
            session = repository.writable_session("main")
            session.transaction.set_metadata(Path("/a"), array((20,)))
            for row in (number, (number + 7) % 20):
                session.transaction.set_payload(Path("/a"), (row,), InlineChunk(b"%d" % number))
            tip = session.commit("commit")
        fresh = Repository.open(storage, config)
        diff = fresh.diff(from_snapshot_id=first, to_snapshot_id=tip)
    assert diff.updated_chunks == {"/a": [[row] for row in range(20)]}
