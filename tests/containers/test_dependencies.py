"""What a repository depends on, and who depends on a file: whether it may be deleted."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import icefloe
from icefloe.containers.dependencies import ContainerDependency, FileDependency
from icefloe.errors import InvalidInputError
from support import warm_python
from support.counting_storage import CountingStorage
from support.generations import GENERATION_NAMES
from support.referring_repositories import (
    archive_config,
    new_repository,
    session_with,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

X, Y, Z = (f"s3://archive/{name}.nc" for name in "xyz")


def refer(session: icefloe.Session, path: str, locations: Sequence[str]) -> None:
    """Let the chunks of an array be ten bytes each; an empty location leaves one as it is."""
    count = len(locations)
    offsets = np.arange(count, dtype=np.uint64) * np.uint64(10)
    session.store.set_virtual_refs_arr(
        path, (count,), locations, offsets, np.full(count, 10, np.uint64), validate_containers=False
    )


def commit(repository: icefloe.Repository, branch: str, path: str, locations: Sequence[str]) -> str:
    session = repository.writable_session(branch)
    refer(session, path, locations)
    return session.commit(f"{path}: {', '.join(filter(None, locations))}")


@pytest.fixture(params=GENERATION_NAMES)
def repository(request: pytest.FixtureRequest) -> icefloe.Repository:
    """Make a repository with an array that refers to two files, and a second that refers to one."""
    repository = new_repository(generation=request.param)
    session = session_with({"a": (3,), "b": (2,)}, repository)
    refer(session, "a", [X, X, Y])
    refer(session, "b", [X, ""])
    session.commit("first")
    return repository


def test_one_snapshot(repository: icefloe.Repository) -> None:
    """Files have counts of chunks, arrays and bytes; a range that two arrays share counts once."""
    found = repository.dependencies(branch="main")
    assert list(found.files()) == [
        FileDependency(X, "s3://archive/", 2, 2, 20),
        FileDependency(Y, "s3://archive/", 1, 1, 10),
    ]
    (container,) = found.containers
    assert container == ContainerDependency(
        "s3://archive/",
        "cold",
        is_authorized=False,
        authorization=container.authorization,
        num_files=2,
        num_chunks=3,
        num_arrays=2,
        num_bytes=30,
    )
    assert (found.num_files, found.num_chunks, found.num_arrays, found.num_bytes) == (2, 3, 2, 30)
    assert found.to_arrow().column("location").to_pylist() == found.locations() == [X, Y]


def test_all_of_history(repository: icefloe.Repository) -> None:
    """What any branch or tag has in its history counts, each range once, until it is let go."""
    first = repository.lookup_branch("main")
    commit(repository, "main", "a", [Y, Y, Y])
    repository.create_branch("dev", first)
    commit(repository, "dev", "b", ["", Z])
    assert sorted(repository.dependencies().locations()) == [X, Y, Z]
    assert sorted(repository.dependencies(branch="main").locations()) == [X, Y]
    repository.delete_branch("dev")
    assert sorted(repository.dependencies().locations()) == [X, Y]


def test_uncommitted_changes_count_for_their_session(repository: icefloe.Repository) -> None:
    """A session tells what it would need if it were committed; the repository does not know yet."""
    session = repository.writable_session("main")
    refer(session, "a", [Z, Z, Z])
    assert sorted(session.dependencies().locations()) == [X, Z]
    assert sorted(repository.dependencies().locations()) == [X, Y]


def test_deleted_chunks_and_arrays_are_no_longer_needed(repository: icefloe.Repository) -> None:
    """Deleting the last chunk in a file, or an array, ends the dependency of newer snapshots."""
    session = repository.writable_session("main")
    session.store._delete("a/c/2")
    assert session.dependencies().locations() == [X]
    session.store._delete_below("a")
    session.store._delete_below("b")
    assert session.dependencies().num_files == 0
    session.commit("gone")
    assert repr(repository.dependencies(branch="main")) == "<Dependencies: no virtual chunks>"
    assert repository.dependencies().num_files == 2


def test_may_i_delete_this_file(repository: icefloe.Repository) -> None:
    """Dependents are the snapshots, branches, tags and arrays that refer to a file."""
    first = repository.lookup_branch("main")
    assert repository.find_dependents(Z).may_delete
    second = commit(repository, "main", "a", [Y, Y, Y])
    third = commit(repository, "main", "b", [Z, Z])
    repository.create_tag("v1", second)
    found = repository.find_dependents(X)
    assert not found.may_delete
    assert [snapshot.id for snapshot in found.snapshots] == [second, first]
    assert [snapshot.arrays for snapshot in found.snapshots] == [("/b",), ("/a", "/b")]
    assert (found.branches, found.tags, found.arrays) == ((), ("v1",), ("/a", "/b"))
    everywhere = repository.find_dependents("s3://archive/")
    assert {snapshot.id for snapshot in everywhere.snapshots} == {first, second, third}
    assert everywhere.branches == ("main",)
    repository.reset_branch("main", third)
    assert repository.find_dependents(Z).branches == ("main",)
    repository.reset_branch("main", second)
    assert repository.find_dependents(Z).may_delete


def test_a_file_by_any_name() -> None:
    """A file is found by its own name where references use another, and is counted as one."""
    repository = new_repository()
    session = session_with({"a": (3,)}, repository)
    refer(session, "a", ["vcc://cold/x.nc", "s3://archive/%78.nc", X])
    session.commit("three names")
    assert list(repository.dependencies().files()) == [FileDependency(X, "s3://archive/", 3, 1, 30)]
    for name in (X, "vcc://cold/x.nc", "S3://archive/x.nc", "s3://archive/x.nc?part=1"):
        assert not repository.find_dependents(name).may_delete, name
    assert repository.find_dependents("s3://archive/x.nc2").may_delete
    assert repository.find_dependents("s3://archive/x.nc/").may_delete
    with pytest.raises(InvalidInputError):
        repository.find_dependents("x.nc")


def test_needed_containers() -> None:
    """Lists the containers that are needed and unauthorized, without reading virtual data."""
    web = icefloe.VirtualChunkContainer("https://example.invalid/", icefloe.http_store())
    unused = icefloe.VirtualChunkContainer("gs://unused/", icefloe.gcs_store())
    config = archive_config(web, unused)
    storage = icefloe.in_memory_storage()
    repository = new_repository(storage, config)
    session = session_with({"a": (3,)}, repository)
    refer(session, "a", [X, "https://example.invalid/x", "models://other/x"])
    session.commit("three places")
    found = repository.dependencies()
    assert {container.url_prefix for container in found.containers} == {
        "s3://archive/",
        "https://example.invalid/",
        None,
    }
    assert [container.url_prefix for container in found.unauthorized] == [
        "https://example.invalid/",
        "s3://archive/",
    ]
    assert found.num_files_without_container == 1
    opened = repository.reopen(
        authorize_virtual_chunk_access={
            "https://example.invalid/": icefloe.Credentials.HttpAccess()
        }
    )
    assert [container.url_prefix for container in opened.dependencies().unauthorized] == [
        "s3://archive/"
    ]


def test_every_manifest_is_read_once() -> None:
    """However many snapshots share a manifest, it is fetched once."""
    counting = CountingStorage(icefloe.in_memory_storage())
    repository = new_repository(counting)
    session = session_with({"a": (2,), "b": (2,)}, repository)
    refer(session, "a", [X, Y])
    session.commit("first")
    for number in range(5):
        commit(repository, "main", "b", [f"s3://archive/{number}", X])
    again = icefloe.Repository.open(counting)
    counting.forget()
    assert again.dependencies().num_files == 7
    manifests = [call.key for call in counting.calls if call.key.startswith("manifests/")]
    assert len(manifests) == len(set(manifests)) == 6


def test_short_to_look_at(repository: icefloe.Repository) -> None:
    """What is shown is short, in a terminal and in a notebook, however much there is."""
    found = repository.dependencies()
    assert repr(found) == (
        "<Dependencies: 2 files in 1 container, 3 chunks of 2 arrays, 30 B; "
        "1 container not authorized>"
    )
    assert str(found).splitlines()[1] == (
        "  s3://archive/ (cold): 2 files, 3 chunks of 2 arrays, 30 B, not authorized"
    )
    assert "s3://archive/ (cold)" in found._repr_html_()
    dependents = repository.find_dependents(X)
    assert repr(dependents) == f"<Dependents of {X}: 1 snapshot, 2 arrays>"
    assert "[main] first: /a, /b" in str(dependents)
    assert "<code" in dependents._repr_html_()
    assert "it may be deleted" in repr(repository.find_dependents(Z))


def test_many_files_and_manifests() -> None:
    """Counts are right where they come from many manifests, compared with plain Python."""
    sizes = {
        icefloe.ManifestSplitCondition.AnyArray(): {icefloe.ManifestSplitDimCondition.Any(): 100}
    }
    config = archive_config()
    config.manifest = icefloe.ManifestConfig(
        splitting=icefloe.ManifestSplittingConfig.from_dict(sizes)
    )
    repository = new_repository(config=config)
    session = session_with({"a": (1000,), "b": (1000,)}, repository)
    random = np.random.default_rng(0)
    expected: dict[str, tuple[set[tuple[int, int]], set[str]]] = {}
    for path in ("a", "b"):
        offsets, lengths = random.integers(0, 3, 1000), random.integers(1, 3, 1000)
        names = [f"s3://archive/{number}" for number in random.integers(0, 50, 1000)]
        for name, offset, length in zip(names, offsets.tolist(), lengths.tolist(), strict=True):
            ranges, arrays = expected.setdefault(name, (set(), set()))
            ranges.add((offset, length))
            arrays.add(path)
        session.store.set_virtual_refs_arr(path, (1000,), names, offsets, lengths)
    session.commit("many")
    for found in (repository.dependencies(), repository.dependencies(branch="main")):
        assert {
            file.location: (file.num_chunks, file.num_arrays, file.num_bytes)
            for file in found.files()
        } == {
            name: (len(ranges), len(arrays), sum(length for _, length in ranges))
            for name, (ranges, arrays) in expected.items()
        }


def icefloe_command(*arguments: str | Path, code: int = 0) -> str:
    done = warm_python.run(sys.executable, "-c", "from icefloe.cli import main; main()", *arguments)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_commands(tmp_path: Path) -> None:
    """The command line tells dependencies, dependents and locations, for people and programs."""
    repository = new_repository(icefloe.local_filesystem_storage(str(tmp_path)))
    session = session_with({"a": (2,), "b": (2,)}, repository)
    refer(session, "a", [X, Y])
    refer(session, "b", [X, "models://nowhere/x"])
    snapshot = session.commit("first")
    shown = icefloe_command("dependencies", tmp_path).splitlines()
    assert " ".join(shown[1].split()) == "s3://archive/ (cold) 2 2 2 20 B not authorized"
    assert shown[2].startswith("in no container")
    described: Any = json.loads(icefloe_command("dependencies", tmp_path, "--files", "--json"))
    assert described["num_files"] == len(described["files"]) == 3
    assert described["containers"][0]["url_prefix"] == "s3://archive/"
    of_first = icefloe_command("dependencies", tmp_path, "--files", "--ref", "1CECHNKREP0F1RSTCMT0")
    assert of_first == "location\tchunks\tarrays\tbytes\n"
    assert snapshot in icefloe_command("dependents", tmp_path, X, code=3)
    found: Any = json.loads(icefloe_command("dependents", tmp_path, X, "--json", code=3))
    assert found["snapshots"][0]["arrays"] == ["/a", "/b"]
    assert icefloe_command("dependents", tmp_path, Z) == f"no snapshot refers to {Z}\n"
    icefloe_command("dependents", tmp_path, "nonsense", code=1)
    listed = icefloe_command("locations", tmp_path, "--container", "cold", "--array", "b")
    assert listed == f"{X}\n"
    refs: Any = json.loads(icefloe_command("locations", tmp_path, "--glob", "*/y.nc", "--json"))
    assert refs == [
        {
            "array_path": "/a",
            "index": [1],
            "location": Y,
            "offset": 10,
            "length": 10,
            "etag": None,
            "last_modified": None,
            "container": "s3://archive/",
        }
    ]
