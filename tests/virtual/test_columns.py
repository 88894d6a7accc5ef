"""Checking many locations at once says what checking each says, without Python work for each."""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.model.containers import VirtualChunkContainer
from icefloe.model.strings import Strings
from icefloe.storage import (
    in_memory_storage,
    local_filesystem_store,
    s3_store,
)
from icefloe.virtual import VirtualChunks

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

_PIECES = [
    "s3://bucket/data/", "S3://", "s3://bucket/", "vcc://Named/", "VCC://", "vcc://n%2F/", "vcc://f/",
    "file:///data/a b/", "file:///", "file://localhost/", "file:/", "data/", "a", "b.nc", "/", "//",
    "/.", "..", "%20", "%2e", "%2F", "?", "#", "\\", "@", "\n", "ü", " ", "with space/", "x" * 600,
]  # fmt: skip


def _is_valid(location: str) -> bool:
    with suppress(InvalidInputError):
        CHUNKS.validate(location)
        return True
    return False


@given(st.lists(st.lists(st.sampled_from(_PIECES), max_size=5).map("".join), max_size=20))
def test_columns_agree_with_single_locations(locations: list[str]) -> None:
    """For any locations the two ways give the same answers."""
    found = CHUNKS.validate_many(Strings.of(locations))
    assert found.tolist() == [_is_valid(location) for location in locations]


def test_without_containers_nothing_is_held() -> None:
    """No container, no location; and no locations, no answer."""
    none = VirtualChunks([], {}, in_memory_storage())
    assert none.validate_many(Strings.of(["s3://bucket/data/a"])).tolist() == [False]
    assert CHUNKS.validate_many(Strings.of([])).tolist() == []


def test_a_million_locations_take_about_a_second() -> None:
    """Also where half of them have no container."""
    names = [
        f"s3://{'bucket' if i % 2 else 'elsewhere'}/data/c/{i}/{i % 7}" for i in range(1_000_000)
    ]
    locations = Strings.of(names)
    started = time.perf_counter()
    found = CHUNKS.validate_many(locations)
    assert time.perf_counter() - started < 5
    assert found.tolist() == (np.arange(1_000_000) % 2 == 1).tolist()
