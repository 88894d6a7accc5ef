"""A commit whose transaction log would be too large works in the parts that the error proposes."""

from __future__ import annotations

import re

import pytest

from icefloe import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    Repository,
    RepositoryConfig,
    VirtualChunkSpec,
    in_memory_storage,
)
from icefloe.errors import FormatError
from icefloe.format import flatbuffer_writer
from icefloe.model.path import Path
from support.zarr_nodes import array, put

NUM_CHUNKS = 5000


@pytest.mark.parametrize("spec_version", [1, 2])
def test_commit_in_parts(spec_version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 500}}
    splitting = ManifestSplittingConfig.from_dict(rules)
    config = RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
    repository = Repository.create(in_memory_storage(), config, spec_version=spec_version)
    session = repository.writable_session("main")
    put(session.store, "a/zarr.json", array((NUM_CHUNKS,)))
    chunks = [
        VirtualChunkSpec([number], "s3://bucket/file", number, 1) for number in range(NUM_CHUNKS)
    ]
    session.store.set_virtual_refs("a", chunks, validate_containers=False)
    monkeypatch.setattr(flatbuffer_writer, "MAX_FLATBUFFER_SIZE", 100_000)
    with pytest.raises(FormatError, match="would exceed 2 GiB") as caught:
        session.commit("all")
    match = re.search(r"commit in parts of at most ([\d,]+) chunks", str(caught.value))
    assert match is not None
    num_fitting = int(match[1].replace(",", ""))
    assert num_fitting == 3557

    session.discard_changes()
    put(session.store, "a/zarr.json", array((NUM_CHUNKS,)))
    for start in range(0, NUM_CHUNKS, num_fitting):
        part = chunks[start : start + num_fitting]
        session.store.set_virtual_refs("a", part, validate_containers=False)
        session.commit("a part")
        session = repository.writable_session("main")
    transaction = session.transaction
    assert sum(len(refs.coords) for refs in transaction.fetch_chunk_refs(Path("/a"))) == NUM_CHUNKS
