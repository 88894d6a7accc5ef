"""Compacting: fewer objects, the same bytes, and nothing to do the second time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.pipeline.compact import compact
from icefloe.pipeline.pyramid import pyramid
from icefloe.pipeline.report import Plan, Report
from pipeline.array_repositories import chunk_bytes, write_weather

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def done(answer: Plan | Report) -> Report:
    assert isinstance(answer, Report)
    return answer


def write_small(repository: icefloe.Repository, *, value: int = 0) -> None:
    """Commit twenty chunks of 800 bytes."""
    with repository.transaction("main", message="small") as store:
        group = zarr.open_group(store, mode="a")
        array = group.require_array("a", shape=(2000,), chunks=(100,), dtype="i8", compressors=None)
        array[:] = np.arange(2000) + value


def objects(repository: icefloe.Repository, path: str = "a") -> set[str]:
    """Name the objects that the chunks of an array are in."""
    session = repository.readonly_session("main")
    parts = session.transaction.chunk_refs(session.path(path))
    return {str(one.id) for part in parts for one in part.payloads if hasattr(one, "id")}


def test_small_objects_become_one_and_bytes_stay(
    repository: icefloe.Repository, tmp_path: Path
) -> None:
    write_small(repository)
    before = chunk_bytes(repository, "a")
    assert len(objects(repository)) == 20
    old = repository.lookup_branch("main")
    assert done(compact(None, repository)).chunks == 20
    assert len(objects(repository)) == 1
    assert chunk_bytes(repository, "a") == before
    again = zarr.open_group(repository.readonly_session(snapshot_id=old).store, mode="r")
    np.testing.assert_array_equal(again["a"][:], np.arange(2000))  # type: ignore[index]
    assert done(compact(None, repository)).snapshot_id is None
    with pytest.raises(InvalidInputError, match=r"more than 19 chunks .*max_chunks"):
        compact(None, repository, max_chunks=19)


def test_packs_with_dead_space_are_rewritten(repository: icefloe.Repository) -> None:
    packing = icefloe.RepositoryConfig(packing=icefloe.PackingConfig(target_object_bytes=16_000))
    repository = repository.reopen(packing)
    write_small(repository)
    (pack,) = objects(repository)
    with repository.transaction("main", message="most of it anew") as store:
        zarr.open_array(store, path="a")[:1500] = 1
    plan = compact(None, repository, min_live=0.2, dry_run=True)
    assert "0 packs" in str(plan)
    before = chunk_bytes(repository, "a")
    plan = compact(None, repository, dry_run=True)
    assert "1 packs with 12.0 kB of dead space" in str(plan)
    compact(None, repository)
    assert pack not in objects(repository)
    assert chunk_bytes(repository, "a") == before


def test_what_arrays_share_they_share_afterwards(repository: icefloe.Repository) -> None:
    write_weather(repository)
    pyramid(None, repository, "air", "/p", levels=1)
    # The pyramid was packed; what it shares with the original was written one by one.
    assert objects(repository, "air") == objects(repository, "p/0/air")
    before = chunk_bytes(repository, "air")
    compact(None, repository)
    assert objects(repository, "air") == objects(repository, "p/0/air")
    assert chunk_bytes(repository, "air") == chunk_bytes(repository, "p/0/air") == before


def test_collection_finds_the_old_objects_once_no_snapshot_needs_them(
    repository: icefloe.Repository, tmp_path: Path
) -> None:
    write_small(repository)
    compact(None, repository)
    before = chunk_bytes(repository, "a")
    assert len(list((tmp_path / "repo" / "chunks").iterdir())) == 21
    now = datetime.now(UTC)
    repository.expire_snapshots(now)
    repository.garbage_collect(now)
    assert len(list((tmp_path / "repo" / "chunks").iterdir())) == 1
    assert chunk_bytes(repository, "a") == before


def test_manifests_that_are_too_many_are_merged(repository: icefloe.Repository) -> None:
    split = icefloe.ManifestSplittingConfig.from_dict(
        {icefloe.ManifestSplitCondition.AnyArray(): {icefloe.ManifestSplitDimCondition.Any(): 2}}
    )
    fine = repository.reopen(
        icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(splitting=split))
    )
    write_small(fine)
    tip = repository.lookup_branch("main")
    assert len(repository.list_manifest_files(tip)) == 10
    before = chunk_bytes(repository, "a")
    compact(None, repository)
    assert len(repository.list_manifest_files(repository.lookup_branch("main"))) == 1
    assert chunk_bytes(repository, "a") == before
    assert done(compact(None, repository)).snapshot_id is None


def test_a_dry_run_writes_nothing(
    repository: icefloe.Repository, files: Callable[[], set[str]]
) -> None:
    write_small(repository)
    before = files()
    assert "20 small objects are put together" in str(compact(None, repository, dry_run=True))
    assert files() == before


def test_an_empty_repository_has_nothing_to_compact(repository: icefloe.Repository) -> None:
    assert done(compact(None, repository)).snapshot_id is None
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        compact(None, repository, min_live=2)
