"""Running work on Spark: sessions, tasks, progress, exactly-once commits."""
