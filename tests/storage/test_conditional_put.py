"""The outcome of conditional puts, against a small simulated server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import OutcomeUnknownError, PreconditionFailedError, StorageError
from icefloe.storage import Create, UpdateIfMatch, Version
from icefloe.storage.backoff import compute_backoff_s
from icefloe.storage.conditional_put import (
    ConditionRejectedError,
    CurrentObject,
    RequestNotProcessedError,
    ResponseLostError,
    RetryPolicy,
    put_conditionally,
)
from icefloe.storage.interface import is_same_version

if TYPE_CHECKING:
    from collections.abc import Callable

POLICY = RetryPolicy(max_attempts=4, initial_backoff_s=0.1, max_backoff_s=1)


@dataclass
class LossyServer:
    """An object store with one object, whose answers get lost as the script says.

    A script is a list of events, one per request: ``ok`` (answered), ``lost`` (carried out, not
    answered), ``dropped`` (neither), ``unsent`` (no connection), ``lost+rival`` (carried out, then
    replaced by a writer that had read it, response lost), ``rival+lost`` (another writer is first,
    and the rejection is lost), ``rival`` (another writer is first, and the rejection arrives).
    """

    script: list[str]
    present: CurrentObject | None = None
    puts_carried_out: int = 0
    versions: int = 0
    history: list[str | None] = field(default_factory=list)

    def write(self, write_id: str | None) -> Version:
        self.versions += 1
        self.present = CurrentObject(Version(str(self.versions)), write_id)
        self.history.append(write_id)
        return self.present.version

    def conditional_write(self, condition: Create | UpdateIfMatch, write_id: str | None) -> Version:
        match condition:
            case Create() if self.present is None:
                pass
            case UpdateIfMatch(version) if self.present and is_same_version(
                self.present.version, version
            ):
                pass
            case _:
                raise ConditionRejectedError
        return self.write(write_id)

    def sender(
        self, condition: Create | UpdateIfMatch, write_id: str | None
    ) -> Callable[[], Version]:
        def send() -> Version:
            event = self.script.pop(0) if self.script else "ok"
            if event == "unsent":
                raise RequestNotProcessedError
            if event == "dropped":
                raise ResponseLostError
            if event in {"rival", "rival+lost"}:
                self.write("rival")
            try:
                version = self.conditional_write(condition, write_id)
            finally:
                if event == "lost+rival":
                    self.write("rival")
                if event.endswith(("lost", "+rival")):
                    raise ResponseLostError
            return version

        return send


def run(
    server: LossyServer, condition: Create | UpdateIfMatch, write_id: str | None = "ours"
) -> tuple[Version, list[float]]:
    delays: list[float] = []
    version = put_conditionally(
        "repo",
        condition,
        write_id,
        send=server.sender(condition, write_id),
        read_back=lambda: server.present,
        policy=POLICY,
        sleep=delays.append,
    )
    return version, delays


def server_with_object(script: list[str]) -> tuple[LossyServer, UpdateIfMatch]:
    server = LossyServer(script)
    return server, UpdateIfMatch(server.write("other"))


def test_success_needs_no_read_back() -> None:
    """A put that succeeds is one request."""
    server = LossyServer(["ok"])
    version, delays = run(server, Create())
    assert server.present == CurrentObject(version, "ours")
    assert delays == []


@pytest.mark.parametrize("lost", ["lost", "dropped", "unsent"])
def test_lost_responses_write_once(lost: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whether the request or its response was lost, the object is written exactly once."""
    caplog.set_level("DEBUG", "icefloe")
    server = LossyServer([lost])
    version, _ = run(server, Create())
    assert server.present == CurrentObject(version, "ours")
    assert server.history == ["ours"]
    logged = "the put succeeded" if lost == "lost" else "attempt 2 of 4"
    assert [logged in record.getMessage() for record in caplog.records] == [True]
    server, condition = server_with_object([lost, lost])
    version, _ = run(server, condition)
    assert server.present == CurrentObject(version, "ours")
    assert server.history == ["other", "ours"]


def test_a_rejection_is_a_conflict() -> None:
    """If every response arrived, the object of another writer is a conflict."""
    server, condition = server_with_object(["rival"])
    with pytest.raises(PreconditionFailedError):
        run(server, condition)
    assert server.history == ["other", "rival"]


def test_a_rejection_due_to_our_own_write_is_a_success() -> None:
    """If a gateway repeated the request, a rejection of the second one is a success."""
    server, condition = server_with_object(["ok"])
    ours = server.write("ours")
    version, _ = run(server, condition)
    assert version == ours


@pytest.mark.parametrize("event", ["lost+rival", "rival+lost"])
def test_a_lost_response_and_another_object_is_unknown(event: str) -> None:
    """Our put may have succeeded and been replaced, or not: the outcome is unknown."""
    server, condition = server_with_object([event])
    with pytest.raises(OutcomeUnknownError):
        run(server, condition)


def test_without_metadata_no_lost_response_is_success() -> None:
    """Without a write id, the writer of the object cannot be identified."""
    server = LossyServer(["lost"])
    with pytest.raises(OutcomeUnknownError):
        run(server, Create(), write_id=None)
    server = LossyServer(["dropped"])
    run(server, Create(), write_id=None)


def test_the_last_error_depends_on_whether_a_request_was_sent() -> None:
    """After the last attempt the outcome is unknown, unless no request was sent."""
    server = LossyServer(["dropped"] * 9)
    with pytest.raises(OutcomeUnknownError):
        run(server, Create())
    assert len(server.script) == 9 - POLICY.max_attempts
    server = LossyServer(["unsent"] * 9)
    with pytest.raises(StorageError) as raised:
        run(server, Create())
    assert not isinstance(raised.value, OutcomeUnknownError)


def test_an_object_that_cannot_be_read_back_is_unknown() -> None:
    """If the object cannot be read back, the outcome is unknown."""

    def no_look() -> CurrentObject | None:
        raise StorageError("not now")

    for event in ("lost", "rival"):
        server = LossyServer([event])
        with pytest.raises(OutcomeUnknownError):
            put_conditionally(
                "repo",
                Create(),
                "ours",
                send=server.sender(Create(), "ours"),
                read_back=no_look,
                policy=POLICY,
            )


def test_delays_grow_and_are_bounded() -> None:
    """Delays double up to the limit, and are between half of the bound and the bound."""
    for failures in range(1, 5000, 7):
        longest = min(5, 0.1 * 2 ** min(failures - 1, 30))
        assert longest / 2 <= compute_backoff_s(failures, 0.1, 5) <= longest
    assert len({compute_backoff_s(1, 1, 1) for _ in range(100)}) > 1


EVENTS = ["ok", "lost", "dropped", "unsent", "lost+rival", "rival+lost", "rival"]


@given(st.lists(st.sampled_from(EVENTS), max_size=6), st.booleans())
def test_the_result_is_always_correct(script: list[str], creates: bool) -> None:  # noqa: FBT001
    """Success means that our put took effect once, a conflict that it did not."""
    server = LossyServer(list(script))
    condition = Create() if creates else UpdateIfMatch(server.write("other"))
    try:
        version, _ = run(server, condition)
    except PreconditionFailedError:
        assert "ours" not in server.history
    except OutcomeUnknownError:
        assert {"lost", "dropped", "lost+rival", "rival+lost"} & set(script)
    except StorageError:
        assert "ours" not in server.history
    else:
        assert server.present == CurrentObject(version, "ours")
    assert server.history.count("ours") <= 1
