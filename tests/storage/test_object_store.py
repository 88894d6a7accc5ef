"""Object stores: credentials, permissions, forks, settings."""

from __future__ import annotations

import asyncio
import pickle
import socket
import subprocess
import sys
import time
import traceback
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from obstore.exceptions import BaseError

from icefloe.errors import ObjectNotFoundError, PreconditionFailedError, StorageError
from icefloe.format.generation import GENERATIONS
from icefloe.model.byte_range import Bounded
from icefloe.model.storage_settings import (
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.storage import (
    Create,
    ObjectStorage,
    S3Credentials,
    S3Place,
    S3StaticCredentials,
    UpdateIfMatch,
    Version,
    azure_storage,
    s3_storage,
    storage_from_url,
)
from icefloe.storage.object_store.errors import redact_error, translate_error
from support import SUPPORT
from support.faulty_proxy import faulty_proxy

if TYPE_CHECKING:
    from support.servers import AzureServer, S3Server


class KeyIssuer:
    """Returns the keys of the test server, with an expiration time."""

    def __init__(self, server: S3Server, lifetime: timedelta) -> None:
        self.server = server
        self.lifetime = lifetime

    def __call__(self) -> S3StaticCredentials:
        return S3StaticCredentials(
            self.server.access_key_id,
            self.server.secret_access_key,
            None,
            datetime.now(UTC) + self.lifetime,
        )


def test_refreshable_credentials_sign_requests(s3_server: S3Server) -> None:
    """A storage calls its function for keys, also after it was pickled."""
    storage = s3_storage(
        bucket=s3_server.bucket,
        prefix=str(uuid.uuid4()),
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        get_credentials=KeyIssuer(s3_server, timedelta(seconds=1)),
    )
    storage.put("repo", b"x", Create())
    again = pickle.loads(pickle.dumps(storage))  # noqa: S301
    assert bytes(again.get("repo").data) == b"x"
    assert bytes(asyncio.run(again.get_bytes_async("repo", 0, 1))) == b"x"


def test_passed_keys_are_not_mixed_with_the_environment(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that are passed are not combined with a session token in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "stale")
    storage = s3_storage(
        bucket=s3_server.bucket,
        prefix=str(uuid.uuid4()),
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        access_key_id=s3_server.access_key_id,
        secret_access_key=s3_server.secret_access_key,
    )
    storage.put("repo", b"x")
    assert bytes(storage.get("repo").data) == b"x"


def test_a_url_and_the_environment_are_enough(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`storage_from_url` opens s3:// with credentials and endpoint from the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_access_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    storage = storage_from_url(f"s3://{s3_server.bucket}/{uuid.uuid4()}")
    storage.put("repo", b"x", Create())
    assert [info.key for info in storage.list()] == ["repo"]


def test_credentials_without_write_permission_cannot_write(
    s3: ObjectStorage, s3_server: S3Server
) -> None:
    """A put without permission raises immediately, and changes nothing."""
    s3.put("repo", b"x")
    reader = s3_storage(
        bucket=s3_server.bucket,
        prefix=s3.url.split("/", 3)[3],
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        access_key_id=s3_server.reader_access_key_id,
        secret_access_key=s3_server.reader_secret_access_key,
    )
    assert bytes(reader.get("repo").data) == b"x"
    for mode in (None, Create(), UpdateIfMatch(Version("1"))):
        with pytest.raises(StorageError, match="check the credentials") as raised:
            reader.put("repo", b"y") if mode is None else reader.put("repo", b"y", mode)
        assert not isinstance(raised.value, PreconditionFailedError)
    assert bytes(s3.get("repo").data) == b"x"


def test_a_missing_bucket_is_not_a_missing_object(s3_server: S3Server) -> None:
    """A mistyped bucket raises, instead of looking like an empty repository."""
    storage = s3_storage(
        bucket="no-such-bucket",
        prefix="p",
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        access_key_id=s3_server.access_key_id,
        secret_access_key=s3_server.secret_access_key,
    )
    with pytest.raises(StorageError, match="no such bucket") as raised:
        storage.get("repo")
    assert not isinstance(raised.value, ObjectNotFoundError)


def fail_with_a_secret() -> S3StaticCredentials:
    raise RuntimeError("hush-hush")


def collect_shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_errors_show_no_secret(s3_server: S3Server, azure_server: AzureServer) -> None:
    """No wrong key, token or signed URL is in an error, its causes or its traceback."""
    secret = "hush-hush"
    quick = StorageSettings(retries=StorageRetriesSettings(max_tries=1))
    storages = [
        s3_storage(
            bucket=s3_server.bucket,
            prefix="p",
            endpoint_url=s3_server.endpoint_url,
            allow_http=True,
            access_key_id=s3_server.access_key_id,
            secret_access_key=secret,
        ),
        azure_storage(
            account=azure_server.account,
            container=azure_server.container,
            prefix="p",
            sas_token=f"sv=2021-08-06&sig={secret}",
            config={"endpoint": azure_server.endpoint_url, "allow_http": "true"},
        ),
        azure_storage(
            account=azure_server.account,
            container=azure_server.container,
            prefix="p",
            sas_token=f"sv=2021-08-06&sig={secret}",
            config={"endpoint": "http://127.0.0.1:1/a", "allow_http": "true"},
        ),
        s3_storage(
            bucket=s3_server.bucket,
            prefix="p",
            endpoint_url=s3_server.endpoint_url,
            allow_http=True,
            get_credentials=fail_with_a_secret,
        ),
    ]
    for storage in storages:
        quick_storage = storage.with_settings(quick)
        for request in (
            lambda quick_storage=quick_storage: quick_storage.get("repo"),
            lambda quick_storage=quick_storage: asyncio.run(
                quick_storage.get_bytes_async("repo", 0, 1)
            ),
            lambda quick_storage=quick_storage: asyncio.run(quick_storage.put_async("repo", b"x")),
            lambda quick_storage=quick_storage: quick_storage.put("repo", b"x"),
            lambda quick_storage=quick_storage: quick_storage.put("repo", b"x", Create()),
            lambda quick_storage=quick_storage: list(quick_storage.list()),
            lambda quick_storage=quick_storage: quick_storage.delete_many(["repo"]),
        ):
            with pytest.raises(StorageError) as raised:
                request()
            error: BaseException | None = raised.value
            while error is not None:
                assert secret not in str(error) + repr(error)
                error = error.__cause__ or error.__context__
            assert secret not in collect_shown(raised.value)
            assert secret not in repr(pickle.loads(pickle.dumps(raised.value)))  # noqa: S301


def test_signed_urls_are_removed_from_errors() -> None:
    """Translated errors contain neither queries of URLs nor debug output of obstore."""
    original = BaseError(
        "GET https://a.org/b?sv=1&sig=hush-hush in 1ms - 403\n\nDebug source:\nhush-hush"
    )
    for error in (redact_error(original), translate_error(original, "read", "az://b")):
        assert "hush-hush" not in str(error) + repr(error)
        assert "https://a.org/b?... in 1ms - 403" in str(error)
    for quoted in (
        "GET https://a.org/b%3Fsv=1&sig=hush-hush in 1ms",
        "GET https://a.org/b%3fsv%3D1%26sig%3Dhush-hush in 1ms",
        "GET https://me:hush-hush@a.org/b in 1ms",
    ):
        shown = str(translate_error(BaseError(quoted), "read", "az://b"))
        assert "hush-hush" not in shown
        assert "a.org/b" in shown
        assert "in 1ms" in shown


def test_requests_in_a_forked_child_raise(s3: ObjectStorage) -> None:
    """Threads of obstore do not survive a fork; requests of the child raise instead of hanging."""
    s3.put("repo", b"x")
    result = subprocess.run(
        [sys.executable, str(SUPPORT / "forked_reader.py")],
        input=pickle.dumps(s3),
        capture_output=True,
        check=True,
        timeout=30,
    )
    lines = result.stdout.decode().splitlines()
    assert ["'spawn'" in line for line in lines if line.startswith("child")] == [True] * 4
    assert [line for line in lines if line.startswith("parent")] == ["parent: succeeded"] * 4


def test_timeouts_bound_a_silent_server() -> None:
    """Settings of timeouts and retries apply to requests to a server that never responds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        storage = s3_storage(
            bucket="b",
            prefix="p",
            endpoint_url=f"http://127.0.0.1:{silent.getsockname()[1]}",
            allow_http=True,
            anonymous=True,
        ).with_settings(
            StorageSettings(
                retries=StorageRetriesSettings(max_tries=2, initial_backoff_ms=1, max_backoff_ms=1),
                timeouts=StorageTimeoutSettings(operation_attempt_timeout_ms=200),
            )
        )
        started = time.monotonic()
        with pytest.raises(StorageError):
            storage.get("repo")
        assert time.monotonic() - started < 5


def test_large_puts_go_in_parts(s3: ObjectStorage) -> None:
    """An object of at least the configured size is uploaded in parts, with the same content."""
    in_parts = s3.with_settings(StorageSettings(minimum_size_for_multipart_upload=1))
    data = bytes(range(256)) * (17 * 4096)
    in_parts.put("chunks/L", data)
    fetched = s3.get("chunks/L")
    assert bytes(fetched.data) == data
    # The ETag of a multipart upload ends in the number of its parts.
    assert (fetched.info.version.etag or "").endswith('-3"')
    version = asyncio.run(in_parts.put_async("chunks/M", data))
    assert version == s3.head("chunks/M").version
    assert (version.etag or "").endswith('-3"')
    assert bytes(s3.get("chunks/M").data) == data


def test_conditions_can_be_disabled(s3: ObjectStorage) -> None:
    """For servers without conditional puts, ``unsafe_`` settings make them unconditional."""
    unsafe = s3.with_settings(
        StorageSettings(unsafe_use_conditional_create=False, unsafe_use_conditional_update=False)
    )
    s3.put("repo", b"1")
    unsafe.put("repo", b"2", Create())
    unsafe.put("repo", b"3", UpdateIfMatch(Version("nonsense")))
    assert bytes(s3.get("repo").data) == b"3"


def test_without_metadata_conditions_still_hold(s3: ObjectStorage) -> None:
    """Without metadata, a conditional put has no write id but still its condition."""
    plain = s3.with_settings(StorageSettings(unsafe_use_metadata=False))
    version = plain.put("repo", b"1", Create())
    assert s3._read_back("repo").write_id is None
    with pytest.raises(PreconditionFailedError):
        plain.put("repo", b"2", Create())
    plain.put("repo", b"2", UpdateIfMatch(version))


def test_a_missing_object_does_not_prevent_the_deletion_of_others(
    azure_server: AzureServer,
) -> None:
    """Azure returns errors for missing keys; all existing objects are deleted nevertheless."""
    storage = azure_storage(
        account=azure_server.account,
        container=azure_server.container,
        prefix=str(uuid.uuid4()),
        access_key=azure_server.access_key,
        config={"endpoint": azure_server.endpoint_url, "allow_http": "true"},
    )
    present = [f"chunks/{i:03}" for i in range(0, 300, 30)]
    for key in present:
        storage.put(key, b"x")
    storage.delete_many(f"chunks/{i:03}" for i in range(300))
    assert list(storage.list()) == []


def test_list_first_requests_one_page(s3: ObjectStorage, s3_server: S3Server) -> None:
    """The first objects of many take one request, where a complete listing takes several."""

    async def put_all() -> None:
        keys = (f"r/main/{number:04}.json" for number in range(1100))
        await asyncio.gather(*(s3.put_async(key, b"x") for key in keys))

    asyncio.run(put_all())
    place = s3.place
    assert isinstance(place, S3Place)
    with faulty_proxy(s3_server.endpoint_url) as proxy:
        storage = ObjectStorage(replace(place, endpoint_url=proxy.url))
        listed = storage.list_first("r/main/", 2)
        assert [info.key for info in listed] == ["r/main/0000.json", "r/main/0001.json"]
        assert proxy.seen == ["GET"]
        assert len(list(storage.list("r/main/"))) == 1100
        assert len(proxy.seen) > 2


def test_chunks_of_every_generation_have_the_storage_class_of_chunks(s3: ObjectStorage) -> None:
    """Keys of chunks get the class of chunks, and other keys that of metadata."""
    settings = StorageSettings(chunks_storage_class="CHUNKS", metadata_storage_class="METADATA")
    storage = s3.with_settings(settings)
    for generation in GENERATIONS.values():
        layout = generation.layout
        for files, expected in ((layout.chunks, "CHUNKS"), (layout.snapshots, "METADATA")):
            attributes = storage._make_attributes(f"{files.prefix}name")
            assert attributes == {"Storage-Class": expected}


@pytest.mark.parametrize("cause", ["credentials", "host"])
def test_panics_of_the_client_are_errors(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where obstore panics, in any operation, a `StorageError` is raised."""
    url = "http://127.0.0.1:1"
    storage = s3_storage(bucket="b", prefix="", endpoint_url=url, allow_http=True)
    if cause == "credentials":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id\n")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    else:
        assert isinstance(storage.place, S3Place)
        endpoint = "http://b.127.0.0.1:1"
        storage = ObjectStorage(
            replace(
                storage.place,
                endpoint_url=endpoint,
                virtual_hosted=True,
                credentials=S3Credentials.Anonymous(),
            )
        )
    for request in (
        lambda: storage.get("repo"),
        lambda: storage.get_bytes("repo", 0, 1),
        lambda: asyncio.run(storage.get_bytes_async("repo", 0, 1)),
        lambda: storage.get_ranges("repo", [Bounded(0, 1)]),
        lambda: storage.head("repo"),
        lambda: list(storage.list()),
        lambda: storage.put("repo", b"x"),
        lambda: asyncio.run(storage.put_async("repo", b"x")),
        lambda: storage.put("repo", b"x", Create()),
        lambda: storage.delete_many(["repo"]),
        lambda: storage.copy("repo", "other"),
    ):
        with pytest.raises(StorageError, match="client library"):
            request()
