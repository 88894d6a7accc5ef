"""Where Spark looks for the format ``icefloe``: it imports every module called ``pyspark_…``."""

from icefloe.spark.data_source import IcefloeDataSource as DefaultSource

__all__ = ["DefaultSource"]
