"""Which container holds a location, and which locations can be referenced at all."""

from __future__ import annotations

from itertools import pairwise

import pytest

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.containers import VirtualChunkContainer
from icefloe.storage import gcs_store, http_store, local_filesystem_store, s3_store
from icefloe.virtual.container_table import ContainerTable
from icefloe.virtual.request_plan import plan_requests

CONTAINERS = [
    VirtualChunkContainer("s3://models/", s3_store(), name="models"),
    VirtualChunkContainer("s3://models/dev/", s3_store(region="sa-east-1"), name="dev"),
    VirtualChunkContainer("s3://models/with space/", s3_store()),
    VirtualChunkContainer("gs://models/", gcs_store()),
    VirtualChunkContainer("http://example.org:8080/data/", http_store()),
    VirtualChunkContainer("file:///data/", local_filesystem_store("/data")),
    VirtualChunkContainer("file:///data/a%20b/", local_filesystem_store("/data/a b"), name="ab"),
]
TABLE = ContainerTable(CONTAINERS)


@pytest.mark.parametrize(
    "location,prefix,path",
    [
        ("s3://models/a.nc", "s3://models/", "/a.nc"),
        ("S3://models/a.nc", "s3://models/", "/a.nc"),
        ("s3://models/dev/a.nc", "s3://models/dev/", "/dev/a.nc"),
        ("s3://models/develop/a.nc", "s3://models/", "/develop/a.nc"),
        ("s3://models/d%65v/a.nc", "s3://models/dev/", "/dev/a.nc"),
        ("s3://models/with%20space/a.nc", "s3://models/with space/", "/with space/a.nc"),
        ("s3://models/with space/a.nc", "s3://models/with space/", "/with space/a.nc"),
        ("s3://models/a%2520b", "s3://models/", "/a%20b"),
        ("s3://models/a%3Fb?versionId=7#x", "s3://models/", "/a?b"),
        ("gs://models/dev/a.nc", "gs://models/", "/dev/a.nc"),
        ("http://example.org:8080/data/ü.nc", "http://example.org:8080/data/", "/data/ü.nc"),
        ("vcc://models/a.nc", "s3://models/", "/a.nc"),
        ("vcc://models/dev/a.nc", "s3://models/dev/", "/dev/a.nc"),
        ("vcc://ab/c.nc", "file:///data/a%20b/", "/data/a b/c.nc"),
        ("file:///data/a.nc", "file:///data/", "/data/a.nc"),
        ("file://localhost/data/a.nc", "file:///data/", "/data/a.nc"),
        ("file:/data/a.nc", "file:///data/", "/data/a.nc"),
        ("file:///data/x/../a.nc", "file:///data/", "/data/a.nc"),
        ("file:///data/x/%2E%2e/a b/c.nc", "file:///data/a%20b/", "/data/a b/c.nc"),
    ],
)
def test_the_most_specific_container_holds_a_location(
    location: str, prefix: str, path: str
) -> None:
    """The longest prefix wins, and the path is what will be fetched."""
    for containers in (CONTAINERS, CONTAINERS[::-1]):
        found = ContainerTable(containers).find(location)
        assert found.known.container.url_prefix == prefix
        assert found.location.path == path


@pytest.mark.parametrize(
    "location",
    [
        "",
        "relative",
        "some/relative/url",
        "/some/url/without/protocol",
        "mailto:foo",
        "s3:///key",
        "s3://models",
        "s3://models/",
        "s3://models/folder/",
        "s3://models/a//b",
        "s3://models/a/../b",
        "s3://models/a/%2e%2e/b",
        "s3://models/a%2F..%2F..%2Fb",
        "s3://models/a%00b",
        "s3://models/a%ffb",
        f"s3://models/{'x' * 1100}",
        "file:///data//a.nc",
        "file:///data/..%2f..%2fetc/passwd",
        "file:///data/x/..",
        "file://server/data/a.nc",
    ],
)
def test_malformed_locations_are_refused(location: str) -> None:
    """What cannot be the URL of an object is told so, whether a container fits or not."""
    with pytest.raises(InvalidInputError, match="error parsing") as raised:
        TABLE.find(location)
    assert raised.value.kind is ErrorKind.INVALID_VIRTUAL_REF


@pytest.mark.parametrize(
    "location",
    [
        "s3://other/a.nc",
        "s3://models.other/a.nc",
        "gcs://models/a.nc",
        "s3://models%2Fdev/a.nc",
        "http://example.org%3A8080%2Fdata/a.nc",
        "http://example.org/data/a.nc",
        "file:///etc/passwd",
        "file:///data/../etc/passwd",
        "file:///data/%2e%2E/etc/passwd",
        "file:///data\\..\\..\\etc/passwd",
        "file:///database/x",
        "vcc://nobody/a.nc",
        "vcc:///a.nc",
        "vcc://models",
    ],
)
def test_other_locations_have_no_container(location: str) -> None:
    """The message lists the containers and says how to add one."""
    if location == "vcc://models":
        kind, text = ErrorKind.INVALID_VIRTUAL_REF, "names no object"
    else:
        kind, text = ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK, "set_virtual_chunk_container"
    with pytest.raises(InvalidInputError, match=text) as raised:
        TABLE.find(location)
    assert raised.value.kind is kind
    if kind is ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK:
        assert "s3://models/dev/ (dev)" in raised.value.message
        assert "edit the repository configuration" in raised.value.message


def test_secrets_in_locations_are_not_shown() -> None:
    """A password or a signature in a location stays out of the message."""
    for location in ("https://me:pass-word@host/x", "https://host/x?signature=pass-word"):
        with pytest.raises(InvalidInputError) as raised:
            TABLE.find(location)
        assert "pass-word" not in raised.value.message


def test_a_container_that_breaks_the_rules_is_not_used() -> None:
    """Nothing is read through a container of a repository that its own rules forbid."""
    bad = VirtualChunkContainer.from_persisted("file://", local_filesystem_store("/"), unknown={})
    odd = VirtualChunkContainer("file://host/data/", local_filesystem_store("/data"))
    assert ContainerTable([bad, odd]).known == ()


@pytest.mark.parametrize("length", [1, 9, 10, 11, 99, 100, 101, 1000, 12345])
def test_requests_cover_a_range_evenly(length: int) -> None:
    """Parts follow each other, differ by one byte at most, and are no more than allowed."""
    parts = plan_requests(7, length, ideal_bytes=10, max_requests=18)
    assert len(parts) == min(18, -(-length // 10))
    assert parts[0].start == 7
    assert parts[-1].end == 7 + length
    assert all(a.end == b.start for a, b in pairwise(parts))
    sizes = [part.end - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1
