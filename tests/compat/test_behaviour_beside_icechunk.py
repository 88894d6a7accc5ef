"""The same calls on Icechunk and icefloe, with the same outcomes.

A row of `CALLS` is a function of a `Library`. Its outcome is its value, or the error: the built-in
and public classes that it is an instance of, its kind, and whether it contains a phrase.
"""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import icechunk
import icechunk.config
import icechunk.credentials
import icechunk.dask
import icechunk.distributed
import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu

import icefloe
import icefloe.config
import icefloe.credentials
import icefloe.dask
import icefloe.distributed
from support import zarr_documents

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.servers import S3Server

_BUILT_IN = (KeyError, TypeError, ValueError)
_PUBLIC = [
    name
    for name in icechunk.__all__
    if isinstance(kind := getattr(icechunk, name), type) and issubclass(kind, Exception)
]


@dataclass(frozen=True)
class Failure:
    """What the errors of both libraries have in common."""

    classes: set[str]
    kind: str | None
    has_phrase: bool


@dataclass(frozen=True)
class Library:
    """One of the two packages, an empty folder, and an S3 server."""

    package: Any
    folder: Path
    s3: S3Server

    def make(self, spec_version: int = 2, config: Any = None, access: Any = None) -> Any:
        """Create a repository in memory, with a group ``g`` and an array ``a``."""
        repository = self.package.Repository.create(
            self.package.in_memory_storage(), config, access, spec_version=spec_version
        )
        return self.fill(repository)

    def make_on_disk(self, spec_version: int = 2) -> Any:
        """Create the same repository in the folder."""
        storage = self.package.local_filesystem_storage(str(self.folder))
        return self.fill(self.package.Repository.create(storage, spec_version=spec_version))

    def open(self, config: Any = None) -> Any:
        """Open the repository in the folder."""
        storage = self.package.local_filesystem_storage(str(self.folder))
        return self.package.Repository.open(storage, config)

    def fill(self, repository: Any) -> Any:
        session = repository.writable_session("main")
        root = zarr.create_group(session.store)
        root.create_array("a", shape=(4,), chunks=(2,), dtype="i4")[:] = 1
        root.create_group("g")
        session.commit("first")
        return repository

    def session(self) -> Any:
        return self.make().writable_session("main")

    def rearrange(self) -> Any:
        return self.make().rearrange_session("main")

    def make_container(self) -> Any:
        """Return a configuration with the container ``c``."""
        config = self.package.RepositoryConfig.default()
        store = self.package.s3_store(region="us-east-1")
        container = self.package.VirtualChunkContainer("s3://bucket/data/", store, name="c")
        config.set_virtual_chunk_container(container)
        return config

    def list_locations(self, location: str) -> Any:
        """Store a virtual chunk, and return the locations of all."""
        session = self.make(config=self.make_container()).writable_session("main")
        session.store.set_virtual_ref(
            "a/c/0", location, offset=0, length=8, validate_container=False
        )
        return session.all_virtual_chunk_locations()

    def s3_storage(self, prefix: str | None = "behaviour", **credentials: Any) -> Any:
        """Return a storage; without credentials, with those that may write."""
        key_pair = {
            "access_key_id": self.s3.access_key_id,
            "secret_access_key": self.s3.secret_access_key,
        }
        return self.package.s3_storage(
            bucket=self.s3.bucket,
            prefix=prefix,
            region="us-east-1",
            endpoint_url=self.s3.endpoint_url,
            allow_http=True,
            force_path_style=True,
            **(credentials or key_pair),
        )

    def exists(self, **credentials: Any) -> Any:
        return self.package.Repository.exists(self.s3_storage(**credentials))

    def fetch_spec_version(self, **credentials: Any) -> Any:
        return self.package.Repository.fetch_spec_version(self.s3_storage(**credentials))

    def commit(self, metadata: Any) -> Any:
        repository = self.make()
        session = repository.writable_session("main")
        session.commit("second", metadata=metadata, allow_empty=True)
        return next(iter(repository.ancestry(branch="main"))).metadata

    def open_lost(self, method: str) -> Any:
        """Open a session on a branch whose snapshot is gone."""
        tip = self.make_on_disk().lookup_branch("main")
        (self.folder / "snapshots" / tip).unlink()
        return getattr(self.open(), method)("main")


def raise_error() -> Any:
    raise RuntimeError("no credentials today")


def return_number() -> Any:
    return 5


def detect_damaged(library: Library, method: str, content: bytes) -> Any:
    """Detect a repository of version 2 whose file ``repo`` is damaged."""
    library.folder.mkdir(exist_ok=True)
    (library.folder / "repo").write_bytes(content)
    storage = library.package.local_filesystem_storage(str(library.folder))
    return getattr(library.package.Repository, method)(storage)


def save_storage_defaults(library: Library) -> Any:
    repository = library.make()
    config = library.package.RepositoryConfig.default()
    config.storage = repository.storage.default_settings()
    library.package.Repository.open(repository.storage, config).save_config()
    return library.package.Repository.fetch_config(repository.storage).storage == config.storage


def authorize(library: Library, access: Any) -> Any:
    config = library.package.RepositoryConfig.default()
    store = library.package.local_filesystem_store(str(library.folder))
    container = library.package.VirtualChunkContainer(f"file://{library.folder}/", store, name="c")
    config.set_virtual_chunk_container(container)
    prefixes = library.make(config=config, access=access).authorized_virtual_container_prefixes
    return f"file://{library.folder}/" in prefixes


def merge_another(library: Library) -> Any:
    repository = library.make()
    ours, theirs = (repository.writable_session("main") for _ in range(2))
    zarr.open_array(ours.store, path="a")[:2] = 7
    zarr.open_array(theirs.store, path="a")[2:] = 8
    ours.merge(theirs)
    return np.asarray(
        zarr.open_array(ours.store, path="a")[:]
    ).tolist(), theirs.has_uncommitted_changes


def merge_itself(library: Library) -> Any:
    session = library.session()
    zarr.open_array(session.store, path="a")[:2] = 7
    session.merge(session)
    return np.asarray(
        zarr.open_array(session.store, path="a")[:]
    ).tolist(), session.has_uncommitted_changes


def compare_stores(library: Library) -> Any:
    repository = library.make()
    ours, theirs = (repository.readonly_session("main") for _ in range(2))
    return ours.store == ours.store, ours.store == theirs.store, ours.store == 5


def set_rectilinear(library: Library) -> Any:
    grid = {"kind": "inline", "chunk_shapes": [[1, 3]]}
    document = zarr_documents.array((4,), chunk_grid={"name": "rectilinear", "configuration": grid})
    store = library.make(spec_version=1).writable_session("main").store
    asyncio.run(store.set("b/zarr.json", cpu.Buffer.from_bytes(document)))


def inspect_expired(library: Library) -> Any:
    repository = library.make()
    for number in range(3):
        session = repository.writable_session("main")
        zarr.open_array(session.store, path="a")[number] = number + 2
        tip = session.commit("more")
    repository.expire_snapshots(datetime.now(UTC))
    log = repository.inspect_transaction_log(tip)
    composite = log["synthetic_composite"]
    return (
        {name: len(value) for name, value in log.items() if isinstance(value, list)},
        [updated["chunks"] for updated in log["updated_chunks"]],
        len(composite["merged_pruned_ancestor_tx_logs"]),
        composite["missing_tx_logs"],
    )


def warn_of_total(library: Library, method: str) -> Any:
    repository = library.make()
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        total = getattr(repository, method)()
        if asyncio.iscoroutine(total):
            asyncio.run(_wait_for(total))
    return [(warning.category, method in str(warning.message)) for warning in raised]


async def _wait_for(total: Any) -> Any:
    return await total


def open_lost_session(library: Library, method: str) -> Any:
    return library.open_lost(method).read_only


def create_at(library: Library, prefix: str | None) -> Any:
    return library.package.Repository.create(library.s3_storage(prefix))


def set_headers(library: Library, headers: dict[str, str]) -> Any:
    return library.package.s3_storage(bucket="b", prefix="p", write_headers=headers)


def attribute(library: Library, labels: dict[str, str]) -> Any:
    return library.package.Attribution(**labels).client


def commit_twice(library: Library) -> Any:
    session = library.session()
    session.commit("second", allow_empty=True)
    session.commit("third")


def write_while_read_only(library: Library) -> Any:
    repository, package = library.make(), library.package
    repository.set_status(package.RepoStatus(package.RepoAvailability.read_only))
    repository.writable_session("main")


def read_location(library: Library, location: str) -> Any:
    session = library.session()
    session.store.set_virtual_ref("a/c/0", location, offset=0, length=8, validate_container=False)
    return zarr.open_array(session.store, path="a")[:]


def use_after_upgrade(library: Library) -> Any:
    repository = library.make(spec_version=1)
    library.package.upgrade_icechunk_repository(repository, dry_run=False)
    repository.writable_session("main")


def reset_with_conflict(library: Library) -> Any:
    repository = library.make()
    first = list(repository.ancestry(branch="main"))[-1].id
    repository.reset_branch("main", first, from_snapshot_id=first)


CALLS: dict[str, tuple[Callable[[Library], Any], str]] = {
    # name: call, phrase of its error
    "exists": (lambda x: x.exists(), ""),
    "fetch_spec_version": (lambda x: x.fetch_spec_version(), ""),
    "exists with wrong keys": (
        lambda x: x.exists(access_key_id="no", secret_access_key="no"),
        "InvalidAccessKeyId",
    ),
    "fetch_spec_version with wrong keys": (
        lambda x: x.fetch_spec_version(access_key_id="no", secret_access_key="no"),
        "InvalidAccessKeyId",
    ),
    "credentials raise": (lambda x: x.exists(get_credentials=raise_error), "RuntimeError"),
    "credentials are a number": (
        lambda x: x.exists(get_credentials=return_number),
        "S3StaticCredentials",
    ),
    "credentials cannot be called": (
        lambda x: x.fetch_spec_version(get_credentials=5),
        "object is not callable",
    ),
    "access is a value": (
        lambda x: [
            isinstance(access, kind)
            for access, kind in (
                (x.package.credentials.HttpAccess, x.package.Credentials.HttpAccess),
                (
                    x.package.credentials.LocalFileSystemAccess,
                    x.package.Credentials.LocalFileSystemAccess,
                ),
            )
        ],
        "",
    ),
    "access is not called": (lambda x: x.package.credentials.HttpAccess(), ""),
    "containers_credentials": (
        lambda x: [
            type(access).__name__
            for access in x.package.containers_credentials(
                {
                    "https://h/": x.package.credentials.HttpAccess,
                    "file:///a/": x.package.credentials.LocalFileSystemAccess,
                }
            ).values()
        ],
        "",
    ),
    "authorize with a value": (
        lambda x: authorize(
            x, {f"file://{x.folder}/": x.package.credentials.LocalFileSystemAccess}
        ),
        "",
    ),
    "authorize no container": (
        lambda x: authorize(x, {"https://h/": x.package.credentials.HttpAccess}),
        "",
    ),
    "enumerations are integers": (
        lambda x: [
            *(kind == number for number, kind in enumerate(chunk_types(x.package))),
            x.package.CompressionAlgorithm() == x.package.CompressionAlgorithm.Zstd == 0,
            x.package.ChunkType.native == "native",
        ],
        "",
    ),
    **{
        location: (partial(Library.list_locations, location=location), "")
        for location in (
            "vcc://c/x.nc",
            "vcc://c/a%20b",
            "vcc://c/a//b",
            "s3://bucket/data//x",
            "s3://bucket/data/./x",
            "s3://bucket/data/../x",
            "s3://bucket/data/x/",
            "s3://bucket/data/x%2F",
            "gs://bucket/a//b/",
            "az://container/../b",
            "vcc://unknown/x",
            "s3:///x",
            "some/path",
        )
    },
    "names of split sizes": (
        lambda x: [
            hasattr(x.package.config, name) for name in ("ManifestSplitValues", "SplitSizesDict")
        ],
        "",
    ),
    "merge another session": (merge_another, ""),
    "merge itself": (merge_itself, ""),
    "merge into a read-only session": (
        lambda x: (
            (made := x.make()).readonly_session("main").merge(made.writable_session("main").fork())
        ),
        "",
    ),
    "stores are equal": (compare_stores, ""),
    "save storage defaults": (save_storage_defaults, ""),
    **{
        f"{method} of {content!r}": (partial(detect_damaged, method=method, content=content), "")
        for method in ("exists", "fetch_spec_version")
        for content in (b"", b"junk", b"x" * 100)
    },
    **{
        f"metadata {type(value).__name__} {type(metadata).__name__}": (
            partial(Library.commit, metadata=metadata),
            "",
        )
        for metadata in (
            {"a": {1}},
            {"a": object()},
            {"a": datetime.now(UTC)},
            {"a": {"b": [1, 2.5, "c", None, True]}},
            {1: 2},
            [1],
            5,
        )
        for value in (metadata.values() if isinstance(metadata, dict) else [metadata])
    },
    **{
        f"{method} without snapshot": (partial(open_lost_session, method=method), "")
        for method in ("readonly_session", "writable_session", "rearrange_session")
    },
    "read without snapshot": (
        lambda x: zarr.open_group(x.open_lost("readonly_session").store, mode="r"),
        "object not found",
    ),
    **{
        f"create at {prefix!r}": (partial(create_at, prefix=prefix), "empty prefix")
        for prefix in (None, "", "/")
    },
    "rectilinear chunks in version 1": (
        set_rectilinear,
        "Non-regular chunk grids are not supported in icechunk format version 1",
    ),
    "inspect an expired history": (inspect_expired, ""),
    **{
        f"header {name!r}": (partial(set_headers, headers={name: "x"}), "invalid HTTP header name")
        for name in ("bad name", "", "é", "a:b")
    },
    "header value": (partial(set_headers, headers={"x": "a\nb"}), "invalid HTTP header value"),
    "container in memory": (
        lambda x: (
            x.package.VirtualChunkContainer(
                "memory://x/", x.package.ObjectStoreConfig.InMemory()
            ).url_prefix
        ),
        "",
    ),
    "merge what is no dask array": (
        lambda x: x.package.dask.session_merge_reduction(np.arange(3), split_every=None),
        "Expected a dask array",
    ),
    "merge_sessions of a session": (
        lambda x: x.package.distributed.merge_sessions(x.session()),
        "Received 'Session'",
    ),
    **{
        method: (partial(warn_of_total, method=method), "")
        for method in ("total_chunks_storage", "total_chunks_storage_async")
    },
    "list_objects": (lambda x: len(x.make().storage.list_objects()) > 0, ""),
    **{
        f"attribution {name}": (partial(attribute, labels=labels), phrase)
        for name, labels, phrase in (
            ("workload", {"workload": "a;b"}, "forbidden character"),
            ("principal", {"principal": "x" * 129}, "longer than"),
            ("client", {"client": "a b"}, "token characters"),
        )
    },
    # errors and their phrases
    "commit a fork": (lambda x: x.session().fork().commit("no"), "commits are not allowed"),
    "fork to read": (
        lambda x: x.make().readonly_session("main").fork(),
        "cannot fork a read-only session",
    ),
    "write while read-only": (write_while_read_only, "repository status is read-only"),
    "open nothing": (
        lambda x: x.package.Repository.open(x.package.in_memory_storage()),
        "the repository doesn't exist",
    ),
    "fetch_config of nothing": (
        lambda x: x.package.Repository.fetch_config(x.package.in_memory_storage()),
        "the repository doesn't exist",
    ),
    "reset with a conflict": (reset_with_conflict, "branch update conflict"),
    "commit nothing": (lambda x: x.session().commit("no"), "no changes made to the session"),
    "amend nothing": (lambda x: x.session().amend("no"), "no changes made to the session"),
    "move below itself": (
        lambda x: x.rearrange().move("/g", "/g/h"),
        "into itself or its own descendant",
    ),
    "move over a node": (lambda x: x.rearrange().move("/g", "/a"), "overwrite existing node"),
    "move into nothing": (
        lambda x: x.rearrange().move("/g", "/x/y"),
        "the destination's parent group",
    ),
    "move into an array": (
        lambda x: x.rearrange().move("/g", "/a/b"),
        "is an array, not a group",
    ),
    "move nothing": (lambda x: x.rearrange().move("/x", "/y"), "node not found"),
    "shift nothing": (lambda x: x.session().shift_array("/x", (1,)), "node not found"),
    "id of nothing": (lambda x: x.session().get_node_id("/x"), "node not found"),
}

PHRASES: dict[str, tuple[Callable[[Library], Any], str]] = {
    # Of errors whose class or kind differ on purpose, see docs/compatibility.md.
    "lookup_branch": (lambda x: x.make().lookup_branch("x"), "ref not found"),
    "lookup_tag": (lambda x: x.make().lookup_tag("x"), "ref not found"),
    "delete_branch": (lambda x: x.make().delete_branch("x"), "ref not found"),
    "delete_tag": (lambda x: x.make().delete_tag("x"), "ref not found"),
    "readonly_session": (lambda x: x.make().readonly_session("x"), "ref not found"),
    "commit twice": (commit_twice, "commits are not allowed"),
    "commit to read": (
        lambda x: x.make().readonly_session("main").commit("no"),
        "commits are not allowed",
    ),
    "no container": (partial(read_location, location="file:///x/y"), "edit the repository config"),
    "set no buffer": (
        lambda x: asyncio.run(x.session().store.set("a/c/0", 0)),
        "`value` must be a Buffer instance",
    ),
    "write to read": (
        lambda x: asyncio.run(
            x.make()
            .readonly_session("main")
            .store.set("b/zarr.json", cpu.Buffer.from_bytes(zarr_documents.group()))
        ),
        "read-only store",
    ),
    "use after an upgrade": (use_after_upgrade, "invalidated by upgrade_icechunk_repository"),
    "version in text": (
        lambda x: x.package.Repository.create(x.package.in_memory_storage(), spec_version="v1"),
        "Couldn't parse a valid version",
    ),
    "flush a fork": (lambda x: x.session().fork().flush("no"), "cannot flush a forked session"),
    "unknown version": (
        lambda x: x.package.Repository.create(x.package.in_memory_storage(), spec_version=7),
        "Unsupported version 7",
    ),
}


def chunk_types(package: Any) -> list[Any]:
    names = ("uninitialized", "native", "virtual", "inline")
    return [getattr(package.ChunkType, name) for name in names]


def run(package: Any, call: Callable[[Library], Any], folder: Path, s3: S3Server) -> Any:
    """Return the value of a call, or its error."""
    folder.mkdir()
    try:
        return call(Library(package, folder, s3))
    except Exception as error:  # noqa: BLE001 - errors are outcomes
        return error


def describe(package: Any, outcome: Any, phrase: str) -> Any:
    """Return what the outcomes of both libraries have in common."""
    if not isinstance(outcome, Exception):
        return outcome
    classes = {name for name in _PUBLIC if isinstance(outcome, getattr(package, name))}
    classes |= {kind.__name__ for kind in _BUILT_IN if isinstance(outcome, kind)}
    return Failure(classes, getattr(outcome, "kind", None), phrase in str(outcome))


@pytest.mark.parametrize("name", CALLS)
def test_same_outcome(name: str, tmp_path: Path, s3_server: S3Server) -> None:
    """Its classes, for an error, are at least those of Icechunk: an error can be two at once."""
    call, phrase = CALLS[name]
    theirs = run(icechunk, call, tmp_path / "theirs", s3_server)
    ours = run(icefloe, call, tmp_path / "ours", s3_server)
    expected, found = describe(icechunk, theirs, phrase), describe(icefloe, ours, phrase)
    if not isinstance(theirs, Exception):
        assert found == expected, ours
        return
    assert isinstance(ours, Exception), f"{theirs!r} is missing: {ours!r}"
    assert found.classes >= expected.classes, f"{ours!r} besides {theirs!r}"
    assert found.has_phrase, ours
    assert expected.has_phrase, theirs
    if expected.kind not in {None, "object-store"}:  # ours is more specific than the latter
        assert found.kind == expected.kind


@pytest.mark.parametrize("name", PHRASES)
def test_same_phrase(name: str, tmp_path: Path, s3_server: S3Server) -> None:
    call, phrase = PHRASES[name]
    for package in (icechunk, icefloe):
        error = run(package, call, tmp_path / package.__name__, s3_server)
        assert isinstance(error, Exception)
        assert phrase in str(error), error
