"""What is not as in Icechunk's Python API on purpose, and why; `docs/compatibility.md` has it too.

A pattern is matched against what `comparison.compare` finds, as in a shell.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs, in the words of the document's table, and what the comparison says of it."""

    what: str
    why: str
    patterns: tuple[str, ...]


DIFFERENCES = (
    Difference(
        "`Repository(…)`, `Session(…)`, `ForkSession(…)`, `IcechunkStore(…)`",
        "Icechunk wraps a compiled object there; here as there, a method makes them",
        ("Repository: *", "Session: *", "ForkSession: *", "IcechunkStore: *"),
    ),
    Difference(
        "`SnapshotInfo(…)`, `ManifestFileInfo(…)`, `FeatureFlag(…)`, `Update(…)`, "
        "`StorageObjectInfo(…)`",
        "they are plain values here and take their fields; Icechunk's cannot be made",
        tuple(
            f"{name}: * is asked for besides"
            for name in (
                "SnapshotInfo",
                "ManifestFileInfo",
                "FeatureFlag",
                "Update",
                "StorageObjectInfo",
            )
        ),
    ),
    Difference(
        "`ConflictError(…)`, `RebaseFailedError(…)`",
        "the message comes first, as in all other errors; the rest is given by name",
        ("ConflictError: *", "RebaseFailedError: *"),
    ),
    Difference(
        "`AzureRefreshableCredential.AccessKey(…)` and its siblings",
        "`expires_after` is given by name, as Icechunk's own type stubs have it",
        ("AzureRefreshableCredential.*: expires_after cannot be given by position",),
    ),
    Difference(
        "`ManifestPreloadCondition.And`, `ManifestSplitCondition.And` and other variants",
        "Icechunk's type stubs do not have them; `and_conditions` and its siblings make conditions",
        ("ManifestPreloadCondition.* is missing", "ManifestSplitCondition.* is missing"),
    ),
    Difference(
        "`ManifestSplittingConfig.to_dict`",
        "a method whose first argument is called `self`, as a method's is",
        ("ManifestSplittingConfig.to_dict: config *",),
    ),
    Difference(
        "`icechunk.dask.SimpleGraph`",
        "a protocol for type checkers, with no use at run time",
        ("dask.SimpleGraph is missing",),
    ),
    Difference(
        "`icechunk.testing`, `icechunk.vendor`",
        "Icechunk's own test tools and copies of other code",
        ("testing is missing", "vendor is missing"),
    ),
)


def explained(finding: str) -> bool:
    """Whether a finding is one of the differences."""
    patterns = [pattern for one in DIFFERENCES for pattern in one.patterns]
    return any(fnmatchcase(finding, pattern) for pattern in patterns)
