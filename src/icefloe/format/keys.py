"""Keys of the mutable files of a repository (Icechunk spec, "File Layout").

`generation` has those of the immutable files.
"""

from __future__ import annotations

CONFIG = "config.yaml"
"""The configuration of all generations but v2."""

REPO = "repo"
"""The mutable state of generation v2."""

STATE = "state.json"
"""The mutable state of the generation draft."""

CONVERSION = "conversion.json"
"""The record of a conversion, in the root of its target."""

CREATION = "creation.json"
"""The claim of the creator of a repository, until it exists."""

COLLECTIONS = "collections/"
"""The prefix of the marks of running garbage collections."""

REFS = "refs/"
OVERWRITTEN = "overwritten/"
"""The prefix of backups of ``repo``, generation v2."""

_BRANCH, _TAG = "branch.", "tag."
_REF_FILE, _TOMBSTONE = "/ref.json", "/ref.json.deleted"


def format_branch_key(name: str) -> str:
    """Return the key of the ref file of a branch, generation v1."""
    return f"{REFS}{_BRANCH}{name}{_REF_FILE}"


def format_tag_key(name: str) -> str:
    """Return the key of the ref file of a tag, generation v1."""
    return f"{REFS}{_TAG}{name}{_REF_FILE}"


def format_tombstone_key(name: str) -> str:
    """Return the key of the tombstone of a deleted tag, generation v1."""
    return f"{REFS}{_TAG}{name}{_TOMBSTONE}"


def parse_branch_key(key: str) -> str | None:
    """Return the name of the branch with this key, or None."""
    return _remove_affixes(key, REFS + _BRANCH, _REF_FILE)


def parse_tag_key(key: str) -> str | None:
    """Return the name of the tag with this key, or None."""
    return _remove_affixes(key, REFS + _TAG, _REF_FILE)


def parse_tombstone_key(key: str) -> str | None:
    """Return the name of the tag whose tombstone has this key, or None."""
    return _remove_affixes(key, REFS + _TAG, _TOMBSTONE)


def _remove_affixes(key: str, prefix: str, suffix: str) -> str | None:
    if key.startswith(prefix) and key.endswith(suffix) and len(key) > len(prefix) + len(suffix):
        return key[len(prefix) : -len(suffix)]
    return None
