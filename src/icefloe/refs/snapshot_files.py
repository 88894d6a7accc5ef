"""Snapshot files, which have the history of repositories whose refs are separate files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from icefloe.assets import Assets
from icefloe.errors import ObjectNotFoundError
from icefloe.model.config import CachingConfig
from icefloe.refs import ref_errors

if TYPE_CHECKING:
    from icefloe.format.generation import Generation
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot
    from icefloe.refs.interface import SnapshotSource
    from icefloe.storage.interface import Storage

# Expiration in generation v1 replaces parents in snapshot files.
_NO_CACHE: Final = CachingConfig(num_snapshot_nodes=0)


def fetch_snapshot(
    snapshot_id: SnapshotId,
    storage: Storage,
    generation: Generation,
    assets: SnapshotSource | None,
) -> Snapshot:
    """Fetch a snapshot from ``assets``, or from the storage without a cache if that is None.

    Raises `SnapshotNotFoundError` if it does not exist.
    """
    if assets is None:
        # Made for each call: refs must pickle, and the locks of caches do not.
        assets = Assets(storage, generation, _NO_CACHE)
    try:
        return assets.fetch_snapshot(snapshot_id)
    except ObjectNotFoundError as error:
        raise ref_errors.missing_snapshot_error(snapshot_id, storage.url) from error
