"""Following a branch as a stream; knows nothing of Spark."""
