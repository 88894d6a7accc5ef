"""Run the daemon, as Spark runs ``python -m pyspark.daemon``."""

from pyspark.daemon import manager

from icefloe_daemon import silence_broken_pipes

silence_broken_pipes()
manager()
