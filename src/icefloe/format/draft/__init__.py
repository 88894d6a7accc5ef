"""The encoding of generation draft: Parquet files (docs/format/draft.md)."""
