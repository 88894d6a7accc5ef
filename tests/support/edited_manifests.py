"""Records of edited manifests, and small arrays that are treated like large ones."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.assets import assets
from icefloe.format import manifest_edit, manifest_lookup
from icefloe.format.manifest_edit import edit_manifest
from icefloe.format.manifest_lookup import FlatbuffersManifestFile
from icefloe.transaction import flush

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.format.flatbuffer_reader import Tables
    from icefloe.model.manifest import Manifest


def note_edits(patch: pytest.MonkeyPatch) -> list[bool]:
    """Keep a record of the edits that are tried: whether they were made."""
    tries: list[bool] = []

    def note(root: Tables, changes: Manifest, *, spec_version: int) -> bytes | None:
        data = edit_manifest(root, changes, spec_version=spec_version)
        tries.append(data is not None)
        return data

    patch.setattr(manifest_lookup, "edit_manifest", note)
    return tries


def note_insertions(patch: pytest.MonkeyPatch) -> list[bool]:
    """Keep a record of the insertions that are tried: whether they were made."""
    tries: list[bool] = []

    def note(self: FlatbuffersManifestFile, changes: Manifest, key: str) -> Any:
        inserted = insert(self, changes, key)
        tries.append(inserted is not None)
        return inserted

    insert = FlatbuffersManifestFile.insert
    patch.setattr(FlatbuffersManifestFile, "insert", note)
    return tries


@contextmanager
def edit_wherever_possible() -> Iterator[list[bool]]:
    """Let manifests be edited, also small ones and those in memory; yields the record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flush, "_MAX_SMALL_ARRAY_REFS", -1)
        patch.setattr(flush, "_MIN_REFS_PER_CHANGE", 0)
        patch.setattr(manifest_edit, "_MIN_SIZE_RATIO", 0)
        patch.setattr(assets.Assets, "is_manifest_decoded", lambda *_: False)
        yield note_edits(patch)
