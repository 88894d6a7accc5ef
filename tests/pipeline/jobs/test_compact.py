"""Compacting: fewer objects, the same bytes, and nothing to do the second time."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.format.generation import get_generation
from icefloe.model.chunk_payload import ChunkRef
from icefloe.pipeline.jobs.compact import compact
from icefloe.pipeline.jobs.pyramid import pyramid
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.report import Plan, Report
from support.array_repositories import array, chunk_bytes, seen_by_icechunk, sha256, write_weather
from support.netcdf_files import create, write_files

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
    """Return the ids of the objects of an array's chunks."""
    session = repository.readonly_session("main")
    parts = session.transaction.fetch_chunk_refs(session.path(path))
    return {str(ref.id) for part in parts for ref in part.payloads if hasattr(ref, "id")}


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
    with repository.transaction("main", message="rewrite most") as store:
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
    chunks = tmp_path / "repo" / get_generation(repository.generation).layout.chunks.prefix
    assert len(list(chunks.iterdir())) == 21
    now = datetime.now(UTC)
    repository.expire_snapshots(now)
    repository.garbage_collect(now)
    assert len(list(chunks.iterdir())) == 1
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


@pytest.fixture
def daily(tmp_path: Path) -> icefloe.Repository:
    """Create a repository with references to four files, each added by its own commit."""
    (tmp_path / "data").mkdir()
    paths = write_files(tmp_path / "data")
    repository = create(tmp_path / "repo", tmp_path / "data")
    virtualize(None, repository, paths[:1])
    for path in paths[1:]:
        virtualize(None, repository, [path], append=True)
    return repository


def manifest_files(repository: icefloe.Repository) -> set[str]:
    """Return the ids of the manifests at the tip of main."""
    return {
        manifest.id for manifest in repository.list_manifest_files(repository.lookup_branch("main"))
    }


def refs(repository: icefloe.Repository, path: str) -> dict[tuple[int, ...], object]:
    """List the references of an array."""
    session = repository.readonly_session("main")
    parts = session.transaction.fetch_chunk_refs(session.path(path))
    return {
        tuple(row): payload
        for part in parts
        for row, payload in zip(part.coords.tolist(), part.payloads, strict=True)
    }


def test_manifests_of_appends_become_those_of_one_commit(
    daily: icefloe.Repository, tmp_path: Path
) -> None:
    """Small arrays share manifests as well, and the references are unchanged."""
    at_once = create(tmp_path / "other", tmp_path / "data")
    virtualize(None, at_once, sorted((tmp_path / "data").iterdir()))
    before = {name: refs(daily, name) for name in ("t2m", "rain", "height")}
    times = chunk_bytes(daily, "time")
    tip_before = daily.lookup_branch("main")
    assert len(manifest_files(daily)) == 7
    assert "saves 3 manifests" in str(compact(None, daily, dry_run=True))
    compact(None, daily)
    # One for each number of dimensions, so that coordinates are read without the rest.
    assert len(manifest_files(daily)) == 4
    assert {name: refs(daily, name) for name in before} == before
    assert chunk_bytes(daily, "time") == times
    changes = daily.diff(from_snapshot_id=tip_before, to_branch="main")
    assert not {"/t2m", "/rain", "/height"} & set(changes.updated_chunks)
    seen = seen_by_icechunk(daily, f"{(tmp_path / 'data').as_uri()}/")
    assert seen["/rain"]["sha256"] == sha256(array(at_once, "rain")[:])
    assert done(compact(None, daily)).snapshot_id is None


def test_virtual_references_count_where_they_are_rewritten(daily: icefloe.Repository) -> None:
    names = ("time", "lat", "lon", "crs", "t2m", "rain", "height")
    found = [ref for name in names for ref in refs(daily, name).values()]
    natives = sum(isinstance(ref, ChunkRef) for ref in found)
    assert 0 < natives < len(found)
    with pytest.raises(InvalidInputError, match=rf"more than {natives} chunks .*max_chunks"):
        compact(None, daily, max_chunks=natives)
    compact(None, daily)
    assert done(compact(None, daily, max_chunks=natives)).snapshot_id is None


def test_manifests_of_a_good_size_stay(tmp_path: Path) -> None:
    """Manifests that virtualize split are kept, and small ones are merged up to that size."""
    (tmp_path / "data").mkdir()
    paths = write_files(tmp_path / "data", count=6)
    repository = create(tmp_path / "repo", tmp_path / "data")
    virtualize(None, repository, paths[:4], refs_per_manifest=8)
    before = manifest_files(repository)
    assert len(before) > 2
    assert done(compact(None, repository, refs_per_manifest=8)).snapshot_id is None
    virtualize(None, repository, paths[4:5], append=True)
    virtualize(None, repository, paths[5:6], append=True)
    wanted = refs(repository, "rain")
    compact(None, repository, refs_per_manifest=8)
    assert refs(repository, "rain") == wanted
    assert max(sizes(repository, "rain")) <= 8
    assert done(compact(None, repository, refs_per_manifest=8)).snapshot_id is None
    compact(None, repository)
    assert sizes(repository, "rain") == [len(wanted)]
    with pytest.raises(InvalidInputError, match="refs_per_manifest"):
        compact(None, repository, refs_per_manifest=0)


def sizes(repository: icefloe.Repository, path: str) -> list[int]:
    """Count the references in each manifest of an array."""
    session = repository.readonly_session("main")
    return [len(part) for part in session.transaction.fetch_chunk_refs(session.path(path))]


def test_manifests_are_put_together_on_top_of_what_others_committed(
    daily: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A concurrent commit writes a chunk of an array whose manifests are merged."""
    real = icefloe.Session.commit

    def late(self: icefloe.Session, *args: object, **options: object) -> str:
        monkeypatch.setattr(icefloe.Session, "commit", real)
        with daily.transaction("main", message="other") as store, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about codecs without a specification
            zarr.open_array(store, path="rain")[0] = 77
        return real(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(icefloe.Session, "commit", late)
    assert done(compact(None, daily)).is_new
    assert (array(daily, "rain")[0] == 77).all()
    assert len(refs(daily, "rain")) == sum(sizes(daily, "rain"))


def test_a_dry_run_writes_nothing(
    repository: icefloe.Repository, files: Callable[[], set[str]]
) -> None:
    write_small(repository)
    before = files()
    assert "20 small objects are packed" in str(compact(None, repository, dry_run=True))
    assert files() == before


def test_an_empty_repository_has_nothing_to_compact(repository: icefloe.Repository) -> None:
    assert done(compact(None, repository)).snapshot_id is None
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        compact(None, repository, min_live=2)
