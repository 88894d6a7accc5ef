"""From changes to manifests, against a model that knows nothing but dictionaries of chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import pytest
import zarr
from hypothesis import event, given, settings
from hypothesis import strategies as st

from icefloe.assets import Assets
from icefloe.errors import ErrorKind, StorageError
from icefloe.format import manifest_lookup
from icefloe.format.generation import get_generation
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import SnapshotId
from icefloe.model.manifest_config import (
    AnySplitDimCondition,
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.model.node import ArrayNodeData
from icefloe.repository import Repository
from icefloe.storage import LocalStorage, MemoryStorage, Storage
from icefloe.transaction import flush
from support.edited_manifests import edit_wherever_possible, note_insertions
from support.faulty_storage import FaultyStorage
from support.generations import GENERATION_NAMES, find_kind
from support.zarr_nodes import array, chunk_key, contents, delete, get, group, put

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.model.snapshot import Snapshot

Coords = tuple[int, ...]
Sizes = dict[str, tuple[int, ...]]


def _config(sizes: Sizes, inline: int = 3) -> RepositoryConfig:
    """Make rules that give each array its own sizes, one for each dimension."""
    axis = ManifestSplitDimCondition.Axis
    rules: dict[ManifestSplitCondition, dict[AnySplitDimCondition, int]] = {
        ManifestSplitCondition.name_matches(f"^{name}$"): {
            axis(number): size for number, size in enumerate(of_array)
        }
        for name, of_array in sizes.items()
    }
    return RepositoryConfig(
        inline_chunk_threshold_bytes=inline,
        manifest=ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rules)),
    )


@dataclass
class _Array:
    """What an array should hold: the chunks of the last commit, and what was done since."""

    grid: Coords
    committed: dict[Coords, bytes] = field(default_factory=dict)
    changed: dict[Coords, bytes | None] = field(default_factory=dict)

    def visible(self) -> dict[Coords, bytes]:
        every = {**self.committed, **self.changed}
        return {
            coords: data
            for coords, data in every.items()
            if data is not None and all(i < n for i, n in zip(coords, self.grid, strict=True))
        }


def _snapshot(storage: Storage, snapshot_id: str, generation: str) -> tuple[Assets, Snapshot]:
    assets = Assets(storage, get_generation(generation))
    return assets, assets.fetch_snapshot(SnapshotId.parse(snapshot_id))


def _manifests(snapshot: Snapshot) -> dict[str, tuple[Any, ...]]:
    return {
        node.path.name: node.node_data.manifests
        for node in snapshot.nodes
        if isinstance(node.node_data, ArrayNodeData)
    }


def _check_snapshot(storage: Storage, snapshot_id: str, generation: str) -> None:
    """Check what must hold of any snapshot, whatever led to it."""
    assets, snapshot = _snapshot(storage, snapshot_id, generation)
    referenced = set()
    for node in snapshot.nodes:
        if not isinstance(node.node_data, ArrayNodeData):
            continue
        grid = [dimension.num_chunks for dimension in node.node_data.shape]
        refs = node.node_data.manifests
        for ref in refs:
            referenced.add(ref.id)
            part = assets.fetch_manifest(ref.id).get_array(node.id)
            assert part is not None
            assert len(part) > 0
            if grid:
                assert [tuple(box) for box in ref.extents.ranges] == [
                    (int(column.min()), int(column.max()) + 1) for column in part.coords.T
                ]
                assert (part.coords < np.array(grid)).all()
            else:
                assert ref.extents.ranges == ()
        for ref, other in combinations(refs, 2):
            assert not ref.extents.overlaps(other.extents)
    assert referenced == {info.id for info in snapshot.manifest_files}
    for info in snapshot.manifest_files:
        manifest = assets.fetch_manifest(info.id)
        assert info.num_chunk_refs == len(manifest) > 0
        assert info.size_bytes == len(
            storage.get(assets.generation.layout.manifests.format_key(info.id)).data
        )


def _cells(coords: Coords, sizes: tuple[int, ...]) -> Coords:
    return tuple(i // size for i, size in zip(coords, sizes, strict=True))


def _corners(extents: Any) -> list[Coords]:
    return list(product(*[(box.start, box.stop - 1) for box in extents.ranges]))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from(GENERATION_NAMES))
def test_any_history(data: st.DataObject, generation: str) -> None:
    """After any writes, deletions, resizes and changes of rules every chunk is what it should be.

    Also manifests cover no chunk twice, are tight, and stay where nothing in their cell changed.
    """
    _any_history(data, generation, sets=3)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from(GENERATION_NAMES))
def test_any_history_with_edited_files(data: st.DataObject, generation: str) -> None:
    """The same holds where files of manifests are edited."""
    with edit_wherever_possible() as tries:
        _any_history(data, generation, sets=30)
        event(f"{sum(tries)} of {len(tries)} edited")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from(["v1", "v2"]))
def test_any_history_with_insertions(data: st.DataObject, generation: str) -> None:
    """The same holds where references are inserted into files of manifests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flush, "_MIN_REFS_BEFORE_INSERTION", 0)
        inserted = note_insertions(patch)
        patch.setattr(manifest_lookup, "_MIN_SEARCHES", 1000)
        _any_history(data, generation, sets=10, min_size=6)
        event(f"{sum(inserted)} of {len(inserted)} inserted")


def test_a_new_chunk_is_inserted() -> None:
    """A commit of a new chunk encodes the manifest of the array with those before only once."""
    repository = Repository.create(MemoryStorage(), spec_version=2)
    with repository.transaction("main", message="made") as store:
        zarr.create_array(store, name="a", shape=(100,), chunks=(1,), dtype="i4")[:50] = 1
    with pytest.MonkeyPatch.context() as patch:
        inserted = note_insertions(patch)
        for number in range(50, 60):
            session = repository.writable_session("main")
            values: Any = zarr.open_array(session.store, path="a")
            values[number] = number
            assert int(values[number - 1]) == (number - 1 if number > 50 else 1)
            session.commit("a new chunk")
    assert inserted == [True] * 10
    values = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    assert values[49:62].tolist() == [1, *range(50, 60), 0, 0]


def _any_history(data: st.DataObject, generation: str, *, sets: int, min_size: int = 1) -> None:
    names = ["a", "b", "c"][: data.draw(st.integers(1, 3), "arrays")]
    ranks = {name: data.draw(st.integers(0, 3), f"rank of {name}") for name in names}
    model = {name: _Array((4,) * ranks[name]) for name in names}
    storage = MemoryStorage()
    Repository.create(storage, generation=generation)
    sizes: Sizes = {}
    tip: str | None = None
    for number in range(data.draw(st.integers(1, 4), "commits")):
        if number == 0 or data.draw(st.booleans(), "new rules"):
            sizes = {
                name: tuple(
                    data.draw(st.integers(min_size, min_size + 4), f"sizes of {name}")
                    for _ in range(rank)
                )
                for name, rank in ranks.items()
            }
        repository = Repository.open(storage, _config(sizes))
        session = repository.writable_session("main")
        if number == 0:
            put(session.store, "zarr.json", group())
            for name, one in model.items():
                put(session.store, f"{name}/zarr.json", array(one.grid))
        for step in range(data.draw(st.integers(0, 8), "steps")):
            name = data.draw(st.sampled_from(names), "array")
            one = model[name]
            action = data.draw(st.sampled_from(["set"] * sets + ["delete", "resize"]), "action")
            if action == "resize":
                one.grid = tuple(data.draw(st.integers(1, 6), "grid") for _ in one.grid)
                put(session.store, f"{name}/zarr.json", array(one.grid))
                continue
            anywhere = st.tuples(*[st.integers(0, count - 1) for count in one.grid])
            there = st.sampled_from(sorted(one.visible()) or [(0,) * len(one.grid)])
            coords = data.draw(there | anywhere, "index")
            key = chunk_key(name, coords)
            if action == "delete":
                delete(session.store, key)
                if coords in one.visible():
                    one.changed[coords] = None
            else:
                # Four bytes are too many to be inlined.
                value = bytes([number, step, 1, 1][: data.draw(st.integers(1, 4), "size")])
                put(session.store, key, value)
                one.changed[coords] = value
        for name, one in model.items():
            before = {
                coords: get(session.store, chunk_key(name, coords))
                for coords in product(*map(range, one.grid))
            }
            assert {c: value for c, value in before.items() if value is not None} == one.visible()
        before_commit = None if tip is None else _snapshot(storage, tip, generation)[1]
        tip = session.commit("commit", allow_empty=True)
        _check_snapshot(storage, tip, generation)
        after = _snapshot(storage, tip, generation)[1]
        if before_commit is not None:
            _check_reuse(before_commit, after, model, sizes)
        for expected_array in model.values():
            expected_array.committed, expected_array.changed = expected_array.visible(), {}
        reader = Repository.open(storage).readonly_session("main").store
        expected = {
            chunk_key(name, coords): value
            for name, one in model.items()
            for coords, value in one.committed.items()
        }
        found = contents(reader)
        assert {key: found[key] for key in found if not key.endswith("zarr.json")} == expected


def _check_reuse(before: Snapshot, after: Snapshot, model: dict[str, _Array], sizes: Sizes) -> None:
    """Check that manifests in one cell, in which nothing changed, have their old ids."""
    now = _manifests(after)
    for name, refs in _manifests(before).items():
        one = model[name]
        fits_cells = all(
            len({_cells(corner, sizes[name]) for corner in _corners(ref.extents)}) == 1
            for ref in refs
        )
        if not fits_cells:
            continue  # the rules changed: manifests that span cells pull others along
        if any(not _has(one.grid, coords) for coords in one.changed):
            continue  # chunks written before the array shrank: it is flushed with no change left
        cells = {ref.id: _cells(_corners(ref.extents)[0], sizes[name]) for ref in refs}
        dirty = {_cells(coords, sizes[name]) for coords in one.changed}
        dirty |= {cells[ref.id] for ref in refs if not _is_inside(ref, one.grid)}
        for ref in refs:
            assert ref in now[name] or cells[ref.id] in dirty


def _has(grid: Coords, coords: Coords) -> bool:
    return all(index < count for index, count in zip(coords, grid, strict=True))


def _is_inside(ref: Any, grid: Coords) -> bool:
    return all(box.stop <= count for box, count in zip(ref.extents.ranges, grid, strict=True))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from(GENERATION_NAMES))
def test_rewriting_obeys_the_rules(data: st.DataObject, generation: str) -> None:
    """After a rewrite each manifest lies in one cell of today's rules, and nothing else changed."""
    grid = (5, 4)
    storage = MemoryStorage()
    Repository.create(storage, generation=generation)
    boxes = st.tuples(st.integers(1, 6), st.integers(1, 6))
    session = Repository.open(storage, _config({"a": data.draw(boxes)})).writable_session("main")
    put(session.store, "zarr.json", group())
    put(session.store, "a/zarr.json", array(grid))
    cells = st.tuples(st.integers(0, grid[0] - 1), st.integers(0, grid[1] - 1))
    for coords in data.draw(st.sets(cells, min_size=1)):
        put(session.store, chunk_key("a", coords), bytes(coords) + b"\1")
    session.commit("first")
    expected = contents(session.store)
    sizes = data.draw(boxes)
    repository = Repository.open(storage, _config({"a": sizes}))
    tip = repository.rewrite_manifests("rewritten", branch="main", metadata={"who": "me"})
    _check_snapshot(storage, tip, generation)
    for ref in _manifests(_snapshot(storage, tip, generation)[1])["a"]:
        assert len({_cells(corner, sizes) for corner in _corners(ref.extents)}) == 1
    assert contents(Repository.open(storage).readonly_session("main").store) == expected
    info = repository.lookup_snapshot(tip)
    assert info.metadata["who"] == "me"
    assert "split_sizes" in info.metadata["__icechunk"]["splitting_config"]
    assert repository.diff(from_snapshot_id=str(info.parent_id), to_branch="main").is_empty()


def test_small_arrays_share_a_manifest(generation: str) -> None:
    """Many small arrays of one commit need few files, and one that changes leaves the others."""
    storage = MemoryStorage()
    repository = Repository.create(storage, generation=generation)
    session = repository.writable_session("main")
    put(session.store, "zarr.json", group())
    for number in range(40):
        put(session.store, f"x{number}/zarr.json", array((3,)))
        for index in range(3):
            put(session.store, f"x{number}/c/{index}", bytes([number, index]))
    put(session.store, "empty/zarr.json", array((3,)))
    first = session.commit("forty")
    _check_snapshot(storage, first, generation)
    assert len(repository.list_manifest_files(first)) == 1
    assert repository.list_manifest_files(first)[0].num_chunk_refs == 120
    session = repository.writable_session("main")
    put(session.store, "x7/c/1", b"new")
    second = session.commit("one")
    _check_snapshot(storage, second, generation)
    before, after = (_manifests(_snapshot(storage, tip, generation)[1]) for tip in (first, second))
    assert {name for name in before if before[name] != after[name]} == {"x7"}
    assert after["empty"] == ()
    found = contents(Repository.open(storage).readonly_session("main").store)
    assert found["x7/c/1"] == b"new"
    assert found["x7/c/0"] == bytes([7, 0])
    assert found["x8/c/1"] == bytes([8, 1])


def test_shrinking_drops_references(generation: str) -> None:
    """Chunks that a smaller array has no place for are gone, also when it grows again."""
    storage = MemoryStorage()
    repository = Repository.create(storage, generation=generation)
    session = repository.writable_session("main")
    put(session.store, "a/zarr.json", array((4,)))
    for index in range(4):
        put(session.store, f"a/c/{index}", bytes([index + 1]))
    session.commit("four")
    for length in (2, 4):
        session = repository.writable_session("main")
        put(session.store, "a/zarr.json", array((length,)))
        tip = session.commit(f"now {length}")
        _check_snapshot(storage, tip, generation)
        chunks = {key for key in contents(session.store) if "/c/" in key}
        assert chunks == {"a/c/0", "a/c/1"}
    assert repository.list_manifest_files(tip)[0].num_chunk_refs == 2


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (0, 1), (1, 0), (3, 1)])
def test_other_rank(ranks: tuple[int, int], generation: str) -> None:
    """An array that gets another number of dimensions loses the chunks of its old grid."""
    before, after = ranks
    storage = MemoryStorage()
    config = _config({"a": (1,) * before})
    repository = Repository.create(storage, config, generation=generation)
    session = repository.writable_session("main")
    put(session.store, "a/zarr.json", array((2,) * before))
    put(session.store, chunk_key("a", (1,) * before), b"committed")
    session.commit("old rank")
    session = repository.writable_session("main")
    put(session.store, chunk_key("a", (0,) * before), b"not committed")
    put(session.store, "a/zarr.json", array((2,) * after))
    assert get(session.store, chunk_key("a", (1,) * after)) is None
    put(session.store, chunk_key("a", (1,) * after), b"new")
    assert get(session.store, chunk_key("a", (1,) * after)) == b"new"
    expected = {"a/zarr.json": array((2,) * after), chunk_key("a", (1,) * after): b"new"}
    assert contents(session.store) == expected
    tip = session.commit("new rank")
    _check_snapshot(storage, tip, generation)
    assert contents(Repository.open(storage).readonly_session("main").store) == expected


@pytest.mark.parametrize("what", ["manifests", "snapshots", "transaction_logs"])
def test_commit_again_after_a_failed_write(what: str, generation: str) -> None:
    """A commit that failed to write a file can be tried again, and then has everything."""
    inner = MemoryStorage()
    Repository.create(inner, generation=generation)
    failures = 1

    def fail(call_number: int, name: str, key: str) -> None:
        nonlocal failures
        if failures and name.startswith("put") and find_kind(key, generation) == what:
            failures -= 1
            raise StorageError("no", kind=ErrorKind.IO)

    repository = Repository.open(FaultyStorage(inner, fail))
    session = repository.writable_session("main")
    put(session.store, "zarr.json", group())
    put(session.store, "a/zarr.json", array((4,)))
    put(session.store, "a/c/1", b"one")
    if what == "transaction_logs" and not get_generation(generation).has_transaction_logs:
        session.commit("writes none")
        return
    with pytest.raises(StorageError):
        session.commit("fails")
    assert session.has_uncommitted_changes
    assert get(session.store, "a/c/1") == b"one"
    tip = session.commit("works")
    _check_snapshot(inner, tip, generation)
    assert get(Repository.open(inner).readonly_session("main").store, "a/c/1") == b"one"


def _list_our_keys(path: Path, sizes: Sizes) -> dict[str, bytes]:
    storage = LocalStorage(path)
    Repository.create(storage)
    repository = Repository.open(storage, _config(sizes))
    session = repository.writable_session("main")
    put(session.store, "zarr.json", group(title="ours"))
    put(session.store, "a/zarr.json", array((5, 4), names=["t", None]))
    put(session.store, "scalar/zarr.json", array(()))
    put(session.store, "scalar/c", b"\7")
    put(session.store, "small/zarr.json", array((3,)))
    for coords in product(range(5), range(4)):
        put(session.store, chunk_key("a", coords), bytes(coords) * (1 + sum(coords) % 3))
    put(session.store, "small/c/2", b"\3")
    session.commit("first")
    session = repository.writable_session("main")
    delete(session.store, "a/c/0/0")
    put(session.store, "a/c/4/3", b"again")
    put(session.store, "small/zarr.json", array((2,)))
    session.commit("second")
    return contents(session.store)


def test_icechunk_reads_split_and_shared_manifests(tmp_path: Path) -> None:
    """Icechunk 1.1 finds every key and value in what was split, shared, shrunk and rewritten."""
    expected = _list_our_keys(tmp_path, {"a": (2, 3)})
    assert expected["a/c/4/3"] == b"again"
    assert "a/c/0/0" not in expected
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    assert contents(theirs.readonly_session("main").store) == expected
    ours = Repository.open(LocalStorage(tmp_path), _config({"a": (1, 1)}))
    ours.rewrite_manifests("rewritten", branch="main")
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    assert contents(theirs.readonly_session("main").store) == expected


def test_icechunk_goes_on_from_shared_manifests(tmp_path: Path) -> None:
    """Icechunk 1.1 commits on top of shared and split manifests, and we read that in turn."""
    expected = _list_our_keys(tmp_path, {"a": (2, 3)})
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    their_session = theirs.writable_session("main")
    put(their_session.store, "a/c/0/0", b"theirs")
    delete(their_session.store, "a/c/4/3")
    put(their_session.store, "small/c/0", b"theirs")
    their_session.commit("third")
    del expected["a/c/4/3"]
    expected |= {"a/c/0/0": b"theirs", "small/c/0": b"theirs"}
    repository = Repository.open(LocalStorage(tmp_path))
    assert contents(repository.readonly_session("main").store) == expected
    session = repository.writable_session("main")
    put(session.store, "a/c/1/1", b"ours again")
    tip = session.commit("fourth")
    expected["a/c/1/1"] = b"ours again"
    _check_snapshot(LocalStorage(tmp_path), tip, "v1")
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    assert contents(theirs.readonly_session("main").store) == expected
