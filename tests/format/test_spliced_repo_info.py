"""A file ``repo`` with the copied tables of an older one equals one that is written in full."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, FormatError
from icefloe.format import encoded_history, ops_log
from icefloe.format.envelope import FileType, unpack
from icefloe.format.repo_info import decode_repo_info, encode_repo_info, rewrite_repo_info
from icefloe.model.ids import SnapshotId
from icefloe.model.lazy_history import LazySnapshots
from icefloe.model.repo_info import (
    BranchDeleted,
    NewCommit,
    RepoAvailability,
    RepoInfo,
    RepoStatus,
)
from icefloe.model.snapshot import SnapshotInfo
from icefloe.refs import changes
from icefloe.refs.history import walk_history
from support.flatbuffers_library import Style, build
from support.format_damage import damage
from support.format_kinds import decode_all_of_repo_info, wrap
from support.format_strategies import (
    CONFIGS,
    METADATA,
    SNAPSHOT_IDS,
    STATUSES,
    TEXTS,
    TIMES,
    UPDATE_TYPES,
    repo_infos,
)
from support.format_trees import repo_tree
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def sort_snapshots(info: RepoInfo) -> RepoInfo:
    """Return a state with all snapshots and updates as objects, as in a file."""
    snapshots = sorted(info.snapshots, key=lambda snapshot: snapshot.id.raw)
    return replace(info, snapshots=tuple(snapshots), latest_updates=tuple(info.latest_updates))


@st.composite
def changed(draw: st.DrawFn, info: RepoInfo) -> Callable[[RepoInfo], RepoInfo]:
    """Return a change that can be made to equal states."""
    ids = [snapshot.id for snapshot in info.snapshots]
    new_id = draw(SNAPSHOT_IDS.filter(lambda snapshot_id: snapshot_id not in ids))
    added = SnapshotInfo(
        new_id,
        draw(st.none() | st.sampled_from(ids)),
        draw(TIMES),
        draw(TEXTS),
        draw(METADATA),
        tuple(draw(st.lists(SNAPSHOT_IDS, max_size=2))),
    )
    num_added = draw(st.integers(0, 2))
    targets = st.sampled_from([*ids, new_id] if num_added else ids)
    refs = st.dictionaries(TEXTS, targets, max_size=3)
    branches, tags = {**draw(refs), "main": draw(targets)}, draw(refs)
    status, metadata, config = draw(STATUSES), draw(METADATA), draw(CONFIGS)
    kind, path = draw(UPDATE_TYPES), draw(TEXTS)
    max_updates = draw(st.sampled_from([2, 100]))

    def change(old: RepoInfo) -> RepoInfo:
        new = replace(
            old, branches=branches, tags=tags, status=status, metadata=metadata, config=config
        )
        if num_added:
            new = new.with_snapshot(added)
        if num_added == 2:
            second = SnapshotId(bytes(byte ^ 0xFF for byte in new_id.raw))
            if second not in ids:
                new = new.with_snapshot(replace(added, id=second, parent_id=new_id))
        return changes.record(new, kind, now=NOW, backup_path=path, max_updates=max_updates)

    return change


@given(st.data())
@settings(max_examples=examples(60, thorough=400), deadline=None)
def test_files_equal_those_written_in_full(data: st.DataObject) -> None:
    """Any changes, from files of icefloe and of the flatbuffers library."""
    plain = data.draw(repo_infos())
    if data.draw(st.booleans()):
        file = encode_repo_info(plain)
    else:
        style = data.draw(st.builds(Style, st.booleans(), st.booleans(), st.booleans()))
        file = wrap(build(repo_tree(plain), "Repo", style), FileType.REPO_INFO)
    state = decode_repo_info(file, "a file")
    for _ in range(data.draw(st.integers(1, 5))):
        change = data.draw(changed(plain))
        plain = sort_snapshots(change(plain))
        state, file = rewrite_repo_info(change(state))
        assert sort_snapshots(state) == plain
        assert decode_all_of_repo_info(file, "a file") == plain
        assert decode_all_of_repo_info(encode_repo_info(plain), "a file") == plain
        for snapshot in plain.snapshots:
            assert state.find_snapshot(snapshot.id) == snapshot
        if data.draw(st.booleans()):
            state = decode_repo_info(file, "a file")


@given(repo_infos(), st.randoms(use_true_random=False))
@settings(max_examples=examples(60, thorough=400), deadline=None)
def test_damaged_files_raise_format_errors(info: RepoInfo, source: random.Random) -> None:
    """A change of a damaged file raises, or writes a file that can be read as the damaged one."""
    update = BranchDeleted("b", SnapshotId(bytes(12)))
    for _ in range(8):
        file = damage(encode_repo_info(info), source)
        try:
            state = changes.record(
                decode_repo_info(file, "a file"),
                update,
                now=NOW,
                backup_path="a path",
                max_updates=100,
            )
            _, rewritten = rewrite_repo_info(state)
        except FormatError:
            continue
        decode_repo_info(rewritten, "a file")


def make_history(count: int) -> RepoInfo:
    """Make a state with ``count`` commits, whose ids are in another order than their times."""
    ids = [SnapshotId((number * 7919).to_bytes(12, "little")) for number in range(count)]
    snapshots = [
        SnapshotInfo(
            snapshot_id,
            ids[number - 1] if number else None,
            NOW + timedelta(number),
            "a commit",
            {},
        )
        for number, snapshot_id in enumerate(ids)
    ]
    status = RepoStatus(RepoAvailability.online)
    info = RepoInfo(2, {"main": ids[-1]}, {}, frozenset(), tuple(snapshots), status, ())
    for number, snapshot_id in enumerate(ids):
        info = changes.record(
            info,
            NewCommit("main", snapshot_id),
            now=NOW + timedelta(number),
            backup_path=f"backup {number}",
            max_updates=count,
        )
    return info


def add_commit(info: RepoInfo) -> RepoInfo:
    """Commit to main."""
    tip = info.branches["main"]
    snapshot = SnapshotInfo(SnapshotId.random(), tip, NOW, "another commit", {})
    kind, info = changes.commit(info, "main", tip, snapshot)
    return changes.record(info, kind, now=NOW, backup_path="a path", max_updates=10_000)


def check_reader(info: RepoInfo, state: RepoInfo) -> None:
    """Check that a reader of ``state`` gives the snapshots of ``info`` and their histories."""
    assert isinstance(state.snapshots, LazySnapshots)
    by_id = {snapshot.id: snapshot for snapshot in info.snapshots}
    reader = state.snapshots.open_reader()
    for start in by_id:
        row = state.snapshots.find_row(start)
        assert row is not None
        history = list(walk_history(start, by_id.__getitem__))
        rows = list(reader.iter_ancestry(row))
        assert [reader.read(row) for row in rows] == history
        assert [reader.read_links(row) for row in rows] == [
            snapshot.get_links() for snapshot in history
        ]


@given(st.data())
@settings(max_examples=examples(60, thorough=400), deadline=None)
def test_readers_equal_full_decoding(data: st.DataObject) -> None:
    """Snapshots that are read one by one or all at once, with and without added ones."""
    plain = data.draw(repo_infos())
    state = decode_repo_info(encode_repo_info(plain), "a file")
    with patch.object(encoded_history, "_MIN_SINGLE", data.draw(st.sampled_from([0, 2, 100]))):
        check_reader(plain, state)
        change = data.draw(changed(plain))
        check_reader(change(plain), change(state))


@given(repo_infos(), st.randoms(use_true_random=False), st.sampled_from([0, 100]))
@settings(max_examples=examples(60, thorough=400), deadline=None)
def test_readers_of_damaged_files_raise_format_errors(
    info: RepoInfo, source: random.Random, min_single: int
) -> None:
    for _ in range(8):
        file = damage(encode_repo_info(info), source)
        with (
            patch.object(encoded_history, "_MIN_SINGLE", min_single),
            contextlib.suppress(FormatError),
        ):
            snapshots = decode_repo_info(file, "a file").snapshots
            assert isinstance(snapshots, LazySnapshots)
            reader = snapshots.open_reader()
            for start in range(len(snapshots)):
                for read in (reader.read, reader.read_links):
                    with contextlib.suppress(FormatError):
                        for row in reader.iter_ancestry(start):
                            read(row)


@pytest.mark.parametrize("length", [1, 2, 100])
def test_cycles_are_found(length: int) -> None:
    """A history that ends in a cycle of some length."""
    info = make_history(200)
    root, *others = info.snapshots
    cycle = replace(root, parent_id=others[length - 2].id if length > 1 else root.id)
    file = encode_repo_info(replace(info, snapshots=(cycle, *others)))
    snapshots = decode_repo_info(file, "a file").snapshots
    assert isinstance(snapshots, LazySnapshots)
    row = snapshots.find_row(info.branches["main"])
    assert row is not None
    with pytest.raises(FormatError, match="its own ancestor"):
        list(snapshots.open_reader().iter_ancestry(row))


def test_a_commit_decodes_no_history() -> None:
    """Commits decode the tip and the newest update, not those before."""
    state = decode_repo_info(encode_repo_info(make_history(500)), "a file")
    read_snapshot = encoded_history._read_snapshot
    with (
        patch.object(encoded_history, "_read_snapshots", side_effect=AssertionError),
        patch.object(encoded_history, "_read_snapshot", side_effect=read_snapshot) as snapshots,
        patch.object(encoded_history, "read_update", wraps=ops_log.read_update) as updates,
    ):
        for _ in range(3):
            state, _ = rewrite_repo_info(add_commit(state))
    assert snapshots.call_count <= 3
    assert updates.call_count <= 3


def test_files_do_not_keep_what_they_no_longer_need() -> None:
    """After many commits and an expiration a file is as large as one that is written in full."""
    state = decode_repo_info(encode_repo_info(make_history(50)), "a file")
    for _ in range(50):
        state, file = rewrite_repo_info(add_commit(state))
    full = encode_repo_info(sort_snapshots(state))
    assert get_body_size(file) <= get_body_size(full) + 50 * 16
    tip = state.find_snapshot(state.branches["main"])
    assert tip is not None
    shortened = replace(state, snapshots=(replace(tip, parent_id=None),))
    _, file = rewrite_repo_info(shortened)
    assert get_body_size(file) < 0.6 * get_body_size(full)


def get_body_size(file: bytes) -> int:
    """Return the size before compression."""
    return len(unpack(file, FileType.REPO_INFO, "a file")[1])


def test_a_snapshot_id_occurs_once() -> None:
    """A snapshot with the id of another one is refused before anything is written."""
    state = decode_repo_info(encode_repo_info(make_history(5)), "a file")
    duplicate = state.with_snapshot(state.snapshots[0])
    changed = changes.record(
        duplicate, NewCommit("main", SnapshotId.random()), now=NOW, backup_path="b", max_updates=99
    )
    with pytest.raises(FormatError) as caught:
        rewrite_repo_info(changed)
    assert caught.value.kind is ErrorKind.DUPLICATE_SNAPSHOT_ID
