"""The repository's own credentials serve its own platform, and go nowhere else unasked."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe.containers.remote_files import RemoteFiles
from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.chunk_payload import VirtualChunkRef
from icefloe.model.containers import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.storage import (
    AzurePlace,
    GcsPlace,
    LatencyStorage,
    S3Credentials,
    S3Place,
    azure_storage,
    azure_store,
    gcs_storage,
    gcs_store,
    http_storage,
    http_store,
    in_memory_storage,
    local_filesystem_store,
    r2_storage,
    s3_static_credentials,
    s3_storage,
    s3_store,
    tigris_storage,
)

if TYPE_CHECKING:
    from icefloe.model.containers import AnyObjectStoreConfig
    from icefloe.storage import Place, Storage

KEYS: dict[str, Any] = {"access_key_id": "id", "secret_access_key": "hush"}
STATIC = s3_static_credentials(**KEYS)
MINIO: dict[str, Any] = {"endpoint_url": "http://127.0.0.1:9000", "allow_http": True}
AWS = s3_storage(bucket="home", prefix="p", region="us-east-1", **KEYS)
ON_MINIO = s3_storage(bucket="home", prefix="p", region="us-east-1", **KEYS, **MINIO)
TIGRIS = tigris_storage(bucket="home", prefix="p", region="iad", **KEYS)
GCS = gcs_storage(bucket="home", prefix=None, bearer_token="hush")
AZURE = azure_storage(account="a", container="home", prefix=None, access_key="aHVzaA==")


@pytest.fixture(autouse=True)
def _no_endpoint_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def read_with(chunks: VirtualChunks, location: str) -> Place:
    """Tell where a chunk would be read from, and with what."""
    _, fetcher = chunks._open(VirtualChunkRef(location, 0, 1), 0, 1)
    assert isinstance(fetcher, RemoteFiles)
    return fetcher.storage.place


def get_error(chunks: VirtualChunks, location: str) -> str:
    with pytest.raises(InvalidInputError) as raised:
        chunks.fetch(VirtualChunkRef(location, 0, 1), 0, 1)
    assert raised.value.kind is ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
    return raised.value.message


@pytest.mark.parametrize(
    "store,home",
    [
        (s3_store(), AWS),
        (s3_store(), LatencyStorage(AWS, read_latency_ms=1)),
        (s3_store(region="sa-east-1"), AWS),
        (s3_store(force_path_style=True), AWS),
        (s3_store(s3_compatible=True, **MINIO), ON_MINIO),
        (s3_store(s3_compatible=True, endpoint_url="127.0.0.1:9000", allow_http=True), ON_MINIO),
        (s3_store(endpoint_url="http://127.0.0.1:9000/", allow_http=True), ON_MINIO),
        (ObjectStoreConfig.Tigris(S3Options(region="iad")), TIGRIS),
        (gcs_store(), GCS),
        (gcs_store({"region": "africa-south1"}), GCS),
        (azure_store(account="a"), AZURE),
        (ObjectStoreConfig.Azure(), AZURE),
    ],
)
def test_the_repositorys_own_platform_needs_no_word(
    store: AnyObjectStoreConfig, home: Storage
) -> None:
    """Whatever bucket it is, and in a copy in another process; an empty mapping forbids it."""
    container = VirtualChunkContainer("other", store)
    chunks = VirtualChunks([container], None, home)
    own = home.inner if isinstance(home, LatencyStorage) else home
    for copy in (chunks, pickle.loads(pickle.dumps(chunks))):  # noqa: S301
        place = read_with(copy, "other://bucket/a")
        assert place.credentials == own.place.credentials  # type: ignore[attr-defined,union-attr]
        assert copy.authorized_prefixes == {"other://"}
    assert "other://" in get_error(VirtualChunks([container], {}, home), "other://bucket/a")


@pytest.mark.parametrize(
    "store,home",
    [
        # another endpoint, and another spelling of one that only begins like it
        (s3_store(endpoint_url="https://evil.example"), AWS),
        (s3_store(endpoint_url="https://s3.amazonaws.com.evil.example"), AWS),
        (s3_store(), ON_MINIO),
        (s3_store(endpoint_url="http://127.0.0.1:90000", allow_http=True), ON_MINIO),
        (s3_store(endpoint_url="http://127.0.0.1:9000.evil.example", allow_http=True), ON_MINIO),
        (s3_store(endpoint_url="https://127.0.0.1:9000"), ON_MINIO),
        (ObjectStoreConfig.Tigris(S3Options(endpoint_url="https://evil.example")), TIGRIS),
        (ObjectStoreConfig.Tigris(S3Options()), AWS),
        (s3_store(), TIGRIS),
        # a region that would end the host name before the platform's part of it
        (s3_store(region="evil.example/"), AWS),
        (s3_store(region="evil.example#"), AWS),
        (s3_store(region="@evil.example"), AWS),
        # what costs money, or weakens the connection
        (s3_store(requester_pays=True), AWS),
        (s3_store(allow_http=True), AWS),
        # unknown options
        (gcs_store({"base_url": "https://evil.example"}), GCS),
        (gcs_store({"proxy_url": "http://evil.example"}), GCS),
        (azure_store(account="b"), AZURE),
        (azure_store(account="a", config={"endpoint": "https://evil.example"}), AZURE),
        (azure_store(account="a", config={"use_emulator": "true"}), AZURE),
        # another platform
        (gcs_store(), AWS),
        (s3_store(), GCS),
        (azure_store(account="a"), GCS),
        # no platform
        (s3_store(), in_memory_storage()),
        (s3_store(), http_storage("https://host/repository")),
    ],
)
def test_everything_else_needs_the_users_word(store: AnyObjectStoreConfig, home: Storage) -> None:
    """No configuration that a repository brings along can send its reader's credentials away."""
    container = VirtualChunkContainer("other", store, name="archive")
    chunks = VirtualChunks([container], None, home)
    message = get_error(chunks, "other://bucket/a")
    assert "other:// (archive)" in message
    assert "authorize_virtual_chunk_access={'other://': Credentials." in message
    assert chunks.authorized_prefixes == set()
    (listed,) = chunks.containers()
    assert not listed.is_authorized
    assert listed.authorization in message


def test_an_unauthorized_error_shows_the_target() -> None:
    """The error shows what the user would trust."""
    for store, prefix, target, told in (
        (s3_store(endpoint_url="https://evil.example"), "s3://b/", None, "https://evil.example"),
        (gcs_store(), "models", "gs://real/", "gs://real/ on Gcs"),
        (http_store(), "models", "https://host/x/", "https://host/x/"),
        (
            local_filesystem_store("/etc"),
            "models",
            "file:///etc/",
            "local files below file:///etc",
        ),
        (local_filesystem_store("/etc"), "file:///etc/", None, "local files"),
    ):
        container = VirtualChunkContainer(prefix, store, target_prefix=target)
        location = f"{container.url_prefix}passwd"
        if prefix == "models":
            location = "models://a/passwd"
        assert told in get_error(VirtualChunks([container], None, AWS), location)


@pytest.mark.parametrize("home", [AWS, in_memory_storage()], ids=["remote", "memory"])
def test_files_and_the_web_always_need_the_users_word(home: Storage, tmp_path: Path) -> None:
    """The repository's place says nothing about this machine's files, or about web servers."""
    file = VirtualChunkContainer(f"{tmp_path.as_uri()}/", local_filesystem_store(tmp_path))
    web = VirtualChunkContainer("https://host/", http_store())
    chunks = VirtualChunks([file, web], None, home)
    assert "LocalFileSystemAccess()" in get_error(chunks, f"{tmp_path.as_uri()}/a")
    assert "HttpAccess()" in get_error(chunks, "https://host/a")
    at_home = VirtualChunks([file], None, icefloe.local_filesystem_storage(tmp_path))
    assert "LocalFileSystemAccess()" in get_error(at_home, f"{tmp_path.as_uri()}/a")


def test_an_anonymous_repository_has_no_credentials_to_give() -> None:
    """Its containers are read anonymously, and not with what the environment happens to hold."""
    home = s3_storage(bucket="b", prefix=None, anonymous=True)
    place = read_with(VirtualChunks(None, None, home), "s3://bucket/a")
    assert isinstance(place, S3Place)
    assert place.credentials == S3Credentials.Anonymous()
    public = VirtualChunks([VirtualChunkContainer("s3", s3_store(anonymous=True))], None, AWS)
    place = read_with(public, "s3://bucket/a")
    assert isinstance(place, S3Place)
    assert place.credentials == S3Credentials.Anonymous()


def test_others_that_are_named_leave_the_default_as_it_is() -> None:
    """A credential applies to one container only."""
    own = s3_static_credentials(access_key_id="other", secret_access_key="hush too")
    chunks = VirtualChunks(
        [
            VirtualChunkContainer("s3", s3_store(), "s3"),
            VirtualChunkContainer("s3://special", s3_store(), "special"),
        ],
        {"special": icefloe.Credentials.S3(own)},
        AWS,
    )
    for location, expected in (("s3://bucket/a", STATIC), ("s3://special/a", own)):
        place = read_with(chunks, location)
        assert isinstance(place, S3Place)
        assert place.credentials == expected
    assert [
        (
            access.container.name,
            access.is_authorized,
            access.uses_repository_credentials,
            access.is_default,
        )
        for access in chunks.containers()
    ] == [("special", True, False, False), ("s3", True, True, False)]


@pytest.mark.parametrize(
    "home,location,expected",
    [
        (AWS, "s3://b/a", {"region": "us-east-1", "endpoint_url": None, "bucket": "b"}),
        (ON_MINIO, "s3://b/a", {"endpoint_url": "http://127.0.0.1:9000", "allow_http": True}),
        (TIGRIS, "tigris://b/a", {"region": "iad", "endpoint_url": "https://b.t3.storage.dev"}),
        (
            r2_storage(bucket="home", account_id="me", **KEYS),
            "r2://b/a",
            {"endpoint_url": "https://me.r2.cloudflarestorage.com", "virtual_hosted": False},
        ),
    ],
)
def test_default_containers_follow_the_repository(
    home: Storage, location: str, expected: dict[str, object]
) -> None:
    """Its endpoint, its region, its credentials."""
    chunks = VirtualChunks(None, None, home)
    place = read_with(chunks, location)
    assert isinstance(place, S3Place)
    assert {name: getattr(place, name) for name in expected} == expected
    assert place.credentials == STATIC
    assert all(access.is_default for access in chunks.containers())


def test_default_containers_of_gcs_and_azure() -> None:
    """By both names of each; the account is the repository's."""
    for scheme in ("gs", "gcs"):
        place = read_with(VirtualChunks(None, None, GCS), f"{scheme}://b/a")
        assert isinstance(place, GcsPlace)
        assert place.bucket == "b"
    for scheme in ("az", "azure"):
        blobs = read_with(VirtualChunks(None, None, AZURE), f"{scheme}://b/a")
        assert isinstance(blobs, AzurePlace)
        assert (blobs.account, blobs.container) == ("a", "b")


def test_clients_are_kept_but_not_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each bucket that locations name, until there are too many."""
    monkeypatch.setattr("icefloe.containers.virtual_chunks._MAX_CLIENTS", 3)
    chunks = VirtualChunks(None, None, AWS)
    seen = [chunks._open(VirtualChunkRef(f"s3://b{n}/a", 0, 1), 0, 1)[1] for n in (0, 0, 1, 2)]
    assert seen[0] is seen[1]
    assert seen[1] is not seen[2]
    for n in range(9):
        chunks._open(VirtualChunkRef(f"s3://b{n}/a", 0, 1), 0, 1)
    assert len(chunks._clients) == 3


def test_none_is_deprecated(tmp_path: Path) -> None:
    """As in Icechunk: the warning names the container, and stands at the caller's line."""
    config = icefloe.RepositoryConfig()
    prefix = f"{tmp_path.as_uri()}/"
    config.set_virtual_chunk_container(
        VirtualChunkContainer(prefix, local_filesystem_store(tmp_path))
    )
    storage = in_memory_storage()
    with pytest.warns(DeprecationWarning, match="LocalFileSystemAccess") as told:
        repository = icefloe.Repository.create(storage, config, {prefix: None})
    assert [Path(warning.filename) for warning in told] == [Path(__file__)]
    assert prefix in str(told[0].message)
    with pytest.warns(DeprecationWarning, match="deprecated") as told:
        again = repository.reopen(authorize_virtual_chunk_access={prefix: None})
    assert [Path(warning.filename) for warning in told] == [Path(__file__)]
    assert again.authorized_virtual_container_prefixes == {prefix}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        access = {prefix: icefloe.Credentials.LocalFileSystemAccess()}
        icefloe.Repository.open(storage, None, access)
