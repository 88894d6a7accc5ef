"""The direct codecs of small files and the columnar codecs give equal values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.format.envelope import read_header
from support.codec_choice import columnar_codecs
from support.format_kinds import (
    KINDS,
    MANIFEST,
    SNAPSHOT,
    TRANSACTION_LOG,
    Kind,
    force_metadata,
    golden_files,
)
from support.format_strategies import manifests, snapshots, transaction_logs
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

STRATEGIES: dict[str, tuple[Kind, Callable[[int], st.SearchStrategy[Any]]]] = {
    "manifest": (MANIFEST, lambda _: manifests()),
    "snapshot": (SNAPSHOT, snapshots),
    "transaction log": (TRANSACTION_LOG, lambda _: transaction_logs()),
}


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
@settings(max_examples=examples(40, thorough=200), deadline=None)
def test_either_reads_what_the_other_writes(
    name: str, spec_version: int, data: st.DataObject
) -> None:
    kind, strategy = STRATEGIES[name]
    value = data.draw(strategy(spec_version))
    direct = kind.write(value, spec_version)
    with columnar_codecs():
        columnar = kind.write(value, spec_version)
        assert kind.decode(direct, "a file") == value
        assert kind.decode(columnar, "a file") == value
    assert kind.decode(columnar, "a file") == value
    assert kind.decode(direct, "a file") == value


@pytest.mark.parametrize("path", golden_files())
def test_files_of_the_reference_implementation(path: str) -> None:
    data = golden_files()[path]
    kind = KINDS[read_header(data, path).file_type]
    direct = kind.decode(data, path)
    with columnar_codecs():
        columnar = kind.decode(data, path)
        assert columnar == direct
        force_metadata(columnar)
