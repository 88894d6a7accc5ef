"""Export targets: plain Zarr stores and Parquet files."""
