"""Following a branch as a stream, without importing PySpark."""
