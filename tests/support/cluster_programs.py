"""Programs that use Spark, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

TESTS = {
    "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
}
"""Lets a process find the modules of the tests."""

needs_connect = pytest.mark.skipif(
    find_spec("grpc") is None or find_spec("grpc_status") is None,
    reason="SPARK CONNECT IS NOT TESTED ON THIS MACHINE: pip install 'pyspark[connect]'",
)


def run_program(
    program: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module of the tests as a program: classic sessions and Connect do not mix in one."""
    return subprocess.run(
        [sys.executable, program, *arguments],
        env={
            **os.environ,
            **TESTS,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **(environment or {}),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
