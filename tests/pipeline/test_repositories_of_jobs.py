"""What jobs take as their repository, and which files they may copy into it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe.pipeline import (
    JobFailedError,
    append,
    compact,
    export,
    ingest,
    materialize,
    rechunk,
    virtualize,
)
from icefloe.pipeline.opening import cover_sources
from support.netcdf_files import assert_same, create, dataset, files_dataset, write_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def plain(tmp_path: Path) -> icefloe.Repository:
    """Create a repository without containers."""
    return icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "plain")))


def test_copying_needs_no_container(folder: Path, plain: icefloe.Repository) -> None:
    """Into any repository; containers for the files are neither saved nor kept."""
    paths = write_files(folder, 4)
    ingest(None, plain, paths[:3])
    append(None, plain, f"{folder}/*.nc")
    assert_same(dataset(plain), files_dataset(paths))
    reopened = icefloe.Repository.open(plain.storage)
    for repository in (plain, reopened):
        assert repository.config.virtual_chunk_containers is None
        assert repository.authorized_virtual_container_prefixes == set()
    memory = icefloe.Repository.create(icefloe.in_memory_storage())
    ingest(None, memory, paths[0])
    with pytest.raises(JobFailedError, match="no virtual chunk container matches"):
        virtualize(None, plain, paths, group="virtual")


def test_copying_authorizes_a_container_without_credentials(folder: Path, tmp_path: Path) -> None:
    paths = write_files(folder, 2)
    create(tmp_path / "repo", folder).save_config()
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    ingest(None, repository, paths)
    assert_same(dataset(repository), files_dataset(paths))


def test_copying_authorizes_no_other_server(plain: icefloe.Repository) -> None:
    """A repository could name a server that would receive requests signed by the reader."""
    config = icefloe.RepositoryConfig()
    for prefix, endpoint in (("s3://a/", "https://evil.example"), ("s3://b/", None)):
        store = icefloe.s3_store(region="us-east-1", endpoint_url=endpoint)
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    repository = plain.reopen(config)
    covered = cover_sources(repository, ["s3://a/x.nc", "s3://b/*.nc", "gs://c/x.nc"])
    assert covered.authorized_virtual_container_prefixes == {"s3://b/", "gs://c/"}


def test_a_repository_may_be_a_path_or_a_url(
    folder: Path, plain: icefloe.Repository, tmp_path: Path
) -> None:
    paths = write_files(folder, 2)
    place = tmp_path / "plain"
    ingest(None, place, paths[:1])
    append(None, str(place), paths)
    rechunk(None, place.as_uri(), "t2m", {"time": 4})
    compact(None, place)
    materialize(None, place)
    export(None, place, tmp_path / "exported.zarr")
    assert_same(dataset(plain), files_dataset(paths))
    with pytest.raises(icefloe.RepositoryNotFoundError, match=r"open_repository\(…, create=True"):
        ingest(None, tmp_path / "absent", paths)
    assert not (tmp_path / "absent").exists()


def test_swapped_arguments_are_refused(
    folder: Path, plain: icefloe.Repository, tmp_path: Path
) -> None:
    """The error names the right order."""
    paths = write_files(folder, 1)
    order = "the arguments are (spark, repository, sources, …), where spark is a Spark session"
    swapped: list[tuple[tuple[Any, ...], str]] = [
        ((plain, None, paths), "the first argument is a Repository, not a Spark session"),
        ((str(tmp_path / "plain"), None, paths), "the first argument is a str, not"),
        ((None, paths, plain), "sources is a repository"),
        ((None, None, paths), "repository is None, not a repository, a directory or a URL"),
        ((None, paths, str(tmp_path / "plain")), "repository is a list"),
        ((None, str(paths[0]), str(tmp_path / "plain")), "sources, .*, is a repository, but"),
    ]
    for job in (ingest, virtualize, append):
        for arguments, reason in swapped:
            with pytest.raises(icefloe.InvalidInputError, match=f"{reason}.*{re.escape(order)}"):
                job(*arguments)
    with pytest.raises(icefloe.InvalidInputError, match=r"arguments are \(spark, repository, …\)"):
        rechunk(plain, "t2m", {"time": 4})  # type: ignore[arg-type, dict-item]
