"""Whatever happens to the bytes of a file, a decoder refuses it or reads what can be written.

`format_damage` flips bits, cuts, splices and overwrites lengths and offsets, in the file as it is
and inside its compression. ``fuzz/fuzz_formats.py`` does the same for as long as one likes.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.format.envelope import HEADER_SIZE, FileType
from icefloe.format.location_compression import LocationCompression
from support.format_damage import NotTakenWellError, damage, judge
from support.format_kinds import (
    MANIFEST,
    REPO_INFO,
    SNAPSHOT,
    TRANSACTION_LOG,
    Kind,
    golden_files,
    wrap,
)
from support.format_strategies import manifests, repo_infos, snapshots, transaction_logs
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    from icefloe.model.manifest import Manifest

ATTEMPTS = 8


@pytest.mark.parametrize("path", golden_files())
def test_damaged_files_of_the_reference_implementation(path: str) -> None:
    """Each golden file, damaged in a few reproducible ways."""
    source = random.Random(path)
    for _ in range(ATTEMPTS):
        judge(damage(golden_files()[path], source))


@st.composite
def encode_files(draw: st.DrawFn) -> bytes:
    spec_version = draw(st.sampled_from((1, 2)))
    kinds: dict[str, tuple[Kind, st.SearchStrategy[Any]]] = {
        "manifest": (MANIFEST, manifests()),
        "snapshot": (SNAPSHOT, snapshots(spec_version)),
        "transaction log": (TRANSACTION_LOG, transaction_logs()),
        "repo info": (REPO_INFO, repo_infos()),
    }
    kind, values = kinds[draw(st.sampled_from(sorted(kinds)))]
    return kind.write(draw(values), spec_version)


@given(encode_files(), st.randoms(use_true_random=False))
@settings(max_examples=examples(60, thorough=120), deadline=None)
def test_damaged_files_of_icefloe(data: bytes, source: random.Random) -> None:
    """Each file that icefloe writes is well before, and taken well after the damage."""
    assert judge(data)
    for _ in range(2 * ATTEMPTS):
        judge(damage(data, source))


@given(manifests(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_damaged_compressed_locations(manifest: Manifest, source: random.Random) -> None:
    """Frames and dictionaries of locations are read with the same care."""
    compression = LocationCompression(min_locations=1)
    data = MANIFEST.encode(manifest, spec_version=2, location_compression=compression)
    for _ in range(ATTEMPTS):
        judge(damage(data, source))


@given(st.sampled_from((*FileType, 9)), st.sampled_from((1, 2)), st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes(file_type: int, spec_version: int, body: bytes) -> None:
    """Bytes without any structure, in a proper envelope and without one."""
    judge(body)
    data = wrap(body, file_type, spec_version)
    judge(data)
    judge(data[:HEADER_SIZE] + body)


def test_the_judge_is_strict() -> None:
    """What is not a `FormatError` would be seen: the judge itself does not forgive."""
    with pytest.raises(TypeError):
        judge(None)  # type: ignore[arg-type]
    assert issubclass(NotTakenWellError, AssertionError)
