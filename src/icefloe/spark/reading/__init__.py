"""Reading groups as tables, without importing PySpark."""
