"""A conversion that is killed before one of its writes; run by `test_conversion`.

``python dying_converter.py SOURCE TARGET GENERATION NUMBER`` is killed before its write of that
number, and ends normally if it has fewer.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from icefloe.pipeline import convert_repository
from icefloe.storage import LocalStorage
from icefloe.storage.forwarding import ForwardingStorage, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage import Storage

T = TypeVar("T")


class DyingStorage(ForwardingStorage):
    """Another storage, whose user is killed before a write."""

    def __init__(self, inner: Storage, deadly: int) -> None:
        super().__init__(inner)
        self._deadly, self._numbers = deadly, count()

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        if request.is_write and next(self._numbers) == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return run()


def main() -> None:
    source, target, generation, number = sys.argv[1:]
    dying = DyingStorage(LocalStorage(target), int(number))
    convert_repository(LocalStorage(source), dying, to=generation)


if __name__ == "__main__":
    main()
