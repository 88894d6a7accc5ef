"""A storage with artificial latency, to measure the effect of a network on a program."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.forwarding import ForwardingStorage, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from icefloe.storage.interface import Storage

T = TypeVar("T")


class LatencyStorage(ForwardingStorage):
    """Forwards to another storage, with a delay before every request.

    Requests of different threads or tasks wait concurrently. Both latencies can be set at any time.

    Parameters
    ----------
    write_latency_ms
        Delay before puts, deletions and copies.
    read_latency_ms
        Delay before all other requests.
    """

    def __init__(
        self, inner: Storage, *, write_latency_ms: int = 0, read_latency_ms: int = 0
    ) -> None:
        super().__init__(inner)
        self.write_latency_ms = write_latency_ms
        self.read_latency_ms = read_latency_ms

    @property
    def write_latency_ms(self) -> int:
        """Delay before every write request."""
        return self._write_latency_ms

    @write_latency_ms.setter
    def write_latency_ms(self, value: int) -> None:
        self._write_latency_ms = _require_non_negative(value)

    @property
    def read_latency_ms(self) -> int:
        """Delay before every read request."""
        return self._read_latency_ms

    @read_latency_ms.setter
    def read_latency_ms(self, value: int) -> None:
        self._read_latency_ms = _require_non_negative(value)

    @property
    def is_low_latency(self) -> bool:
        return self._read_latency_ms == 0 and super().is_low_latency

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        time.sleep(self._get_delay_s(request))
        return run()

    async def _intercept_async(self, request: Request, run: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self._get_delay_s(request))
        return await run()

    def _get_delay_s(self, request: Request) -> float:
        delay_ms = self._write_latency_ms if request.is_write else self._read_latency_ms
        return delay_ms / 1000


def _require_non_negative(value: int) -> int:
    if value < 0:
        raise InvalidInputError(
            f"expected a latency of at least 0 ms, got {value}", kind=ErrorKind.STORAGE_CONFIG
        )
    return value
