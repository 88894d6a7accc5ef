"""Writing rows to groups, without importing PySpark."""
