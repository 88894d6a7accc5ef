"""Edited nodes: what the index answers, against scans of all edits, and how its work grows."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.model.ids import NodeId
from icefloe.model.node import GroupNodeData, NodeSnapshot
from icefloe.model.path import ROOT, Path
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from icefloe.transaction.node_edits import NodeEdits, Unedited
from support.zarr_nodes import array, group

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.transaction.transaction import Transaction

_VALUES = ["/", "/a", "/a/b", "/a/b/c", "/a.b", "/a/b/c/d/e", "/b/a", "/ab", "/é/a"]
_PATHS = [*map(Path, _VALUES), Path("/a/b/c/d"), Path("/é")]
_PUTS = st.tuples(st.sampled_from(_VALUES), st.none() | st.integers(0, 5))
_CALLS = st.tuples(
    st.sampled_from(["group", "group", "array", "delete", "move"]),
    st.sampled_from(_VALUES[1:]),
    st.sampled_from(_VALUES[1:]),
)


def _make_node(path: str, number: int) -> NodeSnapshot:
    return NodeSnapshot(NodeId(bytes([number] * 8)), Path(path), b"", GroupNodeData())


def _is_from(path: Path, above: Path) -> bool:
    return path == above or path.is_below(above)


@given(st.lists(_PUTS))
def test_the_index_equals_a_scan(puts: list[tuple[str, int | None]]) -> None:
    edits = NodeEdits()
    scanned: dict[Path, NodeSnapshot | None] = {}
    for value, number in puts:
        if number is not None and any(
            node and node.id.raw[0] == number for node in scanned.values()
        ):
            continue  # an id belongs to one node
        node = None if number is None else _make_node(value, number)
        edits.put(Path(value), node)
        scanned[Path(value)] = node
    unpickled = pickle.loads(pickle.dumps(edits))  # noqa: S301 - made here
    for each in (edits, edits.copy(), unpickled):
        assert dict(each.items()) == scanned
        _require_equal(each, scanned)


def _require_equal(edits: NodeEdits, scanned: dict[Path, NodeSnapshot | None]) -> None:
    nodes = [node for node in scanned.values() if node is not None]
    deleted = [path for path, node in scanned.items() if node is None]
    for path in _PATHS:
        depth = len(path.segments)
        below = [node for node in nodes if node.path.is_below(path)]
        edited = edits.get(path)
        assert isinstance(edited, Unedited) == (path not in scanned) == (path not in edits)
        assert isinstance(edited, Unedited) or edited == scanned[path]
        assert sorted(edits.list_below(path), key=lambda node: node.path) == sorted(
            below, key=lambda node: node.path
        )
        assert edits.list_children(path) == {node.path.segments[depth] for node in below}
        assert edits.has_from(path) == any(_is_from(node.path, path) for node in nodes)
        deleted_below = [other for other in deleted if other.is_below(path)]
        assert sorted(edits.list_deleted_below(path)) == sorted(deleted_below)
        assert edits.list_deleted_children(path) == {
            other.segments[depth] for other in deleted_below
        }
    for number in range(6):
        found = edits.find(NodeId(bytes([number] * 8)))
        assert found == next((node for node in nodes if node.id.raw[0] == number), None)


@given(st.lists(_CALLS), st.lists(_CALLS))
def test_a_transaction_equals_a_scan(
    committed: list[tuple[str, str, str]], uncommitted: list[tuple[str, str, str]]
) -> None:
    repository = Repository.create(MemoryStorage())
    session = repository.writable_session("main")
    session.transaction.set_metadata(ROOT, group())
    _call(session.transaction, [("group", "/a", "/a"), *committed])
    session.commit("base")
    transaction = repository.writable_session("main").transaction
    scanned = {node.path: node for node in transaction.base.snapshot.nodes}
    _call(transaction, uncommitted, scanned)
    for path in _PATHS:
        below = [node for node in scanned.values() if node.path.is_below(path)]
        assert transaction.get_node(path) == scanned.get(path)
        assert set(transaction.iter_nodes_below(path)) == set(below)
        assert transaction.list_children(path) == {
            node.path.segments[len(path.segments)] for node in below
        }
        assert transaction.has_nodes_from(path) == any(_is_from(other, path) for other in scanned)
    nodes = transaction.find_node_changes()
    changed = bool(nodes.new or nodes.deleted or nodes.updated or nodes.moved)
    assert transaction.has_changes == changed


def _call(
    transaction: Transaction,
    calls: list[tuple[str, str, str]],
    scanned: dict[Path, NodeSnapshot] | None = None,
) -> None:
    """Make the calls that are possible, and the same changes to a dictionary of all nodes."""
    scanned = {} if scanned is None else scanned
    for name, source, target in calls:
        path, to_path = Path(source), Path(target)
        try:
            match name:
                case "group":
                    transaction.set_metadata(path, group())
                case "array":
                    transaction.set_metadata(path, array((2,)))
                case "delete":
                    transaction.delete_node(path)
                case "move":
                    transaction.move_node(path, to_path)
        except Exception:  # noqa: BLE001, S112 - calls that are refused change nothing
            continue
        if name in ("group", "array"):
            scanned[path] = transaction.require_node(path)
            continue
        removed = [scanned.pop(other) for other in list(scanned) if _is_from(other, path)]
        for node in removed if name == "move" else []:
            moved = Path(target + node.path.value[len(source) :])
            scanned[moved] = replace(node, path=moved)


def _count_calls(function: Callable[[], object]) -> int:
    """Count the Python functions and generators that a call runs, as a measure of its work."""
    count = 0

    def record(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(record)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("metadata", [group(), array((2,))], ids=["group", "array"])
def test_a_new_node_is_as_much_work_after_many_others(metadata: bytes) -> None:
    session = Repository.create(MemoryStorage()).writable_session("main")
    transaction = session.transaction
    transaction.set_metadata(ROOT, group())
    transaction.set_metadata(Path("/a"), group())

    def create(number: int) -> None:
        path = Path(f"/a/{number:04}")
        transaction.set_metadata(path, metadata)
        repr(session)
        transaction.find_node(transaction.require_node(path).id)
        transaction.list_children(path)
        list(transaction.iter_nodes_below(path))

    counts = [_count_calls(partial(create, number)) for number in range(300)]
    assert counts[100] == counts[299]


def test_a_group_is_as_much_work_below_many_others() -> None:
    transaction = Repository.create(MemoryStorage()).writable_session("main").transaction
    paths = [Path("/a" * depth) for depth in range(1, 300)]
    counts = [_count_calls(partial(transaction.set_metadata, path, group())) for path in paths]
    assert counts[100] == counts[-1]
