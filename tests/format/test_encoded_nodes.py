"""Nodes of large snapshots are decoded on access, with the answers of a full decoding."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format import direct_snapshot, encoded_nodes
from icefloe.format.snapshot import decode_snapshot, encode_snapshot, open_snapshot
from icefloe.model.ids import ManifestId, NodeId, SnapshotId
from icefloe.model.manifest_config import ManifestPreloadConfig
from icefloe.model.node import GroupNodeData, NodeSnapshot
from icefloe.model.path import ROOT, Path
from icefloe.model.snapshot import ManifestFileInfo, Snapshot
from icefloe.model.tree import Tree
from icefloe.transaction.preload import plan_preload
from support.codec_choice import columnar_codecs
from support.format_damage import damage
from support.format_strategies import snapshots
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


def _list_answers(tree: Tree, snapshot: Snapshot) -> list[Any]:
    """Ask a tree about all nodes of a snapshot, the paths above them, and others."""
    paths = {ROOT, Path("/absent"), *(node.path for node in snapshot.nodes)}
    paths |= {above for path in set(paths) for above in path.ancestors()}
    ids = [*(node.id for node in snapshot.nodes), NodeId(bytes(8)), NodeId(b"\xff" * 8)]
    files = [*(info.id for info in snapshot.manifest_files), ManifestId(b"\xff" * 12)]
    return [
        *(
            (path, tree.get(path), sorted(tree.iter_children(path)), list(tree.iter_below(path)))
            for path in sorted(paths)
        ),
        *(tree.by_id.get(node_id) for node_id in ids),
        *(tree.get_manifest_file(manifest_id) for manifest_id in files),
    ]


@pytest.mark.parametrize("min_rows", [0, 64])
@pytest.mark.parametrize("spec_version", [1, 2])
@given(data=st.data())
@settings(max_examples=examples(40, thorough=200), deadline=None)
def test_answers_equal_those_of_decoded_nodes(
    spec_version: int, min_rows: int, data: st.DataObject
) -> None:
    snapshot = data.draw(snapshots(spec_version))
    file = encode_snapshot(snapshot, spec_version=spec_version)
    decoded = decode_snapshot(file, "a file")
    with columnar_codecs(), patch.object(encoded_nodes, "_MIN_COLUMN_ROWS", min_rows):
        opened = open_snapshot(file, "a file")
        assert _list_answers(Tree(opened), decoded) == _list_answers(Tree(decoded), decoded)
        assert opened == decoded  # which decodes all nodes
        assert _list_answers(Tree(opened), decoded) == _list_answers(Tree(decoded), decoded)
        assert set(Tree(opened).by_id.items()) == set(Tree(decoded).by_id.items())
        again = open_snapshot(file, "a file")
        assert pickle.loads(pickle.dumps(again)) == decoded  # noqa: S301
        assert hash(again.nodes) == hash(decoded.nodes)
        assert again.nodes[1:3] == decoded.nodes[1:3]
        assert again.nodes[::-1] == decoded.nodes[::-1]
        assert again.manifest_files[1:] == decoded.manifest_files[1:]


@given(snapshots(2), st.randoms(use_true_random=False))
@settings(max_examples=examples(60, thorough=300), deadline=None)
def test_damaged_files_raise_format_errors(snapshot: Snapshot, source: random.Random) -> None:
    file = encode_snapshot(snapshot, spec_version=2)
    for _ in range(8):
        damaged = damage(file, source)
        with columnar_codecs():
            try:
                tree = Tree(open_snapshot(damaged, "a file"))
            except FormatError:
                continue
            for ask in _list_questions(tree, snapshot):
                try:
                    ask()
                except FormatError:
                    continue


def _list_questions(tree: Tree, snapshot: Snapshot) -> list[Callable[[], object]]:
    questions: list[Callable[[], object]] = [lambda: tree.by_id, lambda: list(tree.snapshot.nodes)]
    for path in [ROOT, *(node.path for node in snapshot.nodes)]:
        questions += [
            lambda path=path: tree.get(path),  # type: ignore[misc]
            lambda path=path: list(tree.iter_children(path)),  # type: ignore[misc]
            lambda path=path: list(tree.iter_below(path)),  # type: ignore[misc]
        ]
    return questions


def _make_large(count: int) -> Snapshot:
    groups = [
        NodeSnapshot(
            NodeId(number.to_bytes(8, "big")),
            Path(f"/{number // 100:04}/{number:06}"),
            b"{}" + b" " * number,
            GroupNodeData(),
        )
        for number in range(count)
    ]
    files = [ManifestFileInfo(ManifestId(number.to_bytes(12, "big")), 1, 1) for number in range(9)]
    time = datetime(2026, 1, 1, tzinfo=UTC)
    return Snapshot(SnapshotId(bytes(12)), None, time, "", {}, tuple(groups), tuple(files))


def test_a_question_decodes_the_nodes_of_its_answer() -> None:
    snapshot = _make_large(1000)
    tree = Tree(open_snapshot(encode_snapshot(snapshot, spec_version=2), "a file"))
    decoded: list[Any] = []
    read_node = direct_snapshot.read_node

    def count(*args: Any, **options: Any) -> NodeSnapshot:
        decoded.append(args)
        return read_node(*args, **options)

    with (
        patch.object(encoded_nodes, "read_node", count),
        patch.object(encoded_nodes, "read_all_nodes", side_effect=AssertionError),
        patch.object(encoded_nodes, "read_nodes", side_effect=AssertionError),
    ):
        assert list(tree.iter_children(ROOT)) == [f"{number:04}" for number in range(10)]
        assert len(list(tree.iter_children(Path("/0003")))) == 100
        assert tree.get(Path("/absent")) is None
        assert not decoded
        assert tree.get(Path("/0003/000345")) == snapshot.nodes[345]
        assert tree.get(Path("/0003/000345")) == snapshot.nodes[345]
        assert tree.by_id[snapshot.nodes[345].id] == snapshot.nodes[345]
        assert len(decoded) == 1
        assert next(iter(tree.snapshot.nodes)) == snapshot.nodes[0]
    assert len(decoded) <= 65


def test_the_first_nodes_do_not_decode_all() -> None:
    """A reader of many nodes gets all of them in order; a preload needs only the first."""
    snapshot = _make_large(5000)
    data = encode_snapshot(snapshot, spec_version=2)
    assert list(open_snapshot(data, "a file").nodes) == list(snapshot.nodes)
    with patch.object(encoded_nodes, "read_all_nodes", side_effect=AssertionError):
        first = list(islice(open_snapshot(data, "a file").nodes, 4096))
        assert first == list(snapshot.nodes[:4096])
        assert plan_preload(Tree(open_snapshot(data, "a file")), ManifestPreloadConfig()) == []
