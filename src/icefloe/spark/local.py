"""The Spark session that commands use when nobody gives them one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_running() -> bool:
    """Whether this process has a Spark session."""
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and an extra

    return SparkSession.getActiveSession() is not None


def spark_session(master: str | None = None, remote: str | None = None) -> SparkSession:
    """Return the running session, or start one.

    Parameters
    ----------
    master
        The cluster; all cores of this machine if not given. Under ``spark-submit`` its own.
    remote
        The address of a Spark Connect server, such as ``sc://host:15002``, instead of a master.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and an extra
    except ImportError as error:
        raise InvalidInputError(
            "this needs Spark: pip install 'icefloe[spark]'", kind=ErrorKind.STORAGE_CONFIG
        ) from error
    if master is not None and remote is not None:
        raise InvalidInputError(
            "give a master or a remote, not both", kind=ErrorKind.STORAGE_CONFIG
        )
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    if remote is not None:
        return SparkSession.builder.remote(remote).getOrCreate()
    ensure_java()
    # Workers are found by name otherwise, and that may be another Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    quiet = Path(__file__).with_name("log4j2.properties").as_uri()
    builder = SparkSession.builder.appName("icefloe")
    if master is not None or "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master(master or "local[*]")
    if master is None or master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = (
            builder.config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={quiet}")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "8")
            .config("spark.python.unix.domain.socket.enabled", "true")
        )
    return builder.getOrCreate()
