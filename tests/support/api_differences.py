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
        "Icechunk's constructors take a compiled object; use the factory methods in both libraries",
        ("Repository: *", "Session: *", "ForkSession: *", "IcechunkStore: *"),
    ),
    Difference(
        "`SnapshotInfo(…)`, `ManifestFileInfo(…)`, `FeatureFlag(…)`, `Update(…)`, "
        "`StorageObjectInfo(…)`",
        "dataclasses that take their fields; Icechunk's classes have no constructor",
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
        "the message is the first parameter, as in all other errors; the others are keyword-only",
        ("ConflictError: *", "RebaseFailedError: *"),
    ),
    Difference(
        "`AzureRefreshableCredential.AccessKey(…)` and its siblings",
        "`expires_after` is keyword-only, as in Icechunk's type stubs",
        ("AzureRefreshableCredential.*: expires_after cannot be given by position",),
    ),
    Difference(
        "`ManifestPreloadCondition.And`, `ManifestSplitCondition.And` and other variants",
        "not in Icechunk's type stubs; use `and_conditions` and its siblings",
        ("ManifestPreloadCondition.* is missing", "ManifestSplitCondition.* is missing"),
    ),
    Difference(
        "`ManifestSplittingConfig.to_dict`",
        "the first parameter of the method is named `self`",
        ("ManifestSplittingConfig.to_dict: config *",),
    ),
    Difference(
        "`icechunk.dask.SimpleGraph`",
        "a protocol for type checkers without use at run time",
        ("dask.SimpleGraph is missing",),
    ),
    Difference(
        "`icechunk.testing`, `icechunk.vendor`",
        "Icechunk's test helpers and vendored code",
        ("testing is missing", "vendor is missing"),
    ),
)


def explained(finding: str) -> bool:
    """Whether a finding is one of the differences."""
    patterns = [pattern for difference in DIFFERENCES for pattern in difference.patterns]
    return any(fnmatchcase(finding, pattern) for pattern in patterns)
