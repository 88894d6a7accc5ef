"""The format ``icefloe`` for Spark, which imports every module named ``pyspark_…``."""

from icefloe.spark.data_source import IcefloeDataSource as DefaultSource

__all__ = ["DefaultSource"]
