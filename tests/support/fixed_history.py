"""Write a fixed set of repositories with a fixed clock and fixed ids, and print their digests.

Two source trees that print the same digests write the same bytes::

    PYTHONPATH=src python tests/support/fixed_history.py OUTPUT

``--content`` hashes metadata files without their compression, which depends on the zstd library.
The script uses public names of icefloe only, apart from `icefloe.model.ids.ObjectId`, so that it
also runs on older trees.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import pkgutil
import shutil
import sys
import uuid
import warnings
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import zarr
import zstandard

import icefloe
from icefloe.model.ids import ObjectId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Repositories record the URLs of source files, so their folder is part of the fixed history.
SOURCES = Path("/tmp/icefloe-fixed-history")  # noqa: S108
# Later than any file time, so that garbage collection sees all files as old.
START = datetime(2050, 1, 1, tzinfo=UTC)
_ENVELOPE_MAGIC = "ICE🧊CHUNK".encode()
_ENVELOPE_HEADER_BYTES = 39


class _InstanceCheck(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


class FixedDatetime(datetime, metaclass=_InstanceCheck):
    """`datetime` whose clock only moves by `tick`."""

    current: ClassVar[datetime] = START

    @classmethod
    def now(cls, tz: Any = None) -> Self:
        """Return the fixed time."""
        return cls.current.astimezone(tz)  # type: ignore[return-value]

    @classmethod
    def tick(cls) -> datetime:
        """Advance the clock by a minute and return the new time."""
        cls.current += timedelta(minutes=1)
        return cls.current


tick = FixedDatetime.tick


def fix_clock_and_ids() -> None:
    """Replace the clock and the random ids of icefloe by deterministic ones."""
    counts: Counter[str] = Counter()
    lock = Lock()

    def draw(name: str, size: int) -> bytes:
        with lock:
            counts[name] += 1
            return hashlib.sha256(f"{name} {counts[name]}".encode()).digest()[:size]

    # One sequence per class: the order in which different kinds of ids are drawn does not matter.
    ObjectId.random = classmethod(lambda cls, size=None: cls(draw(cls.__name__, size or cls.SIZE)))  # type: ignore[method-assign,assignment]
    uuid.uuid4 = lambda: uuid.UUID(bytes=draw("uuid", 16), version=4)
    for module in pkgutil.walk_packages(icefloe.__path__, "icefloe."):
        with suppress(ImportError):  # optional packages
            import_module(module.name)
    for name, imported in list(sys.modules.items()):
        if name == "icefloe.storage.clock":
            continue  # compares the real clock of this machine with that of the file system
        if name.startswith("icefloe.") and getattr(imported, "datetime", None) is datetime:
            imported.datetime = FixedDatetime  # type: ignore[attr-defined]


def write_all(output: Path) -> None:
    """Write every repository of the fixed history below a folder."""
    write_versioned(output / "v1", 1)
    write_versioned(output / "v2", 2)
    write_upgraded(output / "upgraded")
    for version in (1, 2):
        write_split(output / f"split-v{version}", version)
        write_packed(output / f"packed-v{version}", version)
        write_jobs(output / f"jobs-v{version}", version)


# ------------------------------------------------------------------------------ repositories


def _create(path: Path, version: int, config: icefloe.RepositoryConfig | None = None) -> Any:
    tick()
    storage = icefloe.local_filesystem_storage(str(path))
    return icefloe.Repository.create(
        storage, config or icefloe.RepositoryConfig.default(), spec_version=version
    )


def _commit(session: Any, message: str, **options: Any) -> str:
    tick()
    return str(session.commit(message, **options))


@contextmanager
def _editing(repo: Any, message: str, branch: str = "main", **options: Any) -> Iterator[Any]:
    session = repo.writable_session(branch)
    yield session
    _commit(session, message, **options)


def _array(session: Any, name: str, shape: Sequence[int], chunks: Sequence[int], dtype: str) -> Any:
    return zarr.create_array(
        session.store,
        name=name,
        shape=tuple(shape),
        chunks=tuple(chunks),
        dtype=dtype,
        compressors=None,
        attributes={"about": name},
        dimension_names=[f"d{axis}" for axis in range(len(shape))],
    )


def _virtual_config() -> icefloe.RepositoryConfig:
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(
            "s3://archive/", icefloe.s3_store(region="eu-west-1"), name="archive"
        )
    )
    return config


def _refs(count: int, *, year: int) -> list[icefloe.VirtualChunkSpec]:
    when = datetime(year, 1, 1, tzinfo=UTC)
    checksums = (None, f"etag-{year}", when)
    return [
        icefloe.VirtualChunkSpec(
            index=[number],
            location=f"s3://archive/{year}/{number % 5}.nc",
            offset=1000 + 400 * number,
            length=400,
            etag_checksum=checksum if isinstance(checksum := checksums[number % 3], str) else None,
            last_updated_at_checksum=checksum if isinstance(checksum, datetime) else None,
        )
        for number in range(count)
    ]


def write_versioned(path: Path, version: int) -> None:
    """Write branches, tags, conflicts, moves, forks, and collect garbage at the end."""
    repo = _create(path, version, _virtual_config())
    with _editing(repo, "arrays", metadata={"author": "tester", "number": 7}) as session:
        zarr.create_group(session.store, attributes={"title": "a fixed history"})
        zarr.create_group(session.store, path="model/run", attributes={"run": 1})
        _array(session, "native", (64, 64), (16, 32), "f4")[:] = np.arange(4096.0).reshape(64, 64)
        _array(session, "model/run/inline", (20,), (4,), "i2")[:15] = np.arange(15)
        _array(session, "virtual", (1200,), (100,), "f4")
        session.store.set_virtual_refs("virtual", _refs(12, year=2020))
    first = repo.lookup_branch("main")
    tick()
    repo.create_tag("v1.0", first)
    tick()
    repo.create_branch("develop", first)
    with _editing(repo, "attributes and chunks", "develop") as session:
        native = zarr.open_array(session.store, path="native")
        native.attrs["units"] = "K"
        native[:16, :32] = -1
        native.resize((80, 64))
    with _editing(repo, "nodes come and go") as session:
        zarr.open_array(session.store, path="model/run/inline")[15:] = 3
        _array(session, "model/extra", (6, 6), (3, 3), "u1")[:] = 5
        session.store.set_virtual_refs("virtual", _refs(5, year=2021))
    with _editing(repo, "deleted") as session:
        del zarr.open_group(session.store)["model/extra"]
    _write_with_conflict(repo)
    _write_with_forks(repo)
    with _editing(repo, "empty", allow_empty=True):
        pass
    session = repo.rearrange_session("main")
    session.move("/model/run", "/model/renamed")
    session.move("/native", "/moved")
    _commit(session, "moved")
    with _editing(repo, "shifted and reindexed") as session:
        session.shift_array("/moved", (1, 0))
        session.reindex_array("/model/renamed/inline", lambda index: [4 - index[0]])
    if version == 2:
        _change_version_2(repo)
    tick()
    repo.create_tag("gone", repo.lookup_branch("develop"))
    tick()
    repo.delete_tag("gone")
    tick()
    repo.create_branch("short", first)
    tick()
    repo.reset_branch("short", repo.lookup_branch("develop"))
    tick()
    repo.delete_branch("short")
    _expire_and_collect(repo)


def _write_with_conflict(repo: Any) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_array(first.store, path="native")[:16, :32] = 1
    zarr.open_array(second.store, path="native")[48:, 32:] = 2
    third = repo.writable_session("main")
    zarr.open_array(third.store, path="native")[:16, :32] = 3
    _commit(first, "the first of three")
    _commit(second, "rebased", rebase_with=icefloe.ConflictDetector())
    solver = icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseOurs)
    _commit(third, "rebased with a solver", rebase_with=solver)


def _write_with_forks(repo: Any) -> None:
    session = repo.writable_session("main")
    fork = session.fork()
    other = session.fork()
    zarr.open_array(fork.store, path="native")[16:32, :32] = 4
    zarr.open_array(other.store, path="native")[32:48, :32] = 5
    session.merge(fork, other)
    _commit(session, "merged forks")


def _change_version_2(repo: Any) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="moved")[:16, :32] = 6
    tick()
    session.amend("shifted, reindexed and amended", metadata={"amended": True})
    tick()
    repo.set_metadata({"owner": "tester"})
    tick()
    repo.update_metadata({"project": "icefloe", "list": [1, 2.5, None]})
    tick()
    repo.set_status(
        icefloe.RepoStatus(
            availability=icefloe.RepoAvailability.online,
            limited_availability_reason="tests",
            set_at=FixedDatetime.current,
        )
    )
    tick()
    repo.set_feature_flag(repo.feature_flags()[0].name, setting=False)


def _expire_and_collect(repo: Any) -> None:
    cutoff = list(repo.ancestry(branch="main"))[3].written_at
    tick()
    expired = repo.expire_snapshots(older_than=cutoff)
    assert expired, "nothing expired"
    now = tick()
    summary = repo.garbage_collect(delete_object_older_than=now)
    assert summary.snapshots_deleted > 0
    with _editing(repo, "after garbage collection") as session:
        zarr.open_group(session.store).attrs["collected"] = True


def write_upgraded(path: Path) -> None:
    """Write version 1 and upgrade it to version 2."""
    repo = _create(path, 1)
    for number in range(3):
        with _editing(repo, f"commit {number}") as session:
            _array(session, f"a{number}", (8,), (2,), "f8")[:] = number
    tick()
    repo.create_tag("kept", repo.lookup_branch("main"))
    tick()
    repo.create_tag("deleted", repo.lookup_branch("main"))
    tick()
    repo.delete_tag("deleted")
    tick()
    icefloe.upgrade_icechunk_repository(repo, dry_run=False)
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(path)))
    with _editing(repo, "after the upgrade") as session:
        zarr.open_array(session.store, path="a0")[:2] = -1


def write_split(path: Path, version: int) -> None:
    """Write many references, split over manifests, and edit a few of them."""
    config = _virtual_config()
    condition = icefloe.ManifestSplitCondition
    config.manifest = icefloe.ManifestConfig(
        splitting=icefloe.ManifestSplittingConfig.from_dict(
            {
                condition.name_matches("^grid$"): {
                    icefloe.ManifestSplitDimCondition.Axis(0): 20,
                    icefloe.ManifestSplitDimCondition.DimensionName("d1"): 50,
                },
                condition.AnyArray(): {icefloe.ManifestSplitDimCondition.Any(): 1000},
            }
        )
    )
    repo = _create(path, version, config)
    with _editing(repo, "references") as session:
        for name in ("grid", "flat"):
            _array(session, name, (600, 800), (10, 10), "f4")
            session.store.set_virtual_refs_arr(
                name,
                chunk_grid_shape=(60, 80),
                locations=[f"s3://archive/{number // 100}.nc" for number in range(4800)],
                offsets=np.arange(4800, dtype=np.uint64) * 400,
                lengths=np.full(4800, 400, np.uint64),
                validate_containers=True,
            )
    with _editing(repo, "a few chunks") as session:
        for name in ("grid", "flat"):
            zarr.open_array(session.store, path=name)[:10, :10] = 1
            zarr.open_array(session.store, path=name)[300:310, 400:420] = 2
    with _editing(repo, "many small arrays") as session:
        for number in range(30):
            _array(session, f"small/a{number}", (4,), (2,), "i4")[:] = number
    with _editing(repo, "one of them") as session:
        zarr.open_array(session.store, path="small/a7")[:2] = 70
    config.manifest = icefloe.ManifestConfig(splitting=icefloe.ManifestSplittingConfig())
    tick()
    repo = repo.reopen(config=config)
    repo.save_config()
    tick()
    repo.rewrite_manifests("other rules", branch="main")


def write_packed(path: Path, version: int) -> None:
    """Write small chunks that are packed into shared objects."""
    config = icefloe.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 16
    config.packing = icefloe.PackingConfig(max_chunk_bytes=1000, target_object_bytes=2000)
    repo = _create(path, version, config)
    with _editing(repo, "packed") as session:
        _array(session, "packed", (100, 100), (10, 10), "u1")[:] = (
            np.arange(10000).reshape(100, 100) % 251
        )
    with _editing(repo, "changed") as session:
        zarr.open_array(session.store, path="packed")[:20, :20] = 200


# -------------------------------------------------------------------------------------- jobs


def write_sources() -> list[Path]:
    """Write three NetCDF files, a day each, always with the same bytes and times."""
    from netCDF4 import Dataset  # noqa: PLC0415

    files = []
    for day in range(3):
        files.append(file := SOURCES / f"day-{day}.nc")
        with Dataset(file, "w", format="NETCDF3_64BIT_OFFSET") as dataset:
            for name, size in (("time", None), ("lat", 4), ("lon", 8)):
                dataset.createDimension(name, size)
            dataset.title = "a day"
            time = dataset.createVariable("time", "f8", ("time",))
            time.units = f"hours since 2024-01-0{day + 1}"
            time[:] = [0.0, 12.0]
            for name, size in (("lat", 4), ("lon", 8)):
                dataset.createVariable(name, "f4", (name,))[:] = np.linspace(0, 30, size)
            values = np.arange(64, dtype="f4").reshape(2, 4, 8) + 100 * day
            dataset.createVariable("t2m", "f4", ("time", "lat", "lon"))[:] = values
            rain = dataset.createVariable("rain", "i2", ("time", "lat", "lon"), fill_value=-1)
            rain.set_auto_maskandscale(False)
            rain.scale_factor = 0.5
            rain[:] = values.astype("i2")
        moment = datetime(2024, 2, day + 1, tzinfo=UTC).timestamp()
        os.utime(file, (moment, moment))
    return files


def write_jobs(path: Path, version: int) -> None:
    """Run the jobs that write to a repository in this process."""
    from icefloe import pipeline  # noqa: PLC0415

    files = write_sources()
    container = icefloe.VirtualChunkContainer(
        f"{SOURCES.as_uri()}/", icefloe.local_filesystem_store(str(SOURCES)), name="sources"
    )
    config = icefloe.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 100
    config.set_virtual_chunk_container(container)
    tick()
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(path)),
        config,
        {container.url_prefix: icefloe.Credentials.LocalFileSystemAccess()},
        spec_version=version,
    )

    def run(job: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        tick()
        job(None, repo, *arguments, **options)

    uncompressed = [{"name": "bytes", "configuration": {"endian": "little"}}]
    ingest = {"dims": "time", "group": "copied", "chunks": {"time": 4}, "codecs": uncompressed}
    run(pipeline.ingest, files[:2], **ingest, transaction_id="ingest-1")
    run(pipeline.ingest, files[:2], **ingest, transaction_id="ingest-1")  # does nothing
    run(pipeline.append, files, dim="time", group="copied")
    run(pipeline.virtualize, files[:2], dims="time", group="virtual", metadata={"by": "tester"})
    run(pipeline.append, files, dim="time", group="virtual")
    run(pipeline.rechunk, "copied/t2m", {"time": -1, "lat": 2}, target="series")
    run(pipeline.pyramid, "copied/t2m", "levels", levels=2, dims=["lat", "lon"])
    run(pipeline.materialize, "virtual/t2m")
    run(pipeline.compact)


# ----------------------------------------------------------------------------------- digests


def list_digests(folder: Path, *, content: bool = False) -> list[str]:
    """Return a line ``digest  path`` for each file, in the order of paths."""
    lines = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        if content and data.startswith(_ENVELOPE_MAGIC):
            body = zstandard.ZstdDecompressor().decompressobj().decompress
            data = data[:_ENVELOPE_HEADER_BYTES] + body(data[_ENVELOPE_HEADER_BYTES:])
        lines.append(f"{hashlib.sha256(data).hexdigest()}  {path.relative_to(folder).as_posix()}")
    return lines


@contextmanager
def _exclusive_sources() -> Iterator[None]:
    """Hold the fixed folder of source files, which other runs of this script use too."""
    with SOURCES.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        SOURCES.mkdir(exist_ok=True)
        try:
            yield
        finally:
            shutil.rmtree(SOURCES)


def main() -> None:
    """Write the repositories to the folder of the first argument and print their digests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--content", action="store_true", help="hash metadata uncompressed")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    fix_clock_and_ids()
    # Chunks are written one by one, in order, so that each gets the same id every time.
    serial = zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})
    with serial, _exclusive_sources():
        write_all(options.output)
    sys.stdout.write("\n".join(list_digests(options.output, content=options.content)) + "\n")


if __name__ == "__main__":
    main()
