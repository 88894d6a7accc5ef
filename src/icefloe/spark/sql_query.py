"""One question in SQL about one snapshot: its group is the table ``data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.spark.engine.progress import run_with_progress
from icefloe.spark.read_dataframe import read, register

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from icefloe.session import Session
    from icefloe.spark.engine.progress import Progress

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
    """Return the names of the columns and the first rows of what a query finds.

    Parameters
    ----------
    spark
        A classic session or one of Spark Connect.
    session
        Its snapshot is asked.
    query
        Spark SQL; the group is the table ``data``, and the metadata tables are functions.
    limit
        How many rows.
    progress
        Hears how far Spark is.
    select
        What of the snapshot is in the table, as for `read`.

    Raises
    ------
    InvalidInputError
        If Spark cannot do it; says why, and nothing of plans and Java's stacks.
    """
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415 - an extra

    register(spark)
    read(spark, session, **select).createOrReplaceTempView(_TABLE)
    try:
        frame = spark.sql(query)
        return frame.columns, run_with_progress(spark, lambda: frame.take(limit), progress)
    except PySparkException as error:
        reason = str(error).partition("JVM stacktrace:")[0].strip()
        if isinstance(error, AnalysisException):
            # What follows is Spark's plan, which tells nothing to those who ask in SQL.
            reason = reason.partition("\n")[0].rstrip(";")
        raise InvalidInputError(reason, kind=ErrorKind.NOT_ALLOWED) from error
