"""SQL queries on one snapshot, with a group as the table ``data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, PySparkException

from icefloe.spark.data_source import register
from icefloe.spark.engine.progress import Progress, run_with_progress
from icefloe.spark.option_parsing import input_error
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

    The query is Spark SQL. The group is the table ``data``, metadata tables are functions, and
    ``select`` are arguments of `read`. Errors of Spark are raised without its plan and Java stack.
    """
    register(spark)
    read(spark, session, **select).createOrReplaceTempView(_TABLE)
    try:
        frame = spark.sql(query)
        return frame.columns, run_with_progress(spark, lambda: frame.take(limit), progress)
    except PySparkException as error:
        reason = str(error).partition("JVM stacktrace:")[0].strip()
        if isinstance(error, AnalysisException):
            # The following lines are Spark's plan.
            reason = reason.partition("\n")[0].rstrip(";")
        raise input_error(reason) from error
