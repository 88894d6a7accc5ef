"""Running work on Spark: sessions, tasks and their progress."""
