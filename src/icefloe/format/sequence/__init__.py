"""Encoding of generation sequence: JSON files (``docs/format/sequence.md``)."""
