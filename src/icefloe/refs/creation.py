"""Creation of a repository (Icechunk spec, "Initialize New Repository")."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.format import config_yaml
from icefloe.format.envelope import SPEC_VERSIONS
from icefloe.format.keys import CONFIG, REPO, branch_key, snapshot_key, transaction_log_key
from icefloe.format.ref_json import encode_ref
from icefloe.format.repo_info import encode_repo_info
from icefloe.format.snapshot import encode_snapshot
from icefloe.format.transaction_log import encode_transaction_log
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.ids import INITIAL_SNAPSHOT_ID, NodeId
from icefloe.model.repo_info import (
    OpsLogEntry,
    RepoAvailability,
    RepoInfo,
    RepoInitialized,
    RepoStatus,
)
from icefloe.model.snapshot import INITIAL_MESSAGE, INITIAL_METADATA, Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.refs.opening import is_repository, open_refs
from icefloe.refs.problems import MAIN
from icefloe.storage.interface import Create

if TYPE_CHECKING:
    from icefloe.model.config import RepositoryConfig
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import Storage


def create_refs(
    storage: Storage, *, spec_version: int, config: RepositoryConfig | None = None
) -> Refs:
    """Create an empty repository; of several concurrent creators one succeeds.

    The first snapshot has the same id in every repository and is written if absent, so that an
    interrupted creation can be repeated. The configuration comes next. The conditional create of
    the branch main, or of the file ``repo``, comes last and makes the repository exist.
    """
    if spec_version not in SPEC_VERSIONS:
        raise InvalidInputError(
            f"spec_version must be 1 or 2, not {spec_version!r}",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    if is_repository(storage):
        raise _already_exists(storage)
    initial = _write_initial_snapshot(storage, spec_version)
    if spec_version == 1 and config is not None:
        with contextlib.suppress(PreconditionFailedError):
            storage.put(CONFIG, config_yaml.dumps(config), Create())
    try:
        if spec_version == 1:
            storage.put(branch_key(MAIN), encode_ref(initial.id), Create())
        else:
            storage.put(REPO, encode_repo_info(_build_initial_info(initial, config)), Create())
    except PreconditionFailedError as error:
        raise _already_exists(storage) from error
    # Creators of different versions do not meet in one conditional write. Readers look for `repo`
    # first, so version 2 wins, and the creator of version 1 finds out here.
    opened = open_refs(storage)
    if opened.refs.spec_version != spec_version:
        raise _already_exists(storage)
    # The configuration of an interrupted or losing creator may have been there.
    if config is not None and opened.config != config:
        opened.refs.save_config(config, expected=opened.config)
    return opened.refs


def require_clean_root(storage: Storage) -> None:
    """Raise if a storage contains other files than an interrupted creation leaves."""
    leftovers = {
        CONFIG,
        snapshot_key(INITIAL_SNAPSHOT_ID),
        transaction_log_key(INITIAL_SNAPSHOT_ID),
    }
    try:
        found = next((info.key for info in storage.list() if info.key not in leftovers), None)
    except StorageError:
        return  # the credentials may not allow listing, and creation itself is safe
    if found is not None:
        raise AlreadyExistsError(
            f"{storage.url} is not empty (it contains {found!r}): choose another location, open "
            "the repository if it is one, or pass check_clean_root=False",
            kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )


def _already_exists(storage: Storage) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"a repository already exists at {storage.url}: open it instead",
        kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
    )


def _write_initial_snapshot(storage: Storage, spec_version: int) -> Snapshot:
    snapshot = Snapshot(
        INITIAL_SNAPSHOT_ID, None, datetime.now(UTC), INITIAL_MESSAGE, INITIAL_METADATA, (), ()
    )
    if spec_version > 1:
        none: frozenset[NodeId] = frozenset()
        log = TransactionLog(
            snapshot.id, none, none, none, none, none, none, ChunkIndexColumns.of({})
        )
        with contextlib.suppress(PreconditionFailedError):
            data = encode_transaction_log(log, spec_version=spec_version)
            storage.put(transaction_log_key(log.id), data, Create())
    with contextlib.suppress(PreconditionFailedError):
        data = encode_snapshot(snapshot, spec_version=spec_version)
        storage.put(snapshot_key(snapshot.id), data, Create())
        return snapshot
    return Assets(storage, spec_version).fetch_snapshot(snapshot.id)


def _build_initial_info(snapshot: Snapshot, config: RepositoryConfig | None) -> RepoInfo:
    return RepoInfo(
        spec_version=2,
        branches={MAIN: snapshot.id},
        tags={},
        deleted_tags=frozenset(),
        snapshots=(snapshot.info(),),
        status=RepoStatus(RepoAvailability.online, snapshot.flushed_at),
        latest_updates=(OpsLogEntry(RepoInitialized(), snapshot.flushed_at),),
        config=config,
    )
