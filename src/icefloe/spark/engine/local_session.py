"""The Spark session that commands use when nobody gives them one."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.spark.engine.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET: Final = Path(__file__).with_name("log4j2.properties").as_uri()
_PORTS: Final = {"sc": 15002, "spark": 7077}
_SECONDS_TO_ANSWER: Final = 10


def is_running() -> bool:
    """Whether this process has a Spark session."""
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and an extra

    return SparkSession.getActiveSession() is not None


def spark_session(master: str | None = None, remote: str | None = None) -> SparkSession:
    """Return the running session, or start one that says only what goes wrong.

    Parameters
    ----------
    master
        The cluster; all cores of this machine if not given. Under ``spark-submit`` its own.
    remote
        The address of a Spark Connect server, such as ``sc://host:15002``, instead of a master.

    Raises
    ------
    InvalidInputError
        If there is no Spark, no Java for it, nobody at the address, or Spark does not start.
    """
    if master is not None and remote is not None:
        raise InvalidInputError(
            "give a master or a remote, not both", kind=ErrorKind.STORAGE_CONFIG
        )
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and an extra
    except ImportError as error:
        raise InvalidInputError(
            "this needs Spark: pip install 'icefloe[spark]', or run small jobs with spark=None",
            kind=ErrorKind.STORAGE_CONFIG,
        ) from error
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    place = remote or master or "local[*]"
    _require_answer(place)
    try:
        return _start(master, remote)
    except InvalidInputError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is said in one line
        lines = str(error).strip().splitlines() or [type(error).__name__]
        told = next((line for line in lines if "Exception: " in line), lines[0]).strip(": ")
        shown, reason = _without_secrets(place), told
        for part in re.split("[;/@]", place):  # Spark quotes those that it does not understand
            if part not in shown:
                reason = reason.replace(part, "...")
        raise InvalidInputError(
            f"Spark does not start on {shown}: {reason}",
            kind=ErrorKind.STORAGE_CONFIG,
        ) from (error if reason == told else None)


def _start(master: str | None, remote: str | None) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and an extra

    _silence_query_log()
    if remote is not None:
        return SparkSession.builder.remote(remote).getOrCreate()
    ensure_java()
    # Workers are found by name otherwise, and that may be another Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.appName("icefloe")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_QUIET}")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if master is not None or "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master(master or "local[*]")
    if master is None or master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = (
            builder.config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "8")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.python.daemon.module", "icefloe_daemon")
        )
    return builder.getOrCreate()


def _silence_query_log() -> None:
    """Keep PySpark from logging what it raises as well, as a line of JSON with Java's stack."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - an extra

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def _require_answer(place: str) -> None:
    """Find out whether anybody is there, before Spark tries for minutes and says it in pages."""
    scheme, _, hosts = _without_secrets(place).partition("://")
    if scheme not in _PORTS or getproxies():  # behind a proxy only Spark itself can tell
        return
    problems = []
    for host in hosts.split(","):  # of a standalone cluster there may be several masters
        try:
            address = urlsplit(f"//{host}")
            found = (address.hostname or "", address.port or _PORTS[scheme])
            socket.create_connection(found, timeout=_SECONDS_TO_ANSWER).close()
        except (OSError, ValueError) as error:
            problems.append(f"{host} ({error})")
        else:
            return
    what = "Spark Connect server" if scheme == "sc" else "Spark master"
    raise InvalidInputError(
        f"no {what} answers at {', '.join(problems)}: see whether it runs, and the host and port",
        kind=ErrorKind.STORAGE_CONFIG,
    )


def _without_secrets(place: str) -> str:
    """Leave out what stands before the hosts, and what follows them: that may be a token."""
    scheme, separator, rest = place.partition("://")
    return f"{scheme}{separator}{rest.partition(';')[0].rpartition('@')[2].rstrip('/')}"
