"""Snapshot files, which have the history of repositories whose refs are separate files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from icefloe.assets import Assets
from icefloe.errors import ObjectNotFoundError
from icefloe.model.config import CachingConfig
from icefloe.refs import ref_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.format.generation import Generation
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot, SnapshotInfo
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
    source = assets or _make_source(storage, generation)
    try:
        return source.fetch_snapshot(snapshot_id)
    except ObjectNotFoundError as error:
        raise ref_errors.missing_snapshot_error(snapshot_id, storage.url) from error


def make_info_reader(
    storage: Storage, generation: Generation, assets: SnapshotSource | None
) -> Callable[[SnapshotId], SnapshotInfo]:
    """Return a function that fetches history entries as `fetch_snapshot` fetches snapshots."""
    source = assets or _make_source(storage, generation)

    def fetch_info(snapshot_id: SnapshotId) -> SnapshotInfo:
        try:
            return source.fetch_snapshot_info(snapshot_id)
        except ObjectNotFoundError as error:
            raise ref_errors.missing_snapshot_error(snapshot_id, storage.url) from error

    return fetch_info


def _make_source(storage: Storage, generation: Generation) -> SnapshotSource:
    """Make a source without a cache, for one operation.

    Refs do not keep it: they must pickle, and the locks of caches do not.
    """
    return Assets(storage, generation, _NO_CACHE)
