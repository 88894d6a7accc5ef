"""Writing rows into groups; knows nothing of Spark."""
