"""Transaction logs of small files, whose chunk indices are decoded on access."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format import direct_transaction_log
from icefloe.format.transaction_log import decode_transaction_log, encode_transaction_log
from support.format_damage import damage
from support.format_kinds import TRANSACTION_LOG
from support.format_strategies import NODE_IDS, transaction_logs
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    import random

    from icefloe.model.ids import NodeId
    from icefloe.model.transaction_log import TransactionLog


@given(transaction_logs(), st.lists(NODE_IDS, max_size=3))
@settings(max_examples=examples(60, thorough=400), deadline=None)
def test_lookups_equal_those_of_columns(log: TransactionLog, others: list[NodeId]) -> None:
    """Arrays are found without decoding their chunk indices."""
    decoded = decode_transaction_log(encode_transaction_log(log, spec_version=2), "a file")
    expected, chunks = log.updated_chunks, decoded.updated_chunks
    with patch.object(direct_transaction_log, "_read_updated_chunks", side_effect=AssertionError):
        assert chunks.num_arrays == expected.num_arrays
        assert chunks.nbytes >= expected.nbytes
        assert decoded.changes_nodes == log.changes_nodes
        for node_id in (*expected.iter_node_ids(), *others):
            assert chunks.find_array(node_id) == expected.find_array(node_id)
    assert pickle.loads(pickle.dumps(chunks)) == expected  # noqa: S301
    assert hash(chunks) == hash(expected)
    assert len(chunks) == len(expected)
    for position in range(chunks.num_arrays):
        found, matrix = chunks.get_coords(position), expected.get_coords(position)
        assert found.tolist() == matrix.tolist()
        assert not found.flags.writeable
    assert decoded == log


@given(transaction_logs(), st.randoms(use_true_random=False))
@settings(max_examples=examples(60, thorough=400), deadline=None)
def test_damaged_chunk_indices_raise_on_each_access(
    log: TransactionLog, source: random.Random
) -> None:
    file = damage(encode_transaction_log(log, spec_version=2), source)
    try:
        decoded = decode_transaction_log(file, "a file")
    except FormatError:
        return
    try:
        TRANSACTION_LOG.decode(file, "a file")
    except FormatError:
        for _ in range(2):
            with pytest.raises(FormatError):
                decoded.updated_chunks.coords  # noqa: B018
