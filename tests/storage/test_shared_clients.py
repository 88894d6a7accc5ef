"""Storages with equal options share a client; different credentials never do."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import icefloe
from icefloe.model.storage_settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
)
from icefloe.storage import (
    ChecksumAlgorithm,
    ObjectStorage,
    Storage,
    azure_storage,
    gcs_storage,
    http_storage,
    s3_storage,
)
from icefloe.storage.credentials import S3StaticCredentials
from icefloe.storage.object_store.reader import open_reader
from icefloe.storage.object_store.shared_values import Identity, SharedValues
from icefloe.storage.places import S3Place
from support.conditional_web_server import conditional_web_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.servers import S3Server

SUPPORT = Path(__file__).parent.parent / "support"

make_s3 = partial(
    s3_storage,
    bucket="b",
    prefix="p",
    endpoint_url="http://127.0.0.1:9",
    allow_http=True,
    region="us-east-1",
    access_key_id="key",
    secret_access_key="secret",
)
make_gcs = partial(gcs_storage, bucket="b", prefix="p", bearer_token="token")
make_azure = partial(azure_storage, account="a", container="c", prefix="p", sas_token="sig=token")


def issue_credentials() -> S3StaticCredentials:
    return S3StaticCredentials("key", "secret")


def shares(first: Storage, second: Storage) -> bool:
    return open_reader(first) is open_reader(second)


@pytest.mark.parametrize("make", [make_s3, make_gcs, make_azure])
def test_one_client_for_a_bucket(make: Callable[..., ObjectStorage]) -> None:
    """Prefixes, copies, pickles and settings that do not concern requests share a client."""
    storage = make()
    assert shares(storage, make())
    assert shares(storage, make(prefix="other"))
    assert shares(storage, pickle.loads(pickle.dumps(storage)))  # noqa: S301
    concurrency = StorageConcurrencySettings(max_concurrent_requests_for_object=3)
    settings = StorageSettings(concurrency=concurrency, storage_class="STANDARD")
    assert shares(storage, storage.with_settings(settings))
    assert shares(storage, storage.with_settings(storage.settings))


@pytest.mark.parametrize(
    "other",
    [
        make_s3(bucket="other"),
        make_s3(endpoint_url="http://127.0.0.1:10"),
        make_s3(region="eu-west-1"),
        make_s3(access_key_id="other"),
        make_s3(secret_access_key="other"),
        make_s3(session_token="token"),
        make_s3(access_key_id=None, secret_access_key=None, anonymous=True),
        make_s3(access_key_id=None, secret_access_key=None, from_env=True),
        make_s3(requester_pays=True),
        make_s3(checksum_algorithm=ChecksumAlgorithm.Sha256),
        make_s3().with_user_agent("other"),
        make_s3().with_settings(StorageSettings(retries=StorageRetriesSettings(max_tries=2))),
        make_gcs(),
    ],
    ids=str,
)
def test_other_options_have_another_client(other: ObjectStorage) -> None:
    """Each difference in the server, credentials or options makes another client."""
    assert not shares(make_s3(), other)


def test_other_credentials_have_another_client() -> None:
    """Tokens, keys and anonymous access differ on every platform."""
    assert not shares(make_gcs(), make_gcs(bearer_token="other"))
    assert not shares(make_gcs(), make_gcs(bearer_token=None, anonymous=True))
    assert not shares(make_azure(), make_azure(sas_token="sig=other"))
    assert not shares(make_azure(), make_azure(account="other"))
    assert not shares(make_azure(), make_azure(sas_token=None, bearer_token="token"))
    assert not shares(http_storage("http://a"), http_storage("http://a", headers={"X": "1"}))
    assert shares(http_storage("http://a"), http_storage("http://a"))


def test_the_environment_is_part_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that is opened after the environment changed does not have the old credentials."""
    make = partial(make_s3, access_key_id=None, secret_access_key=None, from_env=True)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "first")
    client = open_reader(make())
    assert open_reader(make()) is client
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")
    assert open_reader(make()) is not client
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("UNRELATED", "1")
    assert open_reader(make()) is client


def test_functions_share_a_client_as_objects() -> None:
    """A function may be redefined under its name, so only the same credentials object is equal."""
    make = partial(
        make_s3, access_key_id=None, secret_access_key=None, get_credentials=issue_credentials
    )
    storage = make()
    assert shares(storage, storage.with_settings(StorageSettings()))
    place = storage.place
    assert isinstance(place, S3Place)
    assert shares(storage, ObjectStorage(replace(place, prefix="other")))
    assert not shares(storage, make())


def test_credentials_from_files_share_a_client_as_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with credentials may be replaced, so only the same credentials object is equal."""
    monkeypatch.setenv("HOME", str(tmp_path))
    storage = gcs_storage(bucket="b", prefix="p", from_env=True)
    assert shares(storage, storage.with_settings(StorageSettings()))
    assert not shares(storage, gcs_storage(bucket="b", prefix="p", from_env=True))


def test_an_open_repository_has_one_client(s3: ObjectStorage) -> None:
    """Opening merges settings, which does not change the client."""
    icefloe.Repository.create(s3)
    opened = icefloe.Repository.open(pickle.loads(pickle.dumps(s3)))  # noqa: S301
    assert shares(s3, opened.storage)


def test_connections_are_kept() -> None:
    """Requests of several storages share connections: the next may start before one is free."""
    with conditional_web_server({"/b/p/repo": b"1", "/b/q/repo": b"2"}) as server:
        storages = [make_s3(prefix=prefix, endpoint_url=server.url) for prefix in "pqpqpqpqpq"]
        assert [bytes(storage.get("repo").data) for storage in storages] == [b"1", b"2"] * 5
        assert server.num_connections <= 3


def test_a_fork_before_the_first_request(s3: ObjectStorage, s3_server: S3Server) -> None:
    """A process that was forked before the parent made a client makes its own."""
    s3.put("repo", b"x")
    result = subprocess.run(
        [sys.executable, str(SUPPORT / "forked_before_use.py")],
        input=pickle.dumps(s3),
        capture_output=True,
        check=True,
        timeout=30,
    )
    assert result.stdout.decode().splitlines() == ["child: b'x'", "parent: b'x'"]


def test_values_are_made_once_and_bounded() -> None:
    """Threads share a value; the least recently used value is dropped."""
    made: list[str] = []
    values = SharedValues[str](max_values=2)

    def get(key: str) -> str:
        def make() -> str:
            made.append(key)
            return key

        return values.get(key, make)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(get, ["a"] * 50)) == {"a"}
    get("b")
    get("a")
    get("c")  # drops b
    get("a")
    get("b")
    assert made == ["a", "b", "c", "b"]
    with pytest.raises(ZeroDivisionError):
        values.get("d", lambda: str(1 / 0))
    assert values.get("d", lambda: "d") == "d"


def test_identity() -> None:
    """Equal objects have different identities."""
    first, second = [1], [1]
    assert Identity(first) == Identity(first)
    assert hash(Identity(first)) == hash(Identity(first))
    assert Identity(first) != Identity(second)
    assert Identity(first) != first
