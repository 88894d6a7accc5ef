"""Spark integration: groups as DataFrames, streams of commits, and Spark sessions.

Install with ``pip install 'icefloe[spark]'``. Names are loaded on first use: importing this
package does not import PySpark, Arrow or xarray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from icefloe.spark.engine.executor import SparkExecutor
from icefloe.spark.engine.local_session import spark_session

if TYPE_CHECKING:
    from icefloe.spark.data_source import register
    from icefloe.spark.read_dataframe import read
    from icefloe.spark.write_dataframe import write

__all__ = ["SparkExecutor", "read", "register", "spark_session", "write"]

_LAZY = {"read": "read_dataframe", "register": "data_source", "write": "write_dataframe"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"icefloe.spark.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
