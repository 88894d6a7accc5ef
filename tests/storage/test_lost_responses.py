"""A real S3 server behind a proxy that loses, truncates and rejects requests."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import OutcomeUnknownError, PreconditionFailedError, StorageError
from icefloe.model.storage_settings import StorageRetriesSettings, StorageSettings
from icefloe.storage import Create, Fresh, ObjectStorage, S3Place, UpdateIfMatch
from icefloe.storage.conditional_put import WRITE_ID_ATTRIBUTE
from support.faulty_proxy import Fault, FaultyProxy, faulty_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.servers import S3Server

QUICK = StorageSettings(
    retries=StorageRetriesSettings(max_tries=4, initial_backoff_ms=5, max_backoff_ms=20)
)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3_server.endpoint_url) as running:
        yield running


@pytest.fixture
def behind_proxy(s3: ObjectStorage, proxy: FaultyProxy) -> ObjectStorage:
    """Open the place of ``s3`` through the proxy."""
    place = s3.place
    assert isinstance(place, S3Place)
    return ObjectStorage(
        S3Place(
            bucket=place.bucket,
            prefix=place.prefix,
            region=place.region,
            endpoint_url=proxy.url,
            allow_http=True,
            virtual_hosted=False,
            credentials=place.credentials,
        ),
        settings=QUICK,
    )


@pytest.mark.parametrize(
    "fault",
    [Fault.LOSE_RESPONSE, Fault.UNAVAILABLE_AFTER, Fault.LOSE_REQUEST, Fault.UNAVAILABLE],
)
def test_a_conditional_put_with_a_lost_response_succeeds(
    s3: ObjectStorage, behind_proxy: ObjectStorage, proxy: FaultyProxy, fault: Fault
) -> None:
    """Create and update succeed, and return the current version."""
    proxy.faults["PUT"] = [fault]
    version = behind_proxy.put("repo", b"1", Create())
    assert s3.head("repo").version == version
    proxy.faults["PUT"] = [fault, fault]
    version = behind_proxy.put("repo", b"2", UpdateIfMatch(version))
    fetched = s3.get("repo")
    assert bytes(fetched.data) == b"2"
    assert fetched.info.version == version
    # What was carried out needs no second put; what was not is sent until it is.
    landed_at_once = fault in {Fault.LOSE_RESPONSE, Fault.UNAVAILABLE_AFTER}
    assert proxy.faults["PUT"] == ([fault] if landed_at_once else [])


def test_a_put_that_succeeded_is_not_repeated(
    s3: ObjectStorage, behind_proxy: ObjectStorage, proxy: FaultyProxy
) -> None:
    """A lost response costs one read-back: two requests in total."""
    proxy.faults["PUT"] = [Fault.LOSE_RESPONSE]
    behind_proxy.put("repo", b"1", Create())
    assert proxy.seen == ["PUT", "HEAD"]


def test_requests_without_failures(behind_proxy: ObjectStorage, proxy: FaultyProxy) -> None:
    """Without failures, every operation sends the documented number of requests."""
    behind_proxy.put("repo", b"0123456789", Create())
    assert proxy.seen == ["PUT"]
    proxy.seen.clear()
    behind_proxy.get("repo")
    behind_proxy.head("repo")
    list(behind_proxy.list())
    assert proxy.seen == ["GET", "HEAD", "GET"]
    proxy.seen.clear()
    behind_proxy.put("chunks/A", b"0123456789", Fresh())
    asyncio.run(behind_proxy.put_async("chunks/B", b"0123456789"))
    behind_proxy.get_bytes("chunks/A", 2, 3)
    asyncio.run(behind_proxy.get_bytes_async("chunks/B", 2, 3))
    assert proxy.seen == ["PUT", "PUT", "GET", "GET"]
    proxy.seen.clear()
    behind_proxy.delete_many([f"chunks/{i}" for i in range(1500)])
    assert proxy.seen == ["POST", "POST"]


def test_conflicts_are_still_conflicts(
    s3: ObjectStorage, behind_proxy: ObjectStorage, proxy: FaultyProxy
) -> None:
    """A put after that of another writer is rejected, even if the first request was never sent."""
    version = s3.put("repo", b"1", Create())
    s3.put("repo", b"theirs", UpdateIfMatch(version))
    with pytest.raises(PreconditionFailedError):
        behind_proxy.put("repo", b"2", Create())
    with pytest.raises(PreconditionFailedError):
        behind_proxy.put("repo", b"2", UpdateIfMatch(version))
    assert bytes(s3.get("repo").data) == b"theirs"
    assert proxy.seen == ["PUT", "HEAD", "PUT", "HEAD"]


def test_a_conflict_with_a_lost_response_is_unknown(
    s3: ObjectStorage, behind_proxy: ObjectStorage, proxy: FaultyProxy
) -> None:
    """Another writer's object and a lost response mean neither success nor a conflict."""
    version = s3.put("repo", b"1", Create())
    s3.put("repo", b"theirs", UpdateIfMatch(version))
    proxy.faults["PUT"] = [Fault.LOSE_RESPONSE]
    with pytest.raises(OutcomeUnknownError):
        behind_proxy.put("repo", b"2", UpdateIfMatch(version))
    assert bytes(s3.get("repo").data) == b"theirs"


def test_a_replaced_put_is_not_reported_as_a_conflict(
    s3: ObjectStorage, behind_proxy: ObjectStorage, proxy: FaultyProxy
) -> None:
    """If another writer replaces our object before the retry, the outcome is unknown."""
    version = s3.put("repo", b"1", Create())
    proxy.faults["PUT"] = [Fault.LOSE_RESPONSE]
    proxy.before_answer = lambda: s3.put("repo", b"2+", UpdateIfMatch(s3.head("repo").version))
    with pytest.raises(OutcomeUnknownError):
        behind_proxy.put("repo", b"2", UpdateIfMatch(version))
    assert bytes(s3.get("repo").data) == b"2+"


def test_the_write_id_is_metadata_of_the_object(s3: ObjectStorage) -> None:
    """Every conditional put has a unique write id in the metadata, as in Icechunk."""
    ids = []
    for _ in range(2):
        s3.put("repo", b"1", Create())
        ids.append(s3._read_back("repo").write_id)
        s3.delete_many(["repo"])
    assert None not in ids
    assert len(set(ids)) == 2
    assert WRITE_ID_ATTRIBUTE == "icechunkwriteid"
    s3.put("chunks/A", b"1")
    assert s3._read_back("chunks/A").write_id is None


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOSE_REQUEST, Fault.LOSE_RESPONSE])
def test_other_requests_are_retried(
    behind_proxy: ObjectStorage, proxy: FaultyProxy, fault: Fault
) -> None:
    """Reads, overwrites, listings and deletions are retried after failures."""
    proxy.faults = {"PUT": [fault] * 2, "GET": [fault] * 2, "HEAD": [fault] * 2}
    behind_proxy.put("chunks/A", b"0123456789")
    assert bytes(behind_proxy.get("chunks/A").data) == b"0123456789"
    assert behind_proxy.head("chunks/A").size_bytes == 10
    proxy.faults = {"PUT": [fault] * 2, "GET": [fault] * 2}
    asyncio.run(behind_proxy.put_async("chunks/A", b"abcdefghij"))
    assert bytes(asyncio.run(behind_proxy.get_bytes_async("chunks/A", 2, 3))) == b"cde"
    proxy.faults = {"GET": [fault] * 2}
    assert bytes(behind_proxy.get_bytes("chunks/A", 2, 3)) == b"cde"
    proxy.faults = {"GET": [fault] * 2}
    assert [info.key for info in behind_proxy.list()] == ["chunks/A"]
    if fault is Fault.UNAVAILABLE:
        proxy.faults = {"POST": [fault] * 2}
    behind_proxy.delete_many(["chunks/A"])
    assert list(behind_proxy.list()) == []


def test_a_truncated_response_is_fetched_again(
    behind_proxy: ObjectStorage, proxy: FaultyProxy
) -> None:
    """A truncated body is never returned as the object."""
    data = bytes(range(256)) * 4000
    behind_proxy.put("chunks/A", data)
    proxy.faults["GET"] = [Fault.HALF_BODY]
    assert bytes(behind_proxy.get("chunks/A").data) == data
    proxy.faults["GET"] = [Fault.HALF_BODY]
    assert bytes(behind_proxy.get_bytes("chunks/A", 5, len(data) - 5)) == data[5:]
    proxy.faults["GET"] = [Fault.HALF_BODY]
    read = asyncio.run(behind_proxy.get_bytes_async("chunks/A", 5, len(data) - 5))
    assert bytes(read) == data[5:]


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOSE_REQUEST])
def test_permanent_failures_raise(
    behind_proxy: ObjectStorage, proxy: FaultyProxy, fault: Fault
) -> None:
    """Requests to a failing server end after the configured number of attempts."""
    proxy.always = dict.fromkeys(["PUT", "GET", "HEAD", "POST"], fault)
    started = time.monotonic()
    with pytest.raises(StorageError):
        behind_proxy.get("repo")
    with pytest.raises(StorageError):
        asyncio.run(behind_proxy.get_bytes_async("repo", 0, 1))
    with pytest.raises(StorageError):
        asyncio.run(behind_proxy.put_async("repo", b"1"))
    with pytest.raises(StorageError):
        behind_proxy.put("repo", b"1")
    with pytest.raises(OutcomeUnknownError):
        behind_proxy.put("repo", b"1", Create())
    with pytest.raises(StorageError):
        list(behind_proxy.list())
    with pytest.raises(StorageError):
        behind_proxy.delete_many(["repo"])
    assert time.monotonic() - started < 10


def test_an_unreachable_server(s3: ObjectStorage, proxy: FaultyProxy) -> None:
    """If no request was sent, a conditional put has failed for certain."""
    place = s3.place
    assert isinstance(place, S3Place)
    nowhere = ObjectStorage(
        S3Place(
            bucket=place.bucket,
            endpoint_url="http://127.0.0.1:1",
            allow_http=True,
            virtual_hosted=False,
            credentials=place.credentials,
        ),
        settings=QUICK,
    )
    with pytest.raises(StorageError) as raised:
        nowhere.put("repo", b"1", Create())
    assert not isinstance(raised.value, OutcomeUnknownError)
