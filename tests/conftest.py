"""Fixtures of all tests, the options ``--quick`` and ``--full``, and what could not be tested."""

from __future__ import annotations

import os
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from support.environments import NoEnvironmentError, icechunk1_python, icechunk2_python
from support.generations import GENERATION_NAMES
from support.servers import S3Server, shared_seaweedfs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Tests start hundreds of processes, which share compiled modules only if they are written.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

SLOW_FIXTURES = {"icechunk1", "icechunk2", "s3_server", "spark"}


def pytest_configure(config: pytest.Config) -> None:
    """Ignore the sockets that PySpark 4.1 does not close."""
    if find_spec("pyspark") and version("pyspark").startswith("4.1."):
        ignored = r"ignore:unclosed <socket.socket .*raddr=/tmp/\.:ResourceWarning"
        config.addinivalue_line("filterwarnings", ignored)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of ``make quick`` and ``make full``."""
    needs = ", ".join(sorted(SLOW_FIXTURES))
    parser.addoption("--quick", action="store_true", help=f"leave out tests that need {needs}")
    parser.addoption("--full", action="store_true", help="add the tests that take too long for CI")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the marker ``full`` without ``--full``; with ``--quick``, all that is slow."""
    left_out = set()
    if not config.getoption("--full"):
        left_out |= {item for item in items if item.get_closest_marker("full")}
    if config.getoption("--quick"):
        left_out |= {item for item in items if _is_slow(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _is_slow(item: pytest.Item) -> bool:
    needed = set(getattr(item, "fixturenames", ()))
    return bool(SLOW_FIXTURES & needed) or item.get_closest_marker("slow") is not None


@pytest.fixture(params=GENERATION_NAMES)
def generation(request: pytest.FixtureRequest) -> str:
    """Return the name of each generation."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def icechunk1() -> Path:
    """Return an interpreter that has Icechunk 1.x."""
    try:
        return icechunk1_python()
    except NoEnvironmentError as error:
        pytest.skip(f"ICECHUNK 1.x IS NOT TESTED ON THIS MACHINE: {error}")


@pytest.fixture(scope="session")
def icechunk2() -> Path:
    """Return an interpreter that has Icechunk 2.x."""
    try:
        return icechunk2_python()
    except NoEnvironmentError as error:
        pytest.skip(f"ICECHUNK 2.x IS NOT TESTED ON THIS MACHINE: {error}")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run one S3 server for all workers; each test writes below its own prefix."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with shared_seaweedfs(folder) as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat at the end of the output what could not be tested on this machine."""
    reasons = {
        str(report.longrepr[2])
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    }
    for reason in sorted(reason for reason in reasons if "NOT TESTED" in reason):
        terminalreporter.write_line(f"!!! {reason}", red=True, bold=True)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Run one Spark session on two cores; failed tasks are retried up to three times."""
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
