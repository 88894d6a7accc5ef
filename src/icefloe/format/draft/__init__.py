"""The encoding of the generation draft: JSON and Parquet (docs/format/draft.md)."""
