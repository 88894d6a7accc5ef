"""Nothing is read from a container that the user did not open."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.containers.remote_files import RemoteFiles
from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.model.chunk_payload import VirtualChunkRef
from icefloe.model.containers import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.storage import (
    AzureCredentials,
    AzurePlace,
    AzureStaticCredentials,
    Credentials,
    GcsCredentials,
    GcsPlace,
    LatencyStorage,
    ObjectStorage,
    S3Credentials,
    S3Place,
    Storage,
    azure_storage,
    azure_store,
    gcs_storage,
    gcs_store,
    http_store,
    in_memory_storage,
    local_filesystem_storage,
    local_filesystem_store,
    s3_static_credentials,
    s3_storage,
    s3_store,
    tigris_storage,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.model.containers import AnyObjectStoreConfig
    from icefloe.storage import AnyCredential, Place

ANYWHERE = in_memory_storage()


@pytest.mark.parametrize(
    "prefix,store,line",
    [
        ("file:///data/", local_filesystem_store("/data"), "Credentials.LocalFileSystemAccess()"),
        ("https://host/", http_store(), "Credentials.HttpAccess()"),
        ("s3://bucket/", s3_store(), "Credentials.S3(S3Credentials.FromEnv())"),
        (
            "s3://bucket/",
            s3_store(anonymous=True),
            "Credentials.S3(S3Credentials.Anonymous())",
        ),
        ("gs://bucket/", gcs_store(), "Credentials.Gcs(GcsCredentials.FromEnv())"),
        (
            "az://bucket/",
            azure_store(account="a"),
            "Credentials.Azure(AzureCredentials.FromEnv())",
        ),
    ],
)
def test_unopened_containers_are_refused(
    prefix: str, store: AnyObjectStoreConfig, line: str
) -> None:
    """The message names the container and the line that opens it, and that line does."""
    container = VirtualChunkContainer(prefix, store, name="archive")
    ref = VirtualChunkRef(f"{prefix}a.nc", 0, 4)
    chunks = VirtualChunks([container], {}, ANYWHERE)
    chunks.validate(ref.location)
    reads: list[Callable[[], object]] = [
        lambda: chunks.fetch(ref, 0, 4),
        lambda: asyncio.run(chunks.fetch_async(ref, 0, 4)),
        lambda: chunks.fetch(ref, 0, 0),
    ]
    for read in reads:
        with pytest.raises(InvalidInputError) as raised:
            read()
        assert raised.value.kind is ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
        assert f"{prefix} (archive)" in raised.value.message
        access = f"authorize_virtual_chunk_access={{{prefix!r}: {line}}}"
        assert access in raised.value.message
    written = access.partition("=")[2]
    assert VirtualChunks([container], eval(written), ANYWHERE).authorized_prefixes == {prefix}  # noqa: S307


def test_a_more_specific_container_needs_its_own_word(tmp_path: Path) -> None:
    """Opening a prefix does not open a container below it."""
    (tmp_path / "inner").mkdir()
    for path in (tmp_path / "a", tmp_path / "inner" / "b"):
        path.write_bytes(b"data")
    url = tmp_path.as_uri()
    chunks = VirtualChunks(
        [
            VirtualChunkContainer(f"{url}/", local_filesystem_store(tmp_path)),
            VirtualChunkContainer(f"{url}/inner/", local_filesystem_store(tmp_path)),
        ],
        {f"{url}/": None},
        ANYWHERE,
    )
    assert chunks.fetch(VirtualChunkRef(f"{url}/a", 0, 4), 0, 4) == b"data"
    with pytest.raises(InvalidInputError, match="inner"):
        chunks.fetch(VirtualChunkRef(f"{url}/inner/b", 0, 4), 0, 4)


def test_keys_are_prefixes_or_names() -> None:
    """A prefix may lack its last slash, as in Icechunk; a name does as well."""
    containers = [
        VirtualChunkContainer("file:///a/", local_filesystem_store("/a"), name="one"),
        VirtualChunkContainer("file:///b/", local_filesystem_store("/b")),
    ]
    chunks = VirtualChunks(containers, {"one": None, "file:///b": None}, ANYWHERE)
    assert chunks.authorized_prefixes == {"file:///a/", "file:///b/"}


@pytest.mark.parametrize("key", ["a//b", "a/./b", "a/../b", "a/b/"])
def test_keys_that_the_client_would_change_are_not_requested(key: str) -> None:
    """They would be other objects, possibly outside of the container; nothing is sent."""
    store = s3_store(endpoint_url="https://127.0.0.1:1", region="us-east-1")
    containers = [VirtualChunkContainer("s3://b/a/", store)]
    chunks = VirtualChunks(
        containers, {"s3://b/a/": Credentials.S3(S3Credentials.Anonymous())}, ANYWHERE
    )
    with pytest.raises(StorageError, match=f"s3://b/{key}: the object store client") as raised:
        chunks.fetch(VirtualChunkRef(f"s3://b/{key}", 0, 1), 0, 1)
    assert raised.value.kind is ErrorKind.VIRTUAL_CHUNK_FETCH


def test_keys_of_no_container_are_ignored() -> None:
    """One mapping can serve several repositories."""
    containers = [VirtualChunkContainer("file:///a/", local_filesystem_store("/a"), name="one")]
    access = {"file:///a/": None, "file:///c/": None, "three": None}
    chunks = VirtualChunks(containers, access, ANYWHERE)
    assert chunks.authorized_prefixes == {"file:///a/"}


@pytest.mark.parametrize(
    "access,text",
    [
        ({"one": None, "file:///a/": None}, "twice"),
        ({"one": Credentials.HttpAccess()}, "LocalFileSystemAccess"),
        ({"one": Credentials.LocalFileSystemAccess}, "without ()"),
        ({"s3://b/": Credentials.LocalFileSystemAccess()}, "Credentials.S3"),
        (
            {"s3://b/": s3_static_credentials(access_key_id="id", secret_access_key="hush")},
            "Static.*Credentials.S3",
        ),
    ],
)
def test_what_opens_nothing_is_refused(access: dict[str, Any], text: str) -> None:
    """The same container twice, credentials of another kind."""
    containers = [
        VirtualChunkContainer("file:///a/", local_filesystem_store("/a"), name="one"),
        VirtualChunkContainer("s3://b/", s3_store()),
    ]
    with pytest.raises(InvalidInputError, match=text.replace("(", r"\(").replace(")", r"\)")) as r:
        VirtualChunks(containers, access, ANYWHERE)
    assert r.value.kind is ErrorKind.INVALID_CREDENTIALS
    assert "hush" not in r.value.message


def _place(
    store: AnyObjectStoreConfig, prefix: str, given: AnyCredential | None, home: Storage
) -> Place:
    container = VirtualChunkContainer(prefix, store)
    chunks = VirtualChunks([container], {prefix: given}, home)
    _, fetcher = chunks._open(VirtualChunkRef(f"{prefix}a", 0, 1), 0, 1)
    assert isinstance(fetcher, RemoteFiles)
    return fetcher.storage.place


STATIC = s3_static_credentials(access_key_id="id", secret_access_key="hush")
OWN = s3_static_credentials(access_key_id="own", secret_access_key="hush too")
ENDPOINT: dict[str, Any] = {"endpoint_url": "http://127.0.0.1:9", "allow_http": True}


def _s3_home(**how: Any) -> ObjectStorage:
    return s3_storage(
        bucket="home", prefix="p", access_key_id="id", secret_access_key="hush", **how
    )


@pytest.mark.parametrize(
    "store,given,home,expected",
    [
        # on the repository's own endpoint: the repository's credentials
        (s3_store(), None, _s3_home(), STATIC),
        (s3_store(), None, LatencyStorage(_s3_home(), read_latency_ms=1), STATIC),
        (s3_store(**ENDPOINT), None, _s3_home(**ENDPOINT), STATIC),
        # unless others are given, or the container is public
        (s3_store(), Credentials.S3(OWN), _s3_home(), OWN),
        (s3_store(anonymous=True), None, _s3_home(), S3Credentials.Anonymous()),
        # an anonymous repository has none to give
        (
            s3_store(),
            None,
            s3_storage(bucket="b", prefix=None, anonymous=True),
            S3Credentials.FromEnv(),
        ),
        # elsewhere: never the repository's
        (s3_store(**ENDPOINT), None, _s3_home(), S3Credentials.FromEnv()),
        (s3_store(), None, _s3_home(**ENDPOINT), S3Credentials.FromEnv()),
        (s3_store(), None, ANYWHERE, S3Credentials.FromEnv()),
        (s3_store(), None, gcs_storage(bucket="b", prefix=None), S3Credentials.FromEnv()),
    ],
)
def test_credentials_of_s3(
    store: AnyObjectStoreConfig,
    given: AnyCredential | None,
    home: Storage,
    expected: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who is asked with what."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    place = _place(store, "s3://bucket/", given, home)
    assert isinstance(place, S3Place)
    assert place.credentials == expected


def test_the_region_is_the_repositorys_on_its_own_endpoint() -> None:
    """A container without a region, where the repository lies in one."""
    place = _place(s3_store(), "s3://bucket/", None, _s3_home(region="sa-east-1"))
    assert isinstance(place, S3Place)
    assert place.region == "sa-east-1"
    other = _place(s3_store(region="eu-west-1"), "s3://b/", None, _s3_home(region="sa-east-1"))
    assert isinstance(other, S3Place)
    assert other.region == "eu-west-1"


def test_tigris_is_reached_by_either_scheme() -> None:
    """The container says which platform a scheme is on."""
    store = ObjectStoreConfig.Tigris(S3Options())
    home = tigris_storage(
        bucket="home", prefix=None, region="iad", access_key_id="id", secret_access_key="hush"
    )
    for prefix in ("tigris://bucket/", "s3://bucket/"):
        place = _place(store, prefix, None, home)
        assert isinstance(place, S3Place)
        assert place.endpoint_url == "https://bucket.t3.storage.dev"
        assert place.credentials == STATIC
        foreign = _place(store, prefix, None, _s3_home())
        assert isinstance(foreign, S3Place)
        assert foreign.credentials == S3Credentials.FromEnv()


def test_credentials_of_gcs_and_azure() -> None:
    """The repository's in the same place, else none."""
    home: Storage = gcs_storage(bucket="home", prefix=None, bearer_token="hush")
    place = _place(gcs_store(), "gs://bucket/", None, home)
    assert isinstance(place, GcsPlace)
    assert isinstance(home, ObjectStorage)
    assert isinstance(home.place, GcsPlace)
    assert place.credentials == home.place.credentials
    assert place.bucket == "bucket"
    away = _place(gcs_store(), "gs://bucket/", None, ANYWHERE)
    assert isinstance(away, GcsPlace)
    assert away.credentials == GcsCredentials.Anonymous()

    key = AzureCredentials.Static(AzureStaticCredentials.AccessKey("aHVzaA=="))
    azure_home = azure_storage(account="a", container="home", prefix=None, access_key="aHVzaA==")
    for account, expected in (("a", key), ("b", AzureCredentials.Anonymous())):
        store = azure_store(account=account)
        found = _place(store, "az://blobs/", None, azure_home)
        assert isinstance(found, AzurePlace)
        assert (found.account, found.container) == (account, "blobs")
        assert found.credentials == expected
    by_host = _place(azure_store(account="a"), "abfs://blobs@a.dfs.core.windows.net/", None, home)
    assert isinstance(by_host, AzurePlace)
    assert by_host.container == "blobs"


def test_pickles_carry_secrets_and_reprs_do_not(tmp_path: Path) -> None:
    """A task on another machine can read what the user could."""
    containers = [VirtualChunkContainer("s3://bucket/", s3_store(**ENDPOINT))]
    home = local_filesystem_storage(tmp_path)
    chunks = VirtualChunks(containers, {"s3://bucket/": Credentials.S3(STATIC)}, home)
    ref = VirtualChunkRef("s3://bucket/a", 0, 1)
    for copy in (chunks, pickle.loads(pickle.dumps(chunks))):  # noqa: S301
        assert "hush" not in repr(copy)
        assert "hush" not in repr(copy.__dict__)
        assert "s3://bucket/" in repr(copy)
        _, fetcher = copy._open(ref, 0, 1)
        assert isinstance(fetcher, RemoteFiles)
        assert isinstance(fetcher.storage.place, S3Place)
        assert fetcher.storage.place.credentials == STATIC
        assert copy.authorized_prefixes == {"s3://bucket/"}
