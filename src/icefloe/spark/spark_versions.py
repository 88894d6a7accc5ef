"""What differs between the supported versions of PySpark (4.1 and later)."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas import types

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Spark 4.1

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for the interface, which Spark 4.1 does not have."""


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HAS_READ_LIMITS", "SupportsTriggerAvailableNow", "to_arrow_schema", "to_spark_schema"]

HAS_READ_LIMITS: Final = SupportsTriggerAvailableNow.__module__.startswith("pyspark")
"""Whether streams are asked for an end offset that respects limits; not in Spark 4.1."""

# Spark 4.1 always makes timestamps UTC, and has no such parameter.
_TIMEZONE: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in signature(types.to_arrow_schema).parameters else {}
)


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema; timestamps are UTC."""
    return types.to_arrow_schema(schema, **_TIMEZONE)


def to_spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema; timestamps without a zone are ``ntz``."""
    return types.from_arrow_schema(schema, prefer_timestamp_ntz=True)
