"""Source files given by names, patterns and tables, on disk and in object stores."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.pipeline.files.source_files import find_sources, find_versioned_sources
from icefloe.pipeline.files.source_record import describe_sources, read_known_sources
from icefloe.pipeline.files.source_versions import fetch_versions
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.report import Report
from support.netcdf_files import assert_same, create, dataset, files_dataset, write_files

if TYPE_CHECKING:
    from support.servers import S3Server

NAMES = ("a.nc", "b.nc", "c.txt", "deep/d.nc", "deep/er/e.nc", "odd [1].nc")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "the files"
    for name in NAMES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.fixture
def session(tmp_path: Path, folder: Path) -> icefloe.Session:
    return create(tmp_path / "repo", folder).writable_session("main")


PATTERNS = [
    ("*.nc", ["a.nc", "b.nc", "odd [1].nc"]),
    ("?.nc", ["a.nc", "b.nc"]),
    ("[ac].*", ["a.nc", "c.txt"]),
    ("[!ac].*", ["b.nc"]),
    ("deep/*.nc", ["deep/d.nc"]),
    ("**/*.nc", ["a.nc", "b.nc", "deep/d.nc", "deep/er/e.nc", "odd [1].nc"]),
    ("*/d.nc", ["deep/d.nc"]),
    ("deep?d.nc", None),
    ("*d.nc", None),
]


@pytest.mark.parametrize("pattern, expected", PATTERNS)
def test_patterns_on_disk(
    folder: Path, session: icefloe.Session, pattern: str, expected: list[str] | None
) -> None:
    for start in (str(folder), folder.as_uri()):
        if expected is None:
            with pytest.raises(InvalidInputError, match="no file matches"):
                find_sources(f"{start}/{pattern}", session)
        else:
            found = find_sources(f"{start}/{pattern}", session)
            assert found == [(folder / name).as_uri() for name in expected]


def test_names_stay_in_order_and_come_once(folder: Path, session: icefloe.Session) -> None:
    named = [folder / "b.nc", str(folder / "*.nc"), (folder / "a.nc").as_uri(), folder / "gone.nc"]
    expected = ["b.nc", "a.nc", "odd [1].nc", "gone.nc"]
    assert find_sources(named, session) == [(folder / name).as_uri() for name in expected]


def test_a_name_may_look_like_a_pattern(folder: Path, session: icefloe.Session) -> None:
    assert find_sources(folder / "odd [1].nc", session) == [(folder / "odd [1].nc").as_uri()]


def test_nothing_is_no_source(folder: Path, session: icefloe.Session) -> None:
    nothing: list[Any] = [[], pa.table({"url": pa.array([], "string")})]
    for none in nothing:
        with pytest.raises(InvalidInputError, match="sources is empty"):
            find_sources(none, session)
    patterns = [str(folder / name) for name in ("*.nc4", "*.nc", "*.h5")]
    with pytest.raises(InvalidInputError, match=r"no file matches .*\*\.nc4, .*\*\.h5"):
        find_sources(patterns, session)


@pytest.mark.parametrize("sources", [7, [7], None, [None]])
def test_what_names_nothing_is_refused(session: icefloe.Session, sources: Any) -> None:
    with pytest.raises(InvalidInputError, match="paths, URLs or patterns, or a table"):
        find_sources(sources, session)


TABLES: dict[str, Any] = {
    "pandas": lambda _, columns: pd.DataFrame(columns),
    "arrow": lambda _, columns: pa.table(columns),
    "spark": lambda spark, columns: spark.createDataFrame(
        list(zip(*columns.values(), strict=True)), f"id int, {list(columns)[-1]} string"
    ),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_sources(kind: str, request: Any, folder: Path, session: icefloe.Session) -> None:
    spark = request.getfixturevalue("spark") if kind == "spark" else None
    names = [str(folder / "b.nc"), str(folder / "a.nc")]
    table = TABLES[kind](spark, {"id": [1, 2], "path": names})
    assert find_sources(table, session) == [Path(name).as_uri() for name in names]
    with pytest.raises(InvalidInputError, match="columns id, file: rename one of them"):
        find_sources(TABLES[kind](spark, {"id": [1, 2], "file": names}), session)
    with pytest.raises(InvalidInputError, match="empty or not strings"):
        find_sources(TABLES[kind](spark, {"id": [1, 2], "url": [None, names[0]]}), session)


@pytest.mark.parametrize(
    "urls",
    [
        ["s3://bucket/a/x.nc", "s3://bucket/a/y.nc"],
        ["s3://bucket/a/x.nc", "s3://other/x.nc"],
        ["s3://bucket/a", "s3://bucket/ab"],
        ["file:///x.nc"],
        ["s3://a/x", "https://b/y"],
    ],
)
def test_what_a_commit_records_names_every_source(urls: list[str], tmp_path: Path) -> None:
    repository = create(tmp_path / "recorded", tmp_path)
    session = repository.writable_session("main")
    record = {"job": "append", "group": "/g", "sources": describe_sources(urls)}
    session.commit("work", {"icefloe": record}, allow_empty=True)
    session = repository.writable_session("main")
    assert read_known_sources(repository, session, "/g").keys() == set(urls)
    assert not read_known_sources(repository, session, "/")


@pytest.mark.parametrize("record", [[1, 2], "x", None, {}, {"prefix": 1, "names": 2}])
def test_what_is_no_record_names_no_source(record: Any, tmp_path: Path) -> None:
    """Metadata may be written by others; earlier commits are still read."""
    repository = create(tmp_path / "recorded", tmp_path)
    for job, sources in (("append", describe_sources(["s3://bucket/a.nc"])), ("ingest", record)):
        session = repository.writable_session("main")
        told = {"job": job, "group": "/", "sources": sources}
        session.commit("work", {"icefloe": told}, allow_empty=True)
    session = repository.writable_session("main")
    assert read_known_sources(repository, session, "/").keys() == {"s3://bucket/a.nc"}


def test_files_on_the_platform_of_the_repository_need_no_configuration(
    s3_server: S3Server, tmp_path: Path
) -> None:
    """Patterns are found, files parsed and chunks read with the repository's own credentials."""
    prefix = uuid.uuid4().hex
    options: dict[str, Any] = {
        "bucket": s3_server.bucket,
        "endpoint_url": s3_server.endpoint_url,
        "region": "us-east-1",
        "allow_http": True,
        "force_path_style": True,
        "access_key_id": s3_server.access_key_id,
        "secret_access_key": s3_server.secret_access_key,
    }
    files = icefloe.s3_storage(prefix=f"{prefix}/files", **options)
    paths = write_files(tmp_path / "local", 3)
    for number, path in enumerate(paths):
        files.put(f"{number % 2}/{path.name}", path.read_bytes())
    files.put("0/readme.txt", b"no file of arrays")
    storage = icefloe.s3_storage(prefix=f"{prefix}/repo", **options)
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repository = icefloe.Repository.create(storage, config)
    pattern = f"s3://{s3_server.bucket}/{prefix}/files/*/part-*.nc"
    found = virtualize(None, repository, pattern, group="virtual")
    assert isinstance(found, Report)
    assert found.files == 3
    ingest(None, repository, pattern, group="native", chunks={"time": 4})
    for group in ("virtual", "native"):
        assert_same(dataset(repository, group), files_dataset(paths))


def test_a_pattern_may_begin_at_the_root_of_a_bucket(s3_server: S3Server, tmp_path: Path) -> None:
    own = uuid.uuid4().hex
    options: dict[str, Any] = {
        "bucket": s3_server.bucket,
        "endpoint_url": s3_server.endpoint_url,
        "region": "us-east-1",
        "allow_http": True,
        "force_path_style": True,
        "access_key_id": s3_server.access_key_id,
        "secret_access_key": s3_server.secret_access_key,
    }
    bucket = icefloe.s3_storage(prefix=None, **options)
    paths = write_files(tmp_path / "local", 2)
    names = [f"{own}-0.nc", f"deep/{own}-1.nc"]
    for name, path in zip(names, paths, strict=True):
        bucket.put(name, path.read_bytes())
    repository = icefloe.Repository.create(icefloe.s3_storage(prefix=f"{own}/repo", **options))
    session = repository.readonly_session("main")
    root = f"s3://{s3_server.bucket}"
    sizes = [path.stat().st_size for path in paths]
    urls = [f"{root}/{name}" for name in names]
    every = fetch_versions(find_versioned_sources(urls, session), session)
    assert [version and version.size_bytes for version in every.values()] == sizes
    assert find_versioned_sources(f"{root}/{own}*.nc", session) == {urls[0]: every[urls[0]]}
    assert find_versioned_sources(f"{root}/**/{own}-*.nc", session) == every
    folders = find_versioned_sources(f"{root}/dee[p]", session)
    assert folders == fetch_versions(dict.fromkeys(folders), session)
    virtualize(None, repository, f"{root}/**/{own}-*.nc")
    assert_same(dataset(repository), files_dataset(paths))


def test_a_folder_is_as_large_as_what_is_in_it(folder: Path, session: icefloe.Session) -> None:
    for name in ("deep/d.nc", "deep/er/e.nc"):
        (folder / name).write_bytes(b"12345")
    found = find_versioned_sources([folder / "de*", folder / "a.nc", folder / "gone"], session)
    sizes = {folder / "deep": 10, folder / "a.nc": 0, folder / "gone": None}
    assert {
        url: version and version.size_bytes
        for url, version in fetch_versions(found, session).items()
    } == {path.as_uri(): size for path, size in sizes.items()}
    assert not (folder / "gone").exists()


def test_a_bucket_is_named_by_no_pattern(session: icefloe.Session) -> None:
    with pytest.raises(InvalidInputError, match=r"s3://a\*/b\.nc: a bucket"):
        find_sources("s3://a*/b.nc", session)
