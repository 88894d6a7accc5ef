"""Vectorized resolution agrees with single locations, without Python work for each."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.containers.container_table import ContainerTable, VirtualFile
from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.errors import InvalidInputError
from icefloe.model.containers import VirtualChunkContainer
from icefloe.model.manifest import NO_CODE
from icefloe.model.strings import Strings
from icefloe.storage import (
    gcs_store,
    in_memory_storage,
    local_filesystem_store,
    s3_store,
)

CHUNKS = VirtualChunks(
    [
        VirtualChunkContainer("s3://bucket/data/", s3_store(), name="Named"),
        VirtualChunkContainer("s3://bucket/data/more/", s3_store(), name="n%2F"),
        VirtualChunkContainer("s3://bucket/with space/", s3_store()),
        VirtualChunkContainer("file:///data/a%20b/", local_filesystem_store("/x"), name="f"),
    ],
    {},
    in_memory_storage(),
)

WIDE = VirtualChunks(
    [
        VirtualChunkContainer("s3", s3_store(), name="all"),
        VirtualChunkContainer("s3://bucket/data/one.nc", s3_store(), name="one"),
        VirtualChunkContainer("models", gcs_store(), target_prefix="gs://real/a folder"),
        VirtualChunkContainer(
            "m://x/y.nc", local_filesystem_store("/z"), target_prefix="file:///z/y.nc", name="y"
        ),
        VirtualChunkContainer("m://x/folder", gcs_store(), target_prefix="gs://real/", name="f"),
    ],
    {},
    in_memory_storage(),
)

_PIECES = [
    "s3://bucket/data/", "S3://", "s3://bucket/", "vcc://Named/", "VCC://", "vcc://n%2F/", "vcc://f/",
    "file:///data/a b/", "file:///", "file://localhost/", "file:/", "data/", "a", "b.nc", "/", "//",
    "/data/one.nc", "vcc://all/", "vcc://one/", "models://", "m://x/y.nc", "m://x/folder", "vcc://y/",
    "one.nc", "bucket", "bucket/", "$", "-", "_", "é", "y" * 300,
    "/.", "..", "%20", "%2e", "%2F", "?", "#", "\\", "@", "\n", "ü", " ", "with space/", "x" * 600,
]  # fmt: skip


def _resolve(table: ContainerTable, location: str) -> tuple[int, str]:
    with suppress(InvalidInputError):
        file = table.find(location)
        return table.containers.index(file.container), file.location.text
    return NO_CODE, location


@pytest.mark.parametrize("chunks", [CHUNKS, WIDE], ids=["places", "schemes"])
@given(locations=st.lists(st.lists(st.sampled_from(_PIECES), max_size=5).map("".join), max_size=20))
def test_columns_agree_with_single_locations(chunks: VirtualChunks, locations: list[str]) -> None:
    """Both ways give the same results."""
    expected = [_resolve(chunks.access_context.table, location) for location in locations]
    is_valid = chunks.validate_many(Strings.of(locations))
    assert is_valid.tolist() == [container != NO_CODE for container, _ in expected]
    found = chunks.resolve_many(Strings.of(locations))
    assert list(zip(found.container.tolist(), found.locations, strict=True)) == expected


def test_without_containers_nothing_is_held() -> None:
    """No container, no location; and no locations, no answer."""
    none = VirtualChunks([], {}, in_memory_storage())
    assert none.validate_many(Strings.of(["s3://bucket/data/a"])).tolist() == [False]
    assert CHUNKS.validate_many(Strings.of([])).tolist() == []


def test_plain_locations_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only locations that are not plain are, whether or not they have a container."""
    looked_at: list[str] = []
    find = ContainerTable.find

    def count_find(table: ContainerTable, location: str) -> VirtualFile:
        looked_at.append(location)
        return find(table, location)

    monkeypatch.setattr(ContainerTable, "find", count_find)
    starts = ("s3://elsewhere/data", "s3://bucket/data", "vcc://absent", "vcc://Named")
    names = [f"{starts[i % 4]}/c/{i}/{i % 7}" for i in range(200_000)]
    odd = ["s3://bucket/data/a%20b", "file:///data//b", "S3://bucket/data/a"]
    found = CHUNKS.validate_many(Strings.of([*names, *odd]))
    assert looked_at[-3:] == odd
    assert len(looked_at) < 20  # the prefixes of containers
    assert found.tolist() == [False, True] * 100_000 + [True, False, True]

    looked_at.clear()
    starts = ("s3://elsewhere/data", "m://x/y.nc", "gs://bucket/a", "m://x/folder")
    names = [f"{starts[i % 4]}{f'/c/{i}' if i % 4 != 1 else ''}" for i in range(100_000)]
    found = WIDE.validate_many(Strings.of(names))
    assert len(looked_at) < 20
    assert found.tolist() == [True, True, False, True] * 25_000
