"""A storage that takes as long as one far away would, to see how a program fares there."""

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
    """The objects of another storage, with a pause before every request.

    Requests of different threads or tasks pause at the same time, as they would on a network.
    Both latencies may be changed at any time.

    Parameters
    ----------
    inner
        The storage that has the objects.
    write_latency_ms
        The pause before puts, deletions and copies.
    read_latency_ms
        The pause before everything else.
    """

    def __init__(
        self, inner: Storage, *, write_latency_ms: int = 0, read_latency_ms: int = 0
    ) -> None:
        super().__init__(inner)
        self.write_latency_ms = write_latency_ms
        self.read_latency_ms = read_latency_ms

    @property
    def write_latency_ms(self) -> int:
        """The pause before every request that writes."""
        return self._write_latency_ms

    @write_latency_ms.setter
    def write_latency_ms(self, value: int) -> None:
        self._write_latency_ms = _latency(value)

    @property
    def read_latency_ms(self) -> int:
        """The pause before every request that reads."""
        return self._read_latency_ms

    @read_latency_ms.setter
    def read_latency_ms(self, value: int) -> None:
        self._read_latency_ms = _latency(value)

    @property
    def is_low_latency(self) -> bool:
        """Whether reads come at once: those that pause would keep an event loop waiting."""
        return self._read_latency_ms == 0 and super().is_low_latency

    def _around(self, request: Request, run: Callable[[], T]) -> T:
        time.sleep(self._pause_s(request))
        return run()

    async def _around_async(self, request: Request, run: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self._pause_s(request))
        return await run()

    def _pause_s(self, request: Request) -> float:
        pause_ms = self._write_latency_ms if request.writes else self._read_latency_ms
        return pause_ms / 1000


def _latency(value: int) -> int:
    if value < 0:
        raise InvalidInputError(
            f"a latency of {value} ms: it must be 0 or more", kind=ErrorKind.STORAGE_CONFIG
        )
    return value
