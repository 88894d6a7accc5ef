"""The files that a commit adds to a repository, and a check that they exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import ErrorKind, ObjectNotFoundError, SessionStateError
from icefloe.format.ids import to_ids
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.ids import ChunkId, ManifestId, ObjectId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.format.generation import FileKind
    from icefloe.model.snapshot import Snapshot
    from icefloe.transaction.change_set import ChangeSet

_MAX_LOOKUPS = 1000
"""More files than this are listed: a listing has a thousand files in each response."""


def require_written_files(
    assets: Assets, changes: ChangeSet, base: Snapshot, snapshot: Snapshot
) -> None:
    """Raise if a file is missing that a commit refers to and its base does not.

    Requests: one for each file, or listings if there are many, and one for each manifest that
    another process wrote.
    """
    layout = assets.generation.layout
    known = {info.id for info in base.manifest_files}
    manifests = {info.id for info in snapshot.manifest_files if info.id not in known}
    adopted = {manifest.ref.id for part in changes.adopted.values() for manifest in part}
    missing = [
        *_find_missing(assets, layout.snapshots, [snapshot.id]),
        *_find_missing(assets, layout.manifests, sorted(manifests | adopted)),
    ]
    if not missing:  # else the manifests of other processes cannot be read
        missing += _find_missing(assets, layout.chunks, _find_chunk_ids(assets, changes, adopted))
    if missing:
        raise SessionStateError(
            f"garbage collection deleted {len(missing)} files that this session wrote, such as "
            f"{missing[0]}: nothing was committed. Write the data again in a new session, and "
            "collect garbage with a cutoff before the start of every session that may commit",
            kind=ErrorKind.COLLECTED_BEFORE_COMMIT,
        )


def _find_chunk_ids(
    assets: Assets, changes: ChangeSet, adopted: AbstractSet[ManifestId]
) -> Sequence[ChunkId]:
    parts: list[NDArray[np.uint8]] = []
    for chunks in changes.chunks.values():
        payloads = chunks.to_columns().payloads
        parts.append(payloads.chunk_id[payloads.kind == ChunkKind.NATIVE])
    parts += assets.run_concurrently(assets.fetch_chunk_ids, sorted(adopted))
    return to_ids(np.unique(np.concatenate(parts), axis=0), ChunkId) if parts else ()


def _find_missing(assets: Assets, files: FileKind, ids: Sequence[ObjectId]) -> list[str]:
    keys = [files.format_key(object_id) for object_id in ids]
    if len(keys) > _MAX_LOOKUPS:
        existing = {info.key for info in assets.storage.list(files.prefix)}
        return [key for key in keys if key not in existing]

    def is_missing(key: str) -> bool:
        try:
            assets.storage.head(key)
        except ObjectNotFoundError:
            return True
        return False

    return [
        key
        for key, missing in zip(keys, assets.run_concurrently(is_missing, keys), strict=True)
        if missing
    ]
