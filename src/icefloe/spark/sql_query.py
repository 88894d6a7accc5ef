"""SQL queries on one snapshot, with a group as the table ``data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.spark.engine.deferred_session import DeferredSession, resolve_session
from icefloe.spark.engine.progress import Progress, run_with_progress
from icefloe.spark.engine.worker_errors import find_setup_problem, get_cause
from icefloe.spark.option_parsing import input_error
from icefloe.spark.read_dataframe import read

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from icefloe.session import Session

_TABLE: Final = "data"


def run_query(
    spark: SparkSession | DeferredSession,
    session: Session,
    query: str,
    *,
    limit: int,
    progress: Progress | None = None,
    **read_options: Any,
) -> tuple[list[str], list[Row]]:
    """Return the column names and the first ``limit`` rows of a query.

    The query is Spark SQL. The group is the table ``data``, and metadata tables are table functions
    (``icefloe_…``). ``read_options`` are passed to `read`.

    Raises `InvalidInputError` with Spark's message, without the query plan and the Java stack
    trace.
    """
    rows = read(spark, session, **read_options)  # raises before a deferred session starts
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415 - slow

    from icefloe.spark.data_source import register  # noqa: PLC0415 - imports PySpark

    spark = resolve_session(spark)
    register(spark)
    rows.createOrReplaceTempView(_TABLE)
    try:
        frame = spark.sql(query)
        return frame.columns, run_with_progress(spark, lambda: frame.take(limit), progress)
    except PySparkException as error:
        reason = str(error).partition("JVM stacktrace:")[0].strip()
        if "Traceback (most recent call last)" in reason:
            reason = find_setup_problem(error) or get_cause(error)
        if isinstance(error, AnalysisException):
            # Keep only the first line: the rest of the message is Spark's plan.
            reason = reason.partition("\n")[0].rstrip(";")
        raise input_error(reason) from error
