"""Without Spark or Java nothing here runs, and the end of the run says so."""

from __future__ import annotations

import pytest

from icefloe.errors import InvalidInputError
from icefloe.spark.engine.java import ensure_java


@pytest.fixture(scope="session", autouse=True)
def _needs() -> None:
    pytest.importorskip("pyspark", reason="SPARK IS NOT TESTED ON THIS MACHINE: no pyspark")
    try:
        ensure_java()
    except InvalidInputError as error:
        pytest.skip(f"SPARK IS NOT TESTED ON THIS MACHINE: {error}")
