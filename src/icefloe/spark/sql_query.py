"""A SQL query of one snapshot, whose group is the table ``data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, PySparkException

from icefloe.spark.data_source import register
from icefloe.spark.engine.progress import Progress, run_with_progress
from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.read_dataframe import read

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from icefloe.session import Session

_TABLE: Final = "data"


def run_query(
    spark: SparkSession,
    session: Session,
    query: str,
    *,
    limit: int,
    progress: Progress | None = None,
    **select: Any,
) -> tuple[list[str], list[Row]]:
    """Return the column names and the first ``limit`` rows of a query.

    It is Spark SQL; the group is the table ``data``, metadata tables are functions, and ``select``
    are arguments of `read`. Raises if Spark refuses it; the message has no plan and no Java stack.
    """
    register(spark)
    read(spark, session, **select).createOrReplaceTempView(_TABLE)
    try:
        frame = spark.sql(query)
        return frame.columns, run_with_progress(spark, lambda: frame.take(limit), progress)
    except PySparkException as error:
        reason = str(error).partition("JVM stacktrace:")[0].strip()
        if isinstance(error, AnalysisException):
            # Spark's plan follows, which does not help users of SQL.
            reason = reason.partition("\n")[0].rstrip(";")
        raise invalid_input(reason) from error
