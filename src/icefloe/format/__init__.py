"""Bytes to model and back: every file of a repository that is not a chunk."""
