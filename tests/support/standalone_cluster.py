"""A Spark cluster as its own scripts start it: a master and two workers, on loopback only."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from icefloe.spark.engine.java import ensure_java
from support.servers import LOOPBACK, ServerUnavailableError, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SECONDS = 120
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For processes that live for some seconds, and of which there are many."""


@contextmanager
def standalone_cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run a cluster, with its logs in a folder; gives the URL of its master.

    Parameters
    ----------
    folder
        Gets the logs, and those of all executors.
    environment
        What executors, too, find in theirs.
    """
    port, web = free_ports(2)
    master = f"spark://{LOOPBACK}:{port}"
    with ExitStack() as running:
        arguments = ["--host", LOOPBACK, "--port", str(port), "--webui-port", str(web)]
        running.enter_context(_started("master.Master", arguments, folder / "master", {}))
        for number in range(2):
            place = folder / f"worker-{number}"
            # Spark starts second attempts of slow tasks on other hosts only: these are two.
            host = f"127.0.0.{number + 1}"
            arguments = ["--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            arguments += ["--work-dir", str(place / "work"), master]
            running.enter_context(_started("worker.Worker", arguments, place, environment))
        deadline = time.monotonic() + _SECONDS
        while _alive_workers(web) < 2:
            if time.monotonic() > deadline:
                raise ServerUnavailableError(f"Spark's cluster was not there in {_SECONDS} s")
            time.sleep(0.2)
        yield master


@contextmanager
def _started(
    name: str, arguments: list[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    ensure_java()
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    folder.mkdir(parents=True)
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": LOOPBACK,
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
                "PYSPARK_PYTHON": sys.executable,
                **environment,
            },
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            # In order, so that a worker takes its executors along.
            process.terminate()
            process.wait()


def _alive_workers(web: int) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, web, timeout=5)
    try:
        connection.request("GET", "/json/")
        found = json.loads(connection.getresponse().read())
    except (OSError, ValueError):
        return 0
    finally:
        connection.close()
    return sum(worker["state"] == "ALIVE" for worker in found["workers"])
