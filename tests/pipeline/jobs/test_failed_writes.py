"""A repository that cannot be written fails a job; ``on_error="skip"`` is only about sources."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe.pipeline import JobFailedError, ingest, materialize, virtualize
from support.faulty_storage import FaultyStorage
from support.netcdf_files import create, damage, write_file, write_files

if TYPE_CHECKING:
    from pathlib import Path


def open_full(repository: icefloe.Repository, folder: Path, prefix: str, count: int) -> Any:
    """Open a repository on a disk that is full after ``count`` files below a prefix."""
    written: Counter[str] = Counter()

    def fail(_: int, name: str, key: str) -> None:
        if name.startswith("put") and key.startswith(prefix):
            written[prefix] += 1
            if written[prefix] > count:
                raise icefloe.StorageError(f"{key}: no space left", kind=icefloe.ErrorKind.IO)

    return icefloe.Repository.open(
        FaultyStorage(repository.storage, fail),
        authorize_virtual_chunk_access={
            f"{folder.as_uri()}/": icefloe.Credentials.LocalFileSystemAccess()
        },
    )


@pytest.mark.parametrize(
    "case",
    [
        (virtualize, "chunks/", 1),  # references of parsed files, of the second task
        (virtualize, "manifests/", 0),
        (ingest, "chunks/", 1),
        (ingest, "chunks/", 4),  # chunks, after references of two tasks, and coordinates
        (ingest, "manifests/", 0),
    ],
)
def test_no_file_is_left_out(
    case: tuple[Any, str, int], tmp_path: Path, folder: Path, read: Counter[Any]
) -> None:
    """The error names the repository once, and no file is read again to find a damaged one."""
    job, prefix, count = case
    repository = create(tmp_path / "repo", folder)
    paths = write_files(folder)
    with pytest.raises(JobFailedError) as caught:
        job(None, open_full(repository, folder, prefix, count), paths, on_error="skip")
    (failure,) = caught.value.failures
    assert failure.source == f"writing to {repository.storage.url}"
    assert "no space left" in failure.reason
    assert "check the permissions and the free space of the repository" in str(caught.value)
    assert len(list(repository.ancestry(branch="main"))) == 1
    assert set(read.values()) <= {1}


def write_months(folder: Path) -> list[Path]:
    """Write files whose chunks do not share a grid, so that they are copied one by one."""
    days = (0, 31), (31, 29), (60, 31)
    return [
        write_file(folder / f"month-{first:02}.nc", first, count, chunks=(count, 6, 8))
        for first, count in days
    ]


def test_no_file_is_left_out_when_its_intermediate_copy_fails(tmp_path: Path, folder: Path) -> None:
    """Unlike a file whose chunk is damaged, which only then is left out."""
    repository = create(tmp_path / "repo", folder)
    paths = write_months(folder)
    full = open_full(repository, folder, "chunks/", 4)  # after references and coordinates
    with pytest.raises(JobFailedError, match="writing to"):
        ingest(None, full, paths, on_error="skip")
    damage(paths[2], "t2m")
    report = ingest(None, repository, paths, on_error="skip")
    assert [failure.source for failure in report.left_out] == [paths[2].as_uri()]  # type: ignore[union-attr]


def test_materialize_leaves_no_file_out(tmp_path: Path, folder: Path) -> None:
    repository = create(tmp_path / "repo", folder)
    virtualize(None, repository, write_files(folder))
    with pytest.raises(JobFailedError, match="writing to"):
        materialize(None, open_full(repository, folder, "chunks/", 0), on_error="skip")
    assert len(list(repository.ancestry(branch="main"))) == 2
