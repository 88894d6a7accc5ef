"""Spark: groups as tables, streams of commits, and the sessions that the commands make.

``pip install 'icefloe[spark]'``. Nothing here runs before it is asked for: importing icefloe does
not import PySpark, and importing this does not import Arrow and xarray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from icefloe.spark.engine.executor import SparkExecutor
from icefloe.spark.engine.local_session import spark_session

if TYPE_CHECKING:
    from icefloe.spark.read_dataframe import read, register
    from icefloe.spark.write_dataframe import write

__all__ = ["SparkExecutor", "read", "register", "spark_session", "write"]


def __getattr__(name: str) -> Any:
    if name in {"read", "register"}:
        return getattr(import_module("icefloe.spark.read_dataframe"), name)
    if name == "write":
        return import_module("icefloe.spark.write_dataframe").write
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
