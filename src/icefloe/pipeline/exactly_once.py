"""Commits that happen once: the sinks of `icefloe.spark`, one layer below, need them as well."""

from __future__ import annotations

from icefloe.spark.exactly_once import METADATA_KEY, Committed, JobId, commit_once, find_committed

__all__ = ["METADATA_KEY", "Committed", "JobId", "commit_once", "find_committed"]
