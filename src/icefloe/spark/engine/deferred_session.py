"""A Spark session that starts when it is needed, so that planning starts no Spark."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from icefloe.spark.engine.local_session import is_running, require_one_address, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_LOCAL_MASTER: Final = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:,\s*\d+)?\])?")


class DeferredSession:
    """The session of `spark_session` with the same arguments; starts on `get`.

    Functions of `icefloe.pipeline` and `icefloe.spark.read` take it in place of a session. They
    plan first, and so report errors and do nothing without starting Spark. ``on_start`` is called
    with a text to show before the session starts.
    """

    def __init__(
        self,
        master: str | None = None,
        remote: str | None = None,
        *,
        on_start: Callable[[str], None] | None = None,
    ) -> None:
        require_one_address(master, remote)
        self._master, self._remote = master, remote
        self._session: SparkSession | None = None
        self._is_own = False
        self._on_start = on_start

    def get(self) -> SparkSession:
        """Return the session, and start it if none is running."""
        if self._session is None:
            self._is_own = not is_running()
            if self._is_own and self._on_start is not None:
                self._on_start("starting Spark")
            self._session = spark_session(self._master, self._remote)
        return self._session

    def stop(self) -> None:
        """Stop the session if `get` started it."""
        if self._session is not None and self._is_own:
            self._session.stop()
        self._session = None

    @property
    def num_cores(self) -> int | None:
        """The cores of a local master; None if only a running session knows."""
        if self._session is not None or self._remote is not None or is_running():
            return None
        if self._master is None and "SPARK_ENV_LOADED" in os.environ:
            return None  # spark-submit sets the master
        match = _LOCAL_MASTER.fullmatch(self._master or "local[*]")
        if match is None:
            return None
        cores = match["cores"] or "1"
        return len(os.sched_getaffinity(0)) if cores == "*" else int(cores)


def resolve_session(spark: SparkSession | DeferredSession) -> SparkSession:
    """Return the session, and start it if it is deferred."""
    return spark.get() if isinstance(spark, DeferredSession) else spark
