"""Which container matches a location, and which locations can be referenced at all."""

from __future__ import annotations

from itertools import pairwise

import pytest

from icefloe.containers.container_table import ContainerTable
from icefloe.containers.request_plan import plan_requests
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format import config_flexbuffers, config_yaml
from icefloe.model.config import RepositoryConfig
from icefloe.model.containers import AnyObjectStoreConfig, VirtualChunkContainer
from icefloe.storage import azure_store, gcs_store, http_store, local_filesystem_store, s3_store

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
AZURE = azure_store(account="a")
STORES: dict[str, AnyObjectStoreConfig] = {
    "https": http_store(),
    "s3": s3_store(),
    "az": AZURE,
    "abfs": AZURE,
}


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
        assert found.container.config.url_prefix == prefix
        assert found.location.path == path


SCHEMES = [
    VirtualChunkContainer("s3", s3_store(), name="all"),
    VirtualChunkContainer("s3://foo", s3_store(), name="foo"),
    VirtualChunkContainer("s3://foo/bar.nc", s3_store(), name="bar"),
    VirtualChunkContainer("models", gcs_store(), name="models"),
    VirtualChunkContainer("models/dev", gcs_store(), name="dev"),
    VirtualChunkContainer("models/prod", gcs_store(), name="prod"),
    VirtualChunkContainer("real", gcs_store(), name="real", target_prefix="gs://bucket/a"),
    VirtualChunkContainer(
        "real/one.nc",
        local_filesystem_store("/data"),
        name="one",
        target_prefix="file:///data/1.nc",
    ),
]


@pytest.mark.parametrize(
    "location,name,text",
    [
        ("s3://foobar/x", "all", "s3://foobar/x"),
        ("s3://foo/x", "foo", "s3://foo/x"),
        ("s3://foo/bar.nc4", "foo", "s3://foo/bar.nc4"),
        ("s3://foo/bar.nc", "bar", "s3://foo/bar.nc"),
        ("s3://foo/bar.nc/x", "bar", "s3://foo/bar.nc/x"),
        ("models://dev/x", "dev", "models://dev/x"),
        ("models://develop/x", "models", "models://develop/x"),
        ("models://prod/x", "prod", "models://prod/x"),
        ("real://x/y.nc", "real", "gs://bucket/a/x/y.nc"),
        ("real://one.nc/x", "one", "file:///data/1.nc/x"),
        ("vcc://all/bucket/x", "all", "s3://bucket/x"),
        ("vcc://bar/x", "bar", "s3://foo/bar.nc/x"),
        ("vcc://real/x/y", "real", "gs://bucket/a/x/y"),
    ],
)
def test_prefixes_are_whole_segments(location: str, name: str, text: str) -> None:
    """A scheme, a bucket, one object, and a place that another prefix stands for."""
    for containers in (SCHEMES, SCHEMES[::-1]):
        found = ContainerTable(containers).find(location)
        assert found.container.config.name == name
        assert found.location.text == text


@pytest.mark.parametrize(
    "location",
    [
        "s3://evil.example%23/x",
        "s3://evil.example%3F/x",
        "s3://evil.example%5C/x",
        "s3://evil.example%2F/x",
        "s3://evil.example%40a/x",
        "s3://a b/x",
        "s3://-a/x",
        "models://a@b/x",
    ],
)
def test_what_can_be_no_bucket_never_becomes_part_of_a_host(location: str) -> None:
    """A location is not trusted: a '#' in the bucket would end the host before the platform's."""
    with pytest.raises(InvalidInputError, match="bucket") as raised:
        ContainerTable(SCHEMES).find(location)
    assert raised.value.kind is ErrorKind.INVALID_VIRTUAL_REF
    if "%40" in location or "@" in location:
        return  # before a bucket that a container names stands a user, who is ignored
    with pytest.raises(InvalidInputError, match="bucket"):
        VirtualChunkContainer(location.removesuffix("x"), s3_store())


def test_names_and_prefixes_are_unique() -> None:
    """Enforced when a container is set; what another writer doubled is never ambiguous."""
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://a/", s3_store(), "x"))
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://b/", s3_store(), "x"))
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://b", s3_store(), "y"))
    assert [(c.url_prefix, c.name) for c in config.usable_containers()] == [("s3://b/", "y")]
    # An edit of a container that was written in another spelling.
    written = VirtualChunkContainer.from_persisted("s3", s3_store(), "all", unknown={})
    config.virtual_chunk_containers = {"s3": written}
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://", s3_store(region="r"), "all"))
    assert list(config.virtual_chunk_containers) == ["s3://"]

    twice = [
        VirtualChunkContainer("s3://a/", s3_store(), "x"),
        VirtualChunkContainer("s3://b/", s3_store(), "x"),
        VirtualChunkContainer("s3://b/", s3_store(region="r"), "z"),
    ]
    prefixes = [item.config.url_prefix for item in ContainerTable(twice).containers]
    assert prefixes == ["s3://a/", "s3://b/"]
    table = ContainerTable(twice[:2])
    assert table.find_by_name("x") is None
    with pytest.raises(InvalidInputError, match="no virtual chunk container is named 'x'"):
        table.find("vcc://x/a")


def test_targets_are_persisted_beside_what_icechunk_knows() -> None:
    """In both formats; a container without a target is written as Icechunk writes it."""
    for container in SCHEMES:
        config = RepositoryConfig()
        config.set_virtual_chunk_container(container)
        for codec in (config_yaml, config_flexbuffers):
            assert codec.loads(codec.dumps(config)) == config
        has_target = b"target_prefix" in config_yaml.dumps(config)
        assert has_target == (container.target_prefix is not None)


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
        "s3://models/a%00b",
        "s3://models/a%ffb",
        f"s3://models/{'x' * 1100}",
        "https://models/folder/",
        "https://models/a//b",
        "https://models/a/../b",
        "file:///data//a.nc",
        "file:///data/..%2f..%2fetc/passwd",
        "file:///data/x/..",
        "file://server/data/a.nc",
    ],
)
def test_malformed_locations_are_refused(location: str) -> None:
    """A location that cannot be the URL of an object raises, with or without a container."""
    with pytest.raises(InvalidInputError, match="error parsing") as raised:
        TABLE.find(location)
    assert raised.value.kind is ErrorKind.INVALID_VIRTUAL_REF


@pytest.mark.parametrize(
    "location, key",
    [
        ("s3://models/folder/", "folder/"),
        ("s3://models/a//b", "a//b"),
        ("s3://models/a/./b", "a/./b"),
        ("s3://models/a/%2e%2e/b", "a/../b"),
        ("s3://models/a%2F..%2F..%2Fb", "a/../../b"),
    ],
)
def test_keys_of_object_stores_have_no_folders(location: str, key: str) -> None:
    """Such keys stay as they are, in the container whose prefix their text has."""
    assert TABLE.find(location).location.key == key


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
        "vcc://absent/a.nc",
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
        assert "with that configuration" in raised.value.message


def test_secrets_in_locations_are_not_shown() -> None:
    """A password or a signature in a location stays out of the message."""
    for location in ("https://me:pass-word@host/x", "https://host/x?signature=pass-word"):
        with pytest.raises(InvalidInputError) as raised:
            TABLE.find(location)
        assert "pass-word" not in raised.value.message


@pytest.mark.parametrize(
    "prefix",
    [
        "https://me:SECRET@host/data/",
        "https://SECRET@host/",
        "https://me:SEC/RET@host/",
        "https://me:SECRET%40host/",
        "https://host/data?signature=SECRET",
        "s3://key:SECRET@bucket/",
        "az://me:SECRET@container/",
    ],
)
def test_no_container_has_a_secret_in_its_prefix(prefix: str) -> None:
    """It would be saved, and shown to all who open the repository; nor does the message show it."""
    store = STORES[prefix.partition("://")[0]]
    for first, target in ((prefix, None), ("models://", prefix)):
        with pytest.raises(InvalidInputError) as refused:
            VirtualChunkContainer(first, store, target_prefix=target)
        assert not any(part in refused.value.message for part in ("SEC", "RET", "me:", "key:"))
    # An invalid one in the configuration does not prevent opening.
    assert VirtualChunkContainer.from_persisted(prefix, store, unknown={}).url_prefix == prefix


def test_what_only_looks_like_a_user_is_none() -> None:
    for prefix in ("abfs://box@account.dfs.core.windows.net/x/", "https://[::1]:80/a@b/"):
        store = STORES[prefix.partition("://")[0]]
        assert VirtualChunkContainer(prefix, store).url_prefix == prefix


def test_a_container_that_breaks_the_rules_is_not_used() -> None:
    """Nothing is read through a container of a repository that its own rules forbid."""
    bad = VirtualChunkContainer.from_persisted("file://", local_filesystem_store("/"), unknown={})
    odd = VirtualChunkContainer("file://host/data/", local_filesystem_store("/data"))
    assert ContainerTable([bad, odd]).containers == ()


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
