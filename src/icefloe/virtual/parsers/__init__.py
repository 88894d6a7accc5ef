"""One module for each file format, and what they share."""
