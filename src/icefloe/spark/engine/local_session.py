"""The Spark session of commands and jobs: the running one, or a new one."""

from __future__ import annotations

import logging
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

_log = logging.getLogger(__name__)

_LOG_CONFIG: Final = Path(__file__).with_name("log4j2.properties").as_uri()
_PORTS: Final = {"sc": 15002, "spark": 7077}
_TIMEOUT_SECONDS: Final = 10


def is_running() -> bool:
    """Whether this thread has an active Spark session."""
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and an extra

    return SparkSession.getActiveSession() is not None


def require_one_address(master: str | None, remote: str | None) -> None:
    """Raise if both a master and the address of a Spark Connect server are given."""
    if master is not None and remote is not None:
        raise InvalidInputError(
            "pass either master or remote, not both", kind=ErrorKind.STORAGE_CONFIG
        )


def spark_session(master: str | None = None, remote: str | None = None) -> SparkSession:
    """Return the running session, or start one that logs only errors.

    Parameters
    ----------
    master
        Master of a cluster; by default that of ``spark-submit``, or all cores of this machine.
    remote
        Address of a Spark Connect server, such as ``sc://host:15002``, instead of a master.

    Raises
    ------
    InvalidInputError
        If Spark or Java is not installed, the address does not respond, or Spark fails to start.
    """
    require_one_address(master, remote)
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and an extra
    except ImportError as error:
        raise InvalidInputError(
            "PySpark is missing: pip install 'icefloe[spark]', or run small jobs with spark=None",
            kind=ErrorKind.STORAGE_CONFIG,
        ) from error
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    address = remote or master or "local[*]"
    _require_server(address)
    try:
        session = _start(master, remote)
    except InvalidInputError:
        raise
    except Exception as error:  # noqa: BLE001 - reported in one line
        lines = str(error).strip().splitlines() or [type(error).__name__]
        message = next((line for line in lines if "Exception: " in line), lines[0]).strip(": ")
        redacted, reason = _redact_address(address), message
        for part in re.split("[;/@]", address):  # Spark quotes parts that it cannot parse
            if part not in redacted:
                reason = reason.replace(part, "...")
        raise InvalidInputError(
            f"Spark failed to start on {redacted}: {reason}", kind=ErrorKind.STORAGE_CONFIG
        ) from (error if reason == message else None)
    _log.info("started a Spark session on %s", _redact_address(address))
    return session


def _start(master: str | None, remote: str | None) -> SparkSession:
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - an extra
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and an extra

    # PySpark logs errors that it also raises, with the Java stack as JSON.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    if remote is not None:
        return SparkSession.builder.remote(remote).getOrCreate()
    ensure_java()
    # By default Spark runs the `python3` on the path, which may be another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.appName("icefloe")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOG_CONFIG}")
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


def _require_server(address: str) -> None:
    """Raise if no server responds; Spark would retry for minutes."""
    scheme, _, hosts = _redact_address(address).partition("://")
    if scheme not in _PORTS or getproxies():  # behind a proxy only Spark can connect
        return
    problems = []
    for host in hosts.split(","):  # a standalone cluster may have several masters
        try:
            url = urlsplit(f"//{host}")
            server = (url.hostname or "", url.port or _PORTS[scheme])
            socket.create_connection(server, timeout=_TIMEOUT_SECONDS).close()
        except (OSError, ValueError) as error:
            problems.append(f"{host} ({error})")
        else:
            return
    kind = "Spark Connect server" if scheme == "sc" else "Spark master"
    raise InvalidInputError(
        f"no {kind} responds at {', '.join(problems)}: check that it runs, and its host and port",
        kind=ErrorKind.STORAGE_CONFIG,
    )


def _redact_address(address: str) -> str:
    """Return an address without user info and parameters, which may contain a token."""
    scheme, separator, host = address.partition("://")
    return f"{scheme}{separator}{host.partition(';')[0].rpartition('@')[2].rstrip('/')}"
