"""Parsers: one module per file format, and modules that they share."""
