"""Constructors of storages. No request is sent to GCS, which has no emulator."""

from __future__ import annotations

import pickle
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError
from icefloe.model.storage_settings import StorageRetriesSettings, StorageSettings
from icefloe.storage import (
    AzurePlace,
    ChecksumAlgorithm,
    GcsCredentials,
    GcsPlace,
    HttpStorage,
    LocalStorage,
    MemoryStorage,
    ObjectStorage,
    S3Credentials,
    S3Place,
    Storage,
    azure_storage,
    gcs_storage,
    http_storage,
    in_memory_storage,
    local_filesystem_storage,
    r2_storage,
    s3_storage,
    storage_from_url,
    tigris_storage,
)
from icefloe.storage.credentials import AzureCredentials
from icefloe.storage.object_store.reader import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECRET = "hush-hush"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)


def s3_place(storage: Storage) -> S3Place:
    assert isinstance(storage, ObjectStorage)
    assert isinstance(storage.place, S3Place)
    return storage.place


EVERY_REMOTE: list[Callable[[], ObjectStorage]] = [
    lambda: s3_storage(
        bucket="b",
        prefix="/p/q/",
        region="eu-west-1",
        access_key_id=SECRET,
        secret_access_key=SECRET,
        session_token=SECRET,
        headers={"Authorization": SECRET},
    ),
    lambda: tigris_storage(
        bucket="b", prefix="p/q", region="fra", access_key_id=SECRET, secret_access_key=SECRET
    ),
    lambda: r2_storage(
        prefix="b/p/q", account_id="acc", access_key_id=SECRET, secret_access_key=SECRET
    ),
    lambda: gcs_storage(bucket="b", prefix="p/q", bearer_token=SECRET),
    lambda: gcs_storage(bucket="b", prefix="p/q", config={"service_account_key": SECRET}),
    lambda: azure_storage(account="a", container="b", prefix="p/q", access_key=SECRET),
    lambda: azure_storage(account="a", container="b", prefix="p/q", sas_token=f"sig={SECRET}"),
    lambda: http_storage("https://example.org/p/q", headers={"Authorization": SECRET}),
]


@pytest.mark.parametrize("make", EVERY_REMOTE)
def test_repr_has_the_url_and_no_secret(make: Callable[[], ObjectStorage]) -> None:
    """The repr of a storage has its URL and no secret; its pickle includes secrets."""
    storage = make()
    assert storage.url.endswith("/p/q")
    again = pickle.loads(pickle.dumps(storage))  # noqa: S301
    assert again.place == storage.place
    assert again.settings == storage.settings
    for shown in (repr(storage), str(storage), repr(storage.place), repr(storage.__dict__)):
        assert SECRET not in shown


def test_gcs_clients() -> None:
    """Clients can be made with every kind of GCS credentials that needs no file."""
    key = '{"private_key": "x", "client_email": "y", "private_key_id": "z"}'
    for storage in (
        gcs_storage(bucket="b", prefix="p", anonymous=True),
        gcs_storage(bucket="b", prefix="p", bearer_token=SECRET),
        gcs_storage(bucket="b", prefix="p", anonymous=True, config={"allow_http": "true"}),
    ):
        open_reader(storage)
    bad = gcs_storage(bucket="b", prefix="p", service_account_key=key)
    with pytest.raises(InvalidInputError) as raised:
        open_reader(bad)
    assert raised.value.kind is ErrorKind.STORAGE_CONFIG


def test_s3_addresses() -> None:
    """AWS and Tigris have the bucket in the host name, other servers in the path."""
    aws = s3_place(s3_storage(bucket="b", prefix=None))
    assert aws.virtual_hosted
    assert aws.lists_in_key_order
    assert aws.credentials == S3Credentials.FromEnv()
    assert not s3_place(s3_storage(bucket="b", prefix=None, force_path_style=True)).virtual_hosted
    other = s3_place(s3_storage(bucket="b", prefix="", endpoint_url="https://s3.example.org/"))
    assert other.endpoint_url == "https://s3.example.org"
    assert not other.virtual_hosted
    assert not other.lists_in_key_order
    r2 = s3_place(r2_storage(bucket="b", account_id="acc"))
    assert r2.endpoint_url == "https://acc.r2.cloudflarestorage.com"
    assert r2.region == "auto"
    tigris = s3_place(tigris_storage(bucket="b", prefix="p", region="fra"))
    assert tigris.endpoint_url == "https://b.t3.storage.dev"
    assert tigris.headers.reading["X-Tigris-Consistent"] == "true"


def test_headers_of_reads_and_writes() -> None:
    """Headers for reading and for writing override those for both."""
    place = s3_place(
        s3_storage(
            bucket="b",
            prefix="p",
            headers={"a": "1", "b": "1"},
            read_headers={"a": "2"},
            write_headers={"b": "3"},
        )
    )
    assert place.headers.reading == {"a": "2", "b": "1"}
    assert place.headers.writing == {"a": "1", "b": "3"}


@pytest.mark.parametrize(
    "make, advice",
    [
        (lambda: s3_storage(bucket="", prefix="p"), "bucket or container name"),
        (lambda: s3_storage(bucket="s3://b", prefix="p"), "bucket or container name"),
        (lambda: s3_storage(bucket="b", prefix="a//b"), "empty segment"),
        (lambda: s3_storage(bucket="b", prefix="../b"), "segment"),
        (lambda: s3_storage(bucket="b", prefix="p", endpoint_url="h:9000"), "https://"),
        (lambda: s3_storage(bucket="b", prefix="p", endpoint_url="http://h"), "allow_http=True"),
        (lambda: s3_storage(bucket="b", prefix="p", legacy_rooted_keys=True), "copy the objects"),
        (lambda: s3_storage(bucket="b", prefix="p", access_key_id="a"), "secret_access_key"),
        (
            lambda: s3_storage(bucket="b", prefix="p", anonymous=True, from_env=True),
            "pass only one kind",
        ),
        (lambda: tigris_storage(bucket="b", prefix="p"), "use_weak_consistency=True"),
        (lambda: r2_storage(bucket="b"), "account_id"),
        (lambda: r2_storage(account_id="a"), "first segment"),
        (lambda: gcs_storage(bucket="gs://b", prefix="p"), "bucket or container name"),
        (
            lambda: gcs_storage(bucket="b", prefix="p", bearer_token="t", anonymous=True),
            "pass only one kind",
        ),
        (
            lambda: azure_storage(
                account="a", container="c", prefix="p", access_key="k", sas_token="t"
            ),
            "pass only one kind",
        ),
        (lambda: http_storage("ftp://example.org"), "https://"),
        (lambda: http_storage("https://example.org/x?sig=1"), "headers"),
        (lambda: http_storage("https://me:pass@example.org/x"), "Authorization header"),
        (lambda: local_filesystem_storage("s3://b/p"), "storage_from_url"),
        (lambda: local_filesystem_storage(""), "'.'"),
        (lambda: storage_from_url("ftp://example.org/x"), "expected a path or one of"),
        (lambda: storage_from_url("s3://b/p?x=1"), "query"),
        (lambda: storage_from_url("s3://b/p?durable=false"), "query"),
        (lambda: storage_from_url("file:///data/repo?durable=no"), "query"),
        (lambda: storage_from_url("file:///data/repo?durable=false#x"), "query"),
        (lambda: storage_from_url("file://data/repo"), "three slashes"),
        (lambda: storage_from_url(""), "s3://bucket/prefix"),
        (lambda: storage_from_url("file://"), "'.'"),
        (lambda: storage_from_url("http://[bad"), "not a valid URL"),
        (lambda: storage_from_url("://x"), "expected a path or one of"),
        (lambda: storage_from_url("az://container@account/a"), "would appear in messages"),
        (
            lambda: s3_storage(bucket="b", prefix="p", endpoint_url="https://[bad"),
            "not a valid URL",
        ),
    ],
)
def test_invalid_arguments(make: Callable[[], Storage], advice: str) -> None:
    """Invalid arguments raise immediately, with advice."""
    with pytest.raises(InvalidInputError, match=advice):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: storage_from_url(f"s3://KEY:{SECRET}@bucket/p"),
        lambda: storage_from_url(f"s3://KEY:12/{SECRET}@bucket/p"),
        lambda: storage_from_url(f"s3://KEY:{SECRET}/34@bucket/p"),
        lambda: storage_from_url(f"s3://KEY:a?{SECRET}@bucket/p"),
        lambda: storage_from_url(f"gs://{SECRET}@bucket/p"),
        lambda: storage_from_url(f"az://{SECRET}@container/p"),
        lambda: storage_from_url(f"abfss://me:{SECRET}@account/p"),
        lambda: storage_from_url(f"abfss://me@{SECRET}@account/p"),
        lambda: storage_from_url(f"abfss://container@account/p?sig={SECRET}"),
        lambda: storage_from_url(f"memory://{SECRET}@x"),
        lambda: storage_from_url(f"file://{SECRET}@host/data"),
        lambda: storage_from_url(f"ftp://me:{SECRET}@host/data?sig={SECRET}"),
        lambda: storage_from_url(f"https://me:{SECRET}@host/x"),
        lambda: storage_from_url(f"https://host/x?sig={SECRET}"),
        lambda: storage_from_url(f"https://[{SECRET}/x"),
        lambda: storage_from_url(f"https://\u2100{SECRET}@host/x"),
        lambda: http_storage(f"ftp://me:{SECRET}@host/x?sig={SECRET}"),
        lambda: http_storage(f"https://host/x#{SECRET}"),
        lambda: local_filesystem_storage(f"s3://KEY:{SECRET}@bucket/p"),
        lambda: s3_storage(bucket=f"s3://KEY:{SECRET}@bucket", prefix="p"),
        lambda: s3_storage(bucket=f"KEY:{SECRET}", prefix="p"),
        lambda: s3_storage(bucket="b", prefix="p", endpoint_url=f"https://me:{SECRET}@h"),
        lambda: s3_storage(bucket="b", prefix="p", endpoint_url=f"https://h?sig={SECRET}"),
        lambda: s3_storage(bucket="b", prefix="p", endpoint_url=f"http://me:{SECRET}@h"),
        lambda: s3_storage(bucket="b", prefix="p", endpoint_url=f"me:{SECRET}@h"),
        lambda: r2_storage(bucket="b", endpoint_url=f"https://me:{SECRET}@h"),
        lambda: tigris_storage(
            bucket="b", prefix="p", region="fra", endpoint_url=f"https://me:{SECRET}@h"
        ),
    ],
)
def test_secrets_in_urls_raise(make: Callable[[], Storage]) -> None:
    """URLs with secrets raise, and the error does not contain the secret."""
    with pytest.raises(InvalidInputError) as raised:
        make()
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_secrets_in_the_endpoint_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint URL in the environment must not contain a password."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://me:{SECRET}@h")
    with pytest.raises(InvalidInputError) as raised:
        s3_storage(bucket="b", prefix="p")
    assert SECRET not in str(raised.value)


def test_unsupported_checksums_raise() -> None:
    """Only the algorithms that the client library has are accepted."""
    for algorithm in ChecksumAlgorithm:
        storage = s3_storage(bucket="b", prefix="p", checksum_algorithm=algorithm, anonymous=True)
        if algorithm in {ChecksumAlgorithm.Sha256, ChecksumAlgorithm.Crc64Nvme}:
            open_reader(storage)
        else:
            with pytest.raises(InvalidInputError, match="use Sha256 or Crc64Nvme"):
                open_reader(storage)


def test_weakly_consistent_tigris_is_read_only() -> None:
    """Without consistency commits are not safe, so writes raise before any request."""
    storage = tigris_storage(bucket="b", prefix="p", use_weak_consistency=True, anonymous=True)
    assert storage.read_only
    for write in (
        lambda: storage.put("repo", b"x"),
        lambda: storage.delete_many(["repo"]),
        lambda: storage.copy("repo", "repo2"),
    ):
        with pytest.raises(ReadOnlyError):
            write()


def test_settings_override_the_defaults() -> None:
    """Settings override the defaults, unset ones keep them, and the place stays the same."""
    storage = s3_storage(bucket="b", prefix="p", anonymous=True)
    quick = StorageSettings(retries=StorageRetriesSettings(max_tries=2))
    other = storage.with_settings(quick)
    assert other.place == storage.place
    assert other.settings.effective_retries.effective_max_tries == 2
    assert other.settings.effective_retries.effective_initial_backoff_ms == 100
    assert storage.settings.effective_retries.effective_max_tries == 10
    local = local_filesystem_storage("x")
    assert local.default_settings().effective_unsafe_use_conditional_update
    assert local.with_settings(quick) is local


def test_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL or a path opens the right kind of storage at the right place."""
    local = storage_from_url(str(tmp_path))
    assert isinstance(local, LocalStorage)
    spaced = storage_from_url("file:///data/my%20repo")
    assert isinstance(spaced, LocalStorage)
    assert spaced.url == "file:///data/my%20repo"
    assert isinstance(storage_from_url("memory://"), MemoryStorage)
    assert isinstance(in_memory_storage(), MemoryStorage)
    s3 = s3_place(storage_from_url("s3://bucket/a/b/"))
    assert (s3.bucket, s3.prefix) == ("bucket", "a/b")
    gcs = storage_from_url("gs://bucket/a")
    assert isinstance(gcs, ObjectStorage)
    assert gcs.place == GcsPlace("bucket", "a", credentials=GcsCredentials.FromEnv())
    azure = storage_from_url("az://container/a")
    assert isinstance(azure, ObjectStorage)
    assert azure.place == AzurePlace(None, "container", "a", credentials=AzureCredentials.FromEnv())
    named = storage_from_url("abfss://container@account.dfs.core.windows.net/a")
    assert isinstance(named, ObjectStorage)
    assert named.place == AzurePlace("account", "container", "a")
    assert isinstance(storage_from_url("https://example.org/x"), HttpStorage)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert s3_place(storage_from_url("s3://bucket/a")).endpoint_url == "http://127.0.0.1:9000"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://s3.example.org")
    with pytest.raises(InvalidInputError, match="not encrypted"):
        storage_from_url("s3://bucket/a")


def test_expired_static_keys_are_accepted() -> None:
    """A key pair that has expired is accepted; the server rejects it."""
    s3_storage(
        bucket="b",
        prefix="p",
        access_key_id="a",
        secret_access_key="b",
        expires_after=datetime(2030, 1, 1, tzinfo=UTC),
    )


@pytest.mark.parametrize("text", ["a\nb", "a b", "a<b", "é"])
def test_what_cannot_be_in_a_url_is_rejected(text: str) -> None:
    """The client library panics on such requests."""
    makes: list[Callable[[], Storage]] = [
        lambda: s3_storage(bucket=text, prefix=None),
        lambda: s3_storage(bucket="b", prefix=None, region=text),
        lambda: s3_storage(bucket="b", prefix=None, endpoint_url=f"https://{text}"),
        lambda: r2_storage(bucket="b", prefix=None, account_id=text),
        lambda: gcs_storage(bucket=text, prefix=None),
        lambda: azure_storage(account=text, container="c", prefix=""),
        lambda: azure_storage(account="a", container=text, prefix=""),
    ]
    for make in makes:
        with pytest.raises(InvalidInputError, match="not valid in a URL"):
            make()
