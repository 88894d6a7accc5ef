"""One module per file format, and what they share."""
