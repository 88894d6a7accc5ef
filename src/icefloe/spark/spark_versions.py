"""Differences between the supported versions of PySpark (4.1 and later)."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas import types

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Spark 4.1

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Placeholder for the interface, which Spark 4.1 does not have."""


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HAS_READ_LIMITS", "SupportsTriggerAvailableNow", "to_arrow_schema", "to_spark_schema"]

HAS_READ_LIMITS: Final = SupportsTriggerAvailableNow.__module__.startswith("pyspark")
"""Whether Spark supports limits on micro-batches; Spark 4.1 does not."""

# Spark 4.1 does not have this parameter, and always converts timestamps to UTC.
_TIMEZONE: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in signature(types.to_arrow_schema).parameters else {}
)


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Convert a Spark schema to Arrow; timestamps are UTC."""
    return types.to_arrow_schema(schema, **_TIMEZONE)


def to_spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to Spark; timestamps without a time zone are ``ntz``."""
    return types.from_arrow_schema(schema, prefer_timestamp_ntz=True)
