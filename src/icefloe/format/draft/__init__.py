"""The encoding of generation draft: JSON and Parquet files (docs/format/draft.md)."""
