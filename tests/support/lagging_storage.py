"""A storage whose clock is behind that of this machine, as if this machine's clock were ahead."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from icefloe.storage.forwarding import ForwardingStorage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from icefloe.model.byte_range import ByteRange
    from icefloe.storage import Fetched, ObjectInfo, Storage


class LaggingStorage(ForwardingStorage):
    """Forwards to another storage, and reports times of objects that are earlier by ``lag``."""

    def __init__(self, inner: Storage, lag: timedelta) -> None:
        super().__init__(inner)
        self.lag = lag

    @property
    def url(self) -> str:
        return f"{super().url}?lag={self.lag / timedelta(seconds=1):.0f}"

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        fetched = super().get(key, byte_range, max_bytes=max_bytes)
        return replace(fetched, info=self._delay(fetched.info))

    def head(self, key: str) -> ObjectInfo:
        return self._delay(super().head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return map(self._delay, super().list(prefix))

    def read_clock(self, fresh_key: str | None = None) -> datetime:
        return super().read_clock(fresh_key) - (
            self.lag if self.inner.is_low_latency else timedelta()
        )

    def _delay(self, info: ObjectInfo) -> ObjectInfo:
        return info._replace(last_modified=info.last_modified - self.lag)
