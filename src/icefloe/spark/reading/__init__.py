"""Reading groups as tables; knows nothing of Spark."""
