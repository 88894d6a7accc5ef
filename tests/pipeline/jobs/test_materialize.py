"""Materializing: virtual chunks become native, byte for byte, without their files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.pipeline.jobs.materialize import materialize
from icefloe.pipeline.report import JobFailedError, Plan, Report
from support.array_repositories import array, chunk_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

VALUES = np.random.default_rng(0).integers(0, 99, 12 * 200).astype("i4")


@pytest.fixture
def virtual(tmp_path: Path) -> icefloe.Repository:
    """Create a repository with twelve virtual chunks in two files, and a native array."""
    (tmp_path / "data").mkdir()
    names = ("one.bin", "two.bin")
    for name, part in zip(names, np.split(VALUES, 2), strict=True):
        (tmp_path / "data" / name).write_bytes(b"head" + part.tobytes())
    prefix = f"file://{tmp_path}/data/"
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    )
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "repo")),
        config,
        {prefix: icefloe.Credentials.LocalFileSystemAccess()},
    )
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("v", shape=(2400,), chunks=(200,), dtype="i4", compressors=None)
    for chunk in range(12):
        location = prefix + names[chunk // 6]
        offset = 4 + chunk % 6 * 800
        session.store.set_virtual_ref(f"v/c/{chunk}", location, offset=offset, length=800)
    group.create_array("n", shape=(5,), dtype="i4")[:] = 7
    session.commit("virtual")
    return repository


def done(answer: Plan | Report) -> Report:
    assert isinstance(answer, Report)
    return answer


def test_bytes_stay_and_files_can_go(virtual: icefloe.Repository, tmp_path: Path) -> None:
    before = chunk_bytes(virtual, "v")
    report = done(materialize(None, virtual))
    assert (report.files, report.chunks, report.bytes_written) == (2, 12, 9600)
    assert [Path(location).name for location in report.released] == ["one.bin", "two.bin"]
    for file in (tmp_path / "data").iterdir():
        file.unlink()
    assert chunk_bytes(virtual, "v") == before
    np.testing.assert_array_equal(array(virtual, "v")[:], VALUES)
    assert virtual.readonly_session("main").all_virtual_chunk_locations() == []
    # Small chunks went into one object.
    assert len(list((tmp_path / "repo" / "chunks").iterdir())) == 1
    assert done(materialize(None, virtual)).snapshot_id is None


def test_only_some_locations(virtual: icefloe.Repository, tmp_path: Path) -> None:
    report = done(materialize(None, virtual, "v", prefix=f"file://{tmp_path}/data/one"))
    assert [Path(location).name for location in report.released] == ["one.bin"]
    left = set(virtual.readonly_session("main").all_virtual_chunk_locations())
    assert [Path(location).name for location in left] == ["two.bin"]
    np.testing.assert_array_equal(array(virtual, "v")[:], VALUES)


def test_a_file_that_other_chunks_need_is_not_released(
    virtual: icefloe.Repository, tmp_path: Path
) -> None:
    session = virtual.writable_session("main")
    zarr.open_group(session.store).create_array(
        "w", shape=(200,), chunks=(200,), dtype="i4", compressors=None
    )
    session.store.set_virtual_ref("w/c/0", f"file://{tmp_path}/data/one.bin", offset=4, length=800)
    session.commit("another array on the same file")
    report = done(materialize(None, virtual, "v"))
    assert [Path(location).name for location in report.released] == ["two.bin"]


def test_a_chunk_that_somebody_else_wrote_meanwhile_stays(
    virtual: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = icefloe.Session.merge

    def merge(self: icefloe.Session, *forks: Any, **options: Any) -> None:
        with virtual.transaction("main", message="theirs") as store:
            zarr.open_array(store, path="v")[:200] = 5
        started(self, *forks, **options)

    monkeypatch.setattr(icefloe.Session, "merge", merge)
    report = done(materialize(None, virtual))
    assert report.is_new
    found = array(virtual, "v")[:]
    assert (found[:200] == 5).all()
    np.testing.assert_array_equal(found[200:], VALUES[200:])


def test_files_that_are_gone_fail_the_job_and_are_all_named(
    virtual: icefloe.Repository, tmp_path: Path
) -> None:
    for name in ("one.bin", "two.bin"):
        (tmp_path / "data" / name).unlink()
    with pytest.raises(
        InvalidInputError, match="on_error must be one of 'raise', 'skip', not 'ignore'"
    ):
        materialize(None, virtual, on_error="ignore")  # type: ignore[arg-type]
    for on_error in ("raise", "skip"):
        with pytest.raises(JobFailedError, match="2 sources failed") as failed:
            materialize(None, virtual, on_error=on_error)
        sources = [Path(failure.source).name for failure in failed.value.failures]
        assert sources == ["one.bin", "two.bin"]
    assert len(list(virtual.ancestry(branch="main"))) == 2


def test_what_is_skipped_stays_virtual_and_is_listed(
    virtual: icefloe.Repository, tmp_path: Path
) -> None:
    (tmp_path / "data" / "two.bin").rename(tmp_path / "elsewhere")
    report = done(materialize(None, virtual, on_error="skip"))
    assert (report.chunks, report.files) == (6, 1)
    assert [Path(failure.source).name for failure in report.left_out] == ["two.bin"]
    assert [Path(location).name for location in report.released] == ["one.bin"]
    ((source, reason),) = next(virtual.ancestry(branch="main")).metadata["icefloe"]["left_out"]
    assert source.endswith("two.bin")
    assert "two.bin" in reason
    (tmp_path / "elsewhere").rename(tmp_path / "data" / "two.bin")
    np.testing.assert_array_equal(array(virtual, "v")[:], VALUES)
    assert done(materialize(None, virtual)).chunks == 6


def test_more_chunks_than_the_driver_may_hold_are_refused(
    virtual: icefloe.Repository, tmp_path: Path, files: Callable[[], set[str]]
) -> None:
    before = files()
    with pytest.raises(InvalidInputError, match=r"more than 6 chunks .*max_chunks"):
        materialize(None, virtual, max_chunks=6)
    assert files() == before
    one = f"file://{tmp_path}/data/one"
    assert done(materialize(None, virtual, prefix=one, max_chunks=6)).chunks == 6


def test_a_dry_run_writes_nothing(
    virtual: icefloe.Repository, files: Callable[[], set[str]]
) -> None:
    before = files()
    plan = materialize(None, virtual, dry_run=True)
    assert "12 virtual chunks of 2 files become native, 9.6 kB" in str(plan)
    assert files() == before
