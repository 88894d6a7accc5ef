"""What every test needs, and the loud word where something could not be tested."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from support.later_python import NoLaterPythonError, icechunk2_python
from support.servers import S3Server, shared_seaweedfs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Hundreds of processes are started, and each would compile all of icefloe for itself alone.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session")
def icechunk2() -> Path:
    """Return an interpreter that has Icechunk 2.x."""
    try:
        return icechunk2_python()
    except NoLaterPythonError as error:
        pytest.skip(f"ICECHUNK 2.x IS NOT TESTED ON THIS MACHINE: {error}")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run an S3 server, one for all workers; each test writes below a prefix of its own."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with shared_seaweedfs(folder) as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat at the very end what the machine could not test."""
    reasons = {
        str(report.longrepr[2])
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    }
    for reason in sorted(reason for reason in reasons if "NOT TESTED" in reason):
        terminalreporter.write_line(f"!!! {reason}", red=True, bold=True)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Run Spark on two cores, once for all folders; a task that fails is tried up to four times."""
    pytest.importorskip("pyspark", reason="SPARK IS NOT TESTED ON THIS MACHINE: no pyspark")
    from icefloe.errors import InvalidInputError  # noqa: PLC0415
    from icefloe.spark import register, spark_session  # noqa: PLC0415

    try:
        session = spark_session("local[2,4]")
    except InvalidInputError as error:
        pytest.skip(f"SPARK IS NOT TESTED ON THIS MACHINE: {error}")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    register(session)
    yield session
    session.stop()
