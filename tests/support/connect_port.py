"""One Spark Connect server at a time: all local ones use the same port."""

from __future__ import annotations

import fcntl
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def hold_connect_port() -> Iterator[None]:
    """Wait until no other test process on this machine runs a local Connect server."""
    with (Path(tempfile.gettempdir()) / "icefloe-spark-connect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
