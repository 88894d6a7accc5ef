"""Metadata tables: a module per table, listed in `registry`."""
