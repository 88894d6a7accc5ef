"""Conversion between generations keeps everything that both can express."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    ReadOnlyError,
    RepositoryNotFoundError,
    StorageError,
)
from icefloe.format.generation import GENERATIONS, V1, V2, get_generation
from icefloe.format.keys import CONVERSION
from icefloe.maintenance.conversion.chunks import ChunkCopier, ChunkFiles
from icefloe.maintenance.conversion.in_place import REASON
from icefloe.maintenance.conversion.object_ids import map_id, require_distinct
from icefloe.maintenance.progress import Phase, Step
from icefloe.model.ids import ChunkId
from icefloe.model.repo_info import RepoAvailability, RepoStatus
from icefloe.pipeline import convert_repository
from icefloe.refs import open_refs
from icefloe.repository import Repository
from icefloe.storage import LocalStorage, MemoryStorage
from support import SUPPORT, warm_python
from support.converted_repositories import describe, make_repository, open_repository
from support.faulty_storage import FaultyStorage
from support.golden_repositories import Golden, every_golden
from support.histories import make_history, read_everything

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage import Storage

PAIRS = list(permutations(GENERATIONS, 2))
every_pair = pytest.mark.parametrize(
    "pair", PAIRS, ids=[f"{source}-to-{target}" for source, target in PAIRS]
)


def _get_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def _local(root: Path) -> LocalStorage:
    return LocalStorage(root, durable=False)


@every_pair
def test_every_direction(tmp_path: Path, pair: tuple[str, str]) -> None:
    """Data, attributes, history, refs and diffs are equal, and the new repository is usable."""
    source, target = pair
    archive = tmp_path / "archive"
    repository = make_repository(tmp_path / "source", archive, source)
    before = _get_files(tmp_path / "source")
    report = convert_repository(repository, _local(tmp_path / "target"), to=target)
    assert report.is_new
    assert report.num_copied_chunks == report.num_chunks > 0
    assert _get_files(tmp_path / "source") == before
    converted = open_repository(_local(tmp_path / "target"), archive)
    assert converted.generation == target
    # Divergent branches can use one number for different nodes.
    across = not get_generation(source).numbers_nodes
    found = describe(converted, report.snapshots, across=across)
    assert found == describe(repository, across=across)
    if source != "sequence" and target != "sequence":
        refs = open_refs(_local(tmp_path / "target")).refs
        assert refs.fetch_deleted_tags() == {"gone"}
        assert "gone" not in refs.fetch_tag_names()
        with pytest.raises(AlreadyExistsError, match="cannot be reused"):
            refs.create_tag("gone", refs.fetch_branch("main"))
    session = converted.writable_session("dev")
    group = zarr.open_group(session.store, mode="a")
    group.create_array("after", shape=(3,), dtype="i4")[...] = 7
    zarr.open_array(session.store, path="new", mode="r+")[0] = -1
    session.commit("after the conversion")
    store = converted.readonly_session("dev").store
    for path, expected in (("after", np.full(1, 7)), ("new", np.full(30, -1.0))):
        values = zarr.open_array(store, path=path, mode="r")[0]
        np.testing.assert_array_equal(np.atleast_1d(values), expected)


def test_around(tmp_path: Path) -> None:
    """A repository converted through all generations and back equals the first, in all parts."""
    archive = tmp_path / "archive"
    repository = make_repository(tmp_path / "0", archive, "draft")
    expected = describe(repository)
    ids = {snapshot_id: snapshot_id for snapshot_id in expected["snapshots"]}
    route = ("sequence", "v1", "v2", "v1", "sequence", "draft")
    for number, target in enumerate(route, 1):
        report = convert_repository(
            _local(tmp_path / str(number - 1)), _local(tmp_path / str(number)), to=target
        )
        ids = {first: report.snapshots[last] for first, last in ids.items()}
        converted = open_repository(_local(tmp_path / str(number)), archive)
        assert describe(converted, ids) == expected, target
    assert ids == {snapshot_id: snapshot_id for snapshot_id in ids}


@pytest.mark.parametrize("source", [name for name in GENERATIONS if name != "v1"])
def test_icechunk1_reads_v1(tmp_path: Path, icechunk1: Path, source: str) -> None:
    """Icechunk 1.x sees the data, history and diffs of a repository that was converted to v1."""
    _compare_with_icechunk(tmp_path, icechunk1, source, "v1")


@pytest.mark.parametrize("source", [name for name in GENERATIONS if name != "v2"])
def test_icechunk2_reads_v2(tmp_path: Path, icechunk2: Path, source: str) -> None:
    """Icechunk 2.x sees the data, history and diffs of a repository that was converted to v2."""
    _compare_with_icechunk(tmp_path, icechunk2, source, "v2")


def _compare_with_icechunk(tmp_path: Path, python: Path, source: str, target: str) -> None:
    archive, root = tmp_path / "archive", tmp_path / "target"
    repository = make_repository(tmp_path / "source", archive, source)
    report = convert_repository(repository, _local(root), to=target)
    script = SUPPORT / "icechunk_reader.py"
    done = warm_python.run(python, script, root, f"{archive.as_uri()}/")
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    expected = describe(repository)
    assert found["branches"] == {
        name: report.snapshots[tip] for name, tip in expected["branches"].items()
    }
    assert found["tags"] == {name: report.snapshots[tip] for name, tip in expected["tags"].items()}
    assert [entry["message"] for entry in found["ancestry"]["main"]] == [
        info.message for info in repository.ancestry(branch="main")
    ]
    assert found["snapshots"].keys() == set(report.snapshots.values())
    for old, new in report.snapshots.items():
        nodes = {
            f"/{path}": None if data is None else hashlib.sha256(data).hexdigest()
            for path, (_, data) in expected["snapshots"][old]["nodes"].items()
        }
        seen = found["snapshots"][new]
        seen.pop("(virtual locations)", None)
        assert {path: node.get("sha256") for path, node in seen.items()} == nodes


@every_golden
@pytest.mark.parametrize("target", list(GENERATIONS))
def test_golden(tmp_path: Path, golden: Golden, target: str) -> None:
    """Repositories that Icechunk wrote are converted."""
    source = f"v{golden.expected['spec_version']}"
    if source == target:
        return
    storage, memory = LocalStorage(golden.repository), MemoryStorage()
    convert_repository(storage, memory, to=target)
    converted = Repository.open(memory)
    info = next(iter(converted.ancestry(branch="main")))
    expected = golden.expected["ancestry"]["main"][0]
    assert info.message == expected["message"]
    assert info.written_at.isoformat() == expected["written_at"]
    assert dict(info.metadata) == expected["metadata"]


def test_dry_run(tmp_path: Path) -> None:
    """A dry run reports the same numbers as the conversion, and writes nothing."""
    repository, _ = make_history(tmp_path / "source", "v1")
    target = tmp_path / "target"
    plan = convert_repository(repository, _local(target), to="v2", dry_run=True)
    assert not target.exists()
    report = convert_repository(repository, _local(target), to="v2")
    assert plan.is_dry_run
    assert not plan.is_new
    for name in ("branches", "tags", "snapshots", "num_manifests", "num_chunks", "not_converted"):
        assert getattr(plan, name) == getattr(report, name)
    assert str(plan).startswith("would convert ")
    assert "24 chunk files" in str(plan)


def test_one_branch(tmp_path: Path) -> None:
    """One branch is converted with its history and the tags on it; main is at the beginning."""
    repository, ids = make_history(tmp_path / "source", "v2")
    report = convert_repository(repository, _local(tmp_path / "target"), to="v1", branch="dev")
    converted = Repository.open(_local(tmp_path / "target"))
    assert converted.list_branches() == {"main", "dev"}
    assert converted.list_tags() == {"first", "old"}
    assert converted.lookup_branch("main") == report.snapshots[ids[0]]
    expected = [info.message for info in repository.ancestry(branch="dev")]
    assert [info.message for info in converted.ancestry(branch="dev")] == expected
    assert len(report.snapshots) == len(expected)


def test_newest_snapshot(tmp_path: Path) -> None:
    """Only the newest snapshot is converted, as a child of the first."""
    repository, ids = make_history(tmp_path / "source", "v1")
    report = convert_repository(repository, _local(tmp_path / "target"), to="v2", newest=True)
    assert list(report.snapshots) == [ids[0], ids[6]]
    converted = Repository.open(_local(tmp_path / "target"))
    assert [info.id for info in converted.ancestry(branch="main")] == [ids[6], ids[0]]
    found = read_everything(converted)[ids[6]]
    assert found == read_everything(repository)[ids[6]]
    assert report.num_chunks < 24


def test_unknown_branch(tmp_path: Path) -> None:
    """A branch that does not exist raises, with the existing ones."""
    repository, _ = make_history(tmp_path / "source", "v1")
    with pytest.raises(InvalidInputError, match=r"no branch 'nope'; available: dev, main"):
        convert_repository(repository, MemoryStorage(), to="v2", branch="nope")


def test_all_problems_in_one_error(tmp_path: Path) -> None:
    """Branch names and chunk grids that v1 has no word for are listed; nothing is written."""
    repository = Repository.create(_local(tmp_path / "source"), spec_version=2)
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    document = json.loads(
        json.dumps(group.create_array("a", shape=(6,), chunks=(2,), dtype="i4").metadata.to_dict())
    )
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[4, 2]]}}
    document["chunk_grid"] = grid
    for path in ("b", "c"):
        _set(session.store, f"{path}/zarr.json", json.dumps(document).encode())
    tip = session.commit("rectilinear")
    repository.create_branch("feature/x", tip)
    repository.create_tag("größer", tip)
    target = tmp_path / "target"
    with pytest.raises(FormatError) as caught:
        convert_repository(repository, _local(target), to="v1")
    assert caught.value.kind is ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
    lines = caught.value.message.splitlines()
    assert "nothing was written. Convert only a branch" in lines[0]
    assert len(lines) == 5
    assert "  /b: a rectilinear chunk grid needs generation v2" in lines
    for name in ("'feature/x'", "'größer'", "/b: ", "/c: "):
        assert sum(name in line for line in lines) == 1
    assert not target.exists()


def test_advice_once(tmp_path: Path) -> None:
    """The advice to convert to v2 instead is given once, not for each problem."""
    repository = Repository.create(_local(tmp_path / "source"), generation="v1")
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    array = group.create_array("a", shape=(2,), dtype="i4")
    document = json.loads(json.dumps(array.metadata.to_dict()))
    document["data_type"] = {"name": "unknown_type", "configuration": {}}
    for name in ("a", "b", "c"):
        _set(session.store, f"{name}/zarr.json", json.dumps(document).encode())
    session.commit("data types without a word")
    with pytest.raises(FormatError) as caught:
        convert_repository(repository, MemoryStorage(), to="sequence")
    first, *problems = caught.value.message.splitlines()
    assert "Convert to generation v2, or only a branch" in first
    assert len(problems) == 3
    assert not any("onvert" in line for line in problems)


def test_without_pyarrow(tmp_path: Path) -> None:
    """Without pyarrow, the error is the one of opening, not a problem of each node."""
    make_history(tmp_path / "source", "v2")
    script = f"""
import sys
sys.modules["pyarrow"] = None
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline import convert_repository
try:
    convert_repository({str(tmp_path / "source")!r}, {str(tmp_path / "target")!r}, to="draft")
except InvalidInputError as error:
    assert error.kind is ErrorKind.MISSING_DEPENDENCY, error.kind
    assert "pip install 'icefloe[draft]'" in str(error), error
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "target").exists()


def _set(store: Any, key: str, data: bytes) -> None:
    from zarr.core.buffer import default_buffer_prototype  # noqa: PLC0415
    from zarr.core.sync import sync  # noqa: PLC0415

    sync(store.set(key, default_buffer_prototype().buffer.from_bytes(data)))


def test_losses_are_reported(tmp_path: Path) -> None:
    """Bookkeeping that only v2 has is named in the report."""
    repository, _ = make_history(tmp_path / "source", "v2")
    repository.set_metadata({"title": "x"})
    repository.set_feature_flag("move_node", False)
    repository.set_status(RepoStatus(RepoAvailability.read_only))
    report = convert_repository(repository, MemoryStorage(), to="v1")
    assert report.not_converted == (
        "the ops log",
        "the metadata of the repository",
        "the status read_only",
        "feature flags: move_node",
    )


def test_expired_history(tmp_path: Path) -> None:
    """The changes of expired snapshots stay in the diff since the first snapshot."""
    repository, ids = make_history(tmp_path / "source", "v2")
    before = repository.diff(from_snapshot_id=ids[0], to_snapshot_id=ids[6])
    tips = {name: repository.lookup_branch(name) for name in repository.list_branches()}
    repository.expire_snapshots(datetime.now(UTC) + timedelta(days=1))
    convert_repository(repository, _local(tmp_path / "target"), to="v1")
    converted = Repository.open(_local(tmp_path / "target"))
    assert {name: converted.lookup_branch(name) for name in tips} == tips
    assert [info.id for info in converted.ancestry(branch="main")] == [ids[6], ids[0]]
    after = converted.diff(from_snapshot_id=ids[0], to_snapshot_id=ids[6])
    assert after == before


@pytest.mark.parametrize("source", ["draft", "sequence"])
@pytest.mark.parametrize("target", ["v1", "v2"])
def test_expired_branches_share_nodes(tmp_path: Path, source: str, target: str) -> None:
    """A node whose first snapshot expired keeps one id on all branches and tags that share it."""
    repository = _make_expired_branches(tmp_path / "source", source)
    report = convert_repository(repository, _local(tmp_path / "target"), to=target)
    converted = Repository.open(_local(tmp_path / "target"))
    assert describe(converted, report.snapshots) == describe(repository)
    ids = {
        name: {str(node.path): node.id for node in snapshot.nodes}
        for name, snapshot in (
            ("main", converted.fetch_snapshot(branch="main")),
            ("dev", converted.fetch_snapshot(branch="dev")),
            ("tagged", converted.fetch_snapshot(tag="tagged")),
        )
    }
    for path in ("/a", "/static"):
        assert ids["main"][path] == ids["dev"][path] == ids["tagged"][path]
    # The two have the same number in the source.
    assert ids["main"]["/only_main"] != ids["dev"]["/only_dev"]
    for branch in ("main", "dev"):
        session = converted.writable_session(branch)
        zarr.open_array(session.store, path="static", mode="r+")[0] = 7
        session.commit("after the conversion")
        values = zarr.open_array(converted.readonly_session(branch).store, path="static")[:2]
        np.testing.assert_array_equal(values, [7, 1])


def _make_expired_branches(root: Path, generation: str) -> Repository:
    """Make two branches and a tag whose common ancestors expired, except the first snapshot."""
    repository = Repository.create(_local(root), generation=generation)
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    for name in ("a", "b/c", "static"):
        group.create_array(name, shape=(4,), chunks=(1,), dtype="i4")[...] = 1
    session.commit("data")
    _write_value(repository, "main", "b/c", 1)
    repository.create_tag("tagged", repository.lookup_branch("main"))
    _write_value(repository, "main", "b/c", 2)
    repository.create_branch("dev", repository.lookup_branch("main"))
    for branch in ("main", "dev"):
        session = repository.writable_session(branch)
        group = zarr.open_group(session.store, mode="a")
        group.create_array(f"only_{branch}", shape=(2,), chunks=(1,), dtype="i4")[...] = 2
        session.commit(f"array of {branch}")
        _write_value(repository, branch, "b/c", 3)
    repository.expire_snapshots(datetime.now(UTC) + timedelta(days=1))
    first = get_generation(generation).initial_snapshot_id
    for tip in (repository.lookup_branch("main"), repository.lookup_branch("dev")):
        assert [info.id for info in repository.ancestry(snapshot_id=tip)] == [tip, str(first)]
    return repository


def _write_value(repository: Repository, branch: str, path: str, value: int) -> None:
    session = repository.writable_session(branch)
    zarr.open_array(session.store, path=path, mode="r+")[0] = value
    session.commit(f"{path} = {value}")


class StoppedError(StorageError):
    """The error of a storage that stops."""


def _make_stopping(storage: Storage, stop_at: int) -> FaultyStorage:
    def fail(number: int, name: str, key: str) -> None:
        if number >= stop_at:
            raise StoppedError(f"{name} {key}")

    return FaultyStorage(storage, fail)


def _list_chunks(storage: Storage, generation: str) -> list[str]:
    prefix = get_generation(generation).layout.chunks.prefix
    return [info.key for info in storage.list(prefix)]


@pytest.mark.parametrize("to", [name for name in GENERATIONS if name != "v1"])
def test_interrupted_anywhere(tmp_path: Path, to: str) -> None:
    """After a failure at any request, nothing is visible, and the next run completes it."""
    archive = tmp_path / "archive"
    source = make_repository(tmp_path / "source", archive, "v1").storage
    complete = MemoryStorage()
    ids = convert_repository(source, complete, to=to).snapshots
    expected = describe(open_repository(source, archive))
    counting = _make_stopping(MemoryStorage(), 10**9)
    convert_repository(source, counting, to=to)
    num_requests = next(counting._numbers)
    assert num_requests > 30
    # All requests at the beginning and the end, and some in between.
    stops = {*range(6), *range(6, num_requests - 6, 11), *range(num_requests - 6, num_requests)}
    for stop in sorted(stops):
        memory = MemoryStorage()
        with pytest.raises(StorageError):
            convert_repository(source, _make_stopping(memory, stop), to=to)
        if stop < num_requests - 1:
            assert not Repository.exists(memory)
        report = convert_repository(source, memory, to=to)
        assert report.snapshots == ids
        assert _list_chunks(memory, to) == _list_chunks(complete, to)
    assert describe(open_repository(memory, archive), ids) == expected


@pytest.mark.parametrize("number", [0, 12, 40])
def test_killed(tmp_path: Path, number: int) -> None:
    """A process that is killed leaves nothing visible, and the next one completes it."""
    repository, _ = make_history(tmp_path / "source", "v1")
    target = tmp_path / "target"
    script = SUPPORT / "dying_converter.py"
    arguments = (tmp_path / "source", target, "draft", number)
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not Repository.exists(_local(target))
    convert_repository(repository, _local(target), to="draft")
    found = read_everything(Repository.open(_local(target)))
    assert found == read_everything(repository)


def test_interrupted_and_the_source_moved_on(tmp_path: Path) -> None:
    """The next run converts the state that the first run pinned, not later commits."""
    repository, ids = make_history(tmp_path / "source", "v1")
    memory = MemoryStorage()
    with pytest.raises(StorageError):
        convert_repository(repository, _make_stopping(memory, 40), to="v2")
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("later")
    session.commit("later")
    convert_repository(repository, memory, to="v2")
    assert Repository.open(memory).lookup_branch("main") == ids[6]


def test_interrupted_and_the_source_expired(tmp_path: Path) -> None:
    """If the recorded history is gone, the next run says what to do."""
    repository, _ = make_history(tmp_path / "source", "v1")
    memory = MemoryStorage()
    with pytest.raises(StorageError):
        convert_repository(repository, _make_stopping(memory, 40), to="v2")
    repository.expire_snapshots(datetime.now(UTC) + timedelta(days=1))
    with pytest.raises(ConflictError, match="delete the files at memory://"):
        convert_repository(repository, memory, to="v2")


def test_second_run(tmp_path: Path) -> None:
    """Once a conversion is complete, the same call changes nothing."""
    repository, _ = make_history(tmp_path / "source", "v1")
    target = tmp_path / "target"
    first = convert_repository(repository, _local(target), to="v2")
    before = _get_files(target)
    second = convert_repository(repository, _local(target), to="v2")
    assert not second.is_new
    assert second.snapshots == first.snapshots
    assert str(second).startswith("nothing to do")
    assert _get_files(target) == before


def test_record(tmp_path: Path) -> None:
    """The target has the map of snapshots, and where they come from."""
    repository, ids = make_history(tmp_path / "source", "v1")
    convert_repository(repository, _local(tmp_path / "target"), to="v2")
    record = json.loads((tmp_path / "target" / CONVERSION).read_bytes())
    assert record["source"] == (tmp_path / "source").as_uri()
    assert (record["from"], record["to"]) == ("v1", "v2")
    assert datetime.fromisoformat(record["started_at"]).tzinfo is not None
    assert record["snapshots"][ids[6]] == ids[6]
    assert record["branches"]["main"] == ids[6]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"source": 1}', b"\xff\xfe", b"[" * 100_000],
    ids=lambda content: repr(content[:10]),
)
def test_damaged_record(tmp_path: Path, content: bytes) -> None:
    """A damaged record raises `FormatError` with its name."""
    repository, _ = make_history(tmp_path / "source", "v1")
    memory = MemoryStorage()
    memory.put(CONVERSION, content)
    with pytest.raises(FormatError, match=CONVERSION):
        convert_repository(repository, memory, to="v2")


def test_target_in_use(tmp_path: Path) -> None:
    """A root with a repository, other files or another conversion is refused and unchanged."""
    repository, _ = make_history(tmp_path / "source", "v1")
    taken = tmp_path / "taken"
    Repository.create(_local(taken))
    files = tmp_path / "files"
    files.mkdir()
    (files / "notes.txt").write_text("mine")
    converted = tmp_path / "converted"
    convert_repository(repository, _local(converted), to="v2", branch="dev")
    for root, message in (
        (taken, "a repository already exists"),
        (files, "'notes.txt'"),
        (converted, "has another conversion: of branch dev"),
    ):
        before = _get_files(root)
        with pytest.raises(AlreadyExistsError, match=message):
            convert_repository(repository, _local(root), to="v2")
        assert _get_files(root) == before


@pytest.mark.parametrize("to", ["v2", "draft"])
def test_nested_target(tmp_path: Path, to: str) -> None:
    """A target inside the source, or around it, is refused and nothing is written."""
    repository, _ = make_history(tmp_path / "outer" / "source", "v1")
    before = _get_files(tmp_path)
    for target in ("outer/source/sub", "outer/source/chunks", "outer"):
        with pytest.raises(InvalidInputError, match="choose another target"):
            convert_repository(repository, _local(tmp_path / target), to=to)
    assert _get_files(tmp_path) == before


def test_open_unfinished_target(tmp_path: Path) -> None:
    """Opening the target of an unfinished conversion says how to continue it."""
    repository, _ = make_history(tmp_path / "source", "v1")
    memory = MemoryStorage()
    with pytest.raises(StorageError):
        convert_repository(repository, _make_stopping(memory, 40), to="v2")
    with pytest.raises(RepositoryNotFoundError, match="a conversion into it is unfinished"):
        Repository.open(memory)


def test_same_generation(tmp_path: Path) -> None:
    """A repository that has the generation already is refused."""
    repository, _ = make_history(tmp_path / "source", "v1")
    with pytest.raises(InvalidInputError, match="of generation v1 already"):
        convert_repository(repository, MemoryStorage(), to="v1")


def test_missing_chunks_are_listed(tmp_path: Path) -> None:
    """Chunk files that are missing in the source are named, and nothing becomes visible."""
    repository, _ = make_history(tmp_path / "source", "v1")
    names = sorted(path.name for path in (tmp_path / "source" / "chunks").glob("*"))
    shutil.rmtree(tmp_path / "source" / "chunks")
    memory = MemoryStorage()
    with pytest.raises(StorageError, match="24 chunk files could not be copied"):
        convert_repository(repository, memory, to="v2")
    assert names
    assert not Repository.exists(memory)


def test_hard_links(tmp_path: Path) -> None:
    """On one disk chunk files are linked: they have the same inode, and no bytes are copied."""
    repository, _ = make_history(tmp_path / "source", "v1")
    report = convert_repository(repository, _local(tmp_path / "target"), to="v2")
    assert report.num_transferred_bytes == 0
    for path in (tmp_path / "target" / "chunks").glob("*"):
        assert path.stat().st_ino == (tmp_path / "source" / "chunks" / path.name).stat().st_ino


def test_progress(tmp_path: Path) -> None:
    """Each phase is reported up to its end."""
    repository, _ = make_history(tmp_path / "source", "v1")
    steps: list[Step] = []
    convert_repository(repository, MemoryStorage(), to="v2", progress=steps.append)
    phases = list(dict.fromkeys(step.phase for step in steps))
    assert phases == [
        Phase.READ_SNAPSHOTS,
        Phase.READ_MANIFESTS,
        Phase.COPY_CHUNKS,
        Phase.WRITE_MANIFESTS,
        Phase.WRITE_SNAPSHOTS,
    ]
    for phase in phases:
        last = [step for step in steps if step.phase is phase][-1]
        assert last.done == last.total > 0


def test_upgrade_in_place(tmp_path: Path) -> None:
    """With the source as target, v1 becomes v2 by the upgrade, which keeps all files."""
    repository, _ = make_history(tmp_path / "source", "v1")
    before = read_everything(repository)
    report = convert_repository(repository, repository.storage, to="v2")
    assert report.in_place
    upgraded = Repository.open(repository.storage)
    assert upgraded.generation == "v2"
    assert read_everything(upgraded) == before
    assert not (tmp_path / "source" / CONVERSION).exists()


def test_downgrade_in_place(tmp_path: Path, icechunk1: Path) -> None:
    """With the source as target, v2 becomes v1: chunks stay, and Icechunk 1.x reads it."""
    archive, root = tmp_path / "archive", tmp_path / "source"
    repository = make_repository(root, archive, "v2")
    expected = describe(repository)
    chunks = sorted(path.name for path in (root / "chunks").glob("*"))
    before = _get_files(root)
    convert_repository(repository, repository.storage, to="v1", dry_run=True)
    assert _get_files(root) == before
    report = convert_repository(repository, repository.storage, to="v1")
    assert report.in_place
    converted = open_repository(repository.storage, archive)
    assert converted.generation == "v1"
    assert describe(converted) == expected
    assert sorted(path.name for path in (root / "chunks").glob("*")) == chunks
    assert not (root / "repo").exists()
    script = SUPPORT / "icechunk_reader.py"
    done = warm_python.run(icechunk1, script, root, f"{archive.as_uri()}/")
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["branches"] == expected["branches"]
    assert len(found["snapshots"]) == len(expected["snapshots"])


def test_downgrade_interrupted(tmp_path: Path) -> None:
    """After a failure at any request the repository is readable, and the next run completes it."""
    make_history(tmp_path / "source", "v2")
    expected = read_everything(Repository.open(_local(tmp_path / "source")))
    num_requests = 0
    stop = 0
    while True:
        root = tmp_path / "copy"
        shutil.copytree(tmp_path / "source", root)
        storage = _make_stopping(_local(root), stop)
        try:
            convert_repository(storage, storage, to="v1")
        except StorageError:
            pass
        else:
            break
        finally:
            num_requests = next(storage._numbers)
        assert read_everything(Repository.open(_local(root))) == expected
        generation = Repository.open(_local(root)).generation
        if generation == "v2":
            convert_repository(_local(root), _local(root), to="v1")
        converted = Repository.open(_local(root))
        assert converted.generation == "v1"
        assert read_everything(converted) == expected
        shutil.rmtree(root)
        stop += 17
    assert num_requests > 40


def test_downgrade_keeps_writers_away(tmp_path: Path) -> None:
    """During the conversion the repository is read-only; its status says why."""
    repository, _ = make_history(tmp_path / "source", "v2")
    storage = _make_stopping(_local(tmp_path / "source"), 60)
    with pytest.raises(StoppedError):
        convert_repository(storage, storage, to="v1")
    assert repository.status.limited_availability_reason == REASON
    with pytest.raises(ReadOnlyError, match="conversion to generation v1"):
        repository.writable_session("main")
    repository.set_status(RepoStatus(RepoAvailability.online))
    committed = repository.writable_session("main")
    zarr.open_group(committed.store, mode="a").create_group("given-up")
    committed.commit("goes on")


def test_downgrade_of_a_read_only_repository(tmp_path: Path) -> None:
    """A repository that its owner made read-only is not converted in place."""
    repository, _ = make_history(tmp_path / "source", "v2")
    repository.set_status(RepoStatus(RepoAvailability.read_only))
    before = _get_files(tmp_path / "source")
    with pytest.raises(ReadOnlyError):
        convert_repository(repository, repository.storage, to="v1")
    assert _get_files(tmp_path / "source") == before


def test_other_generations_not_in_place(tmp_path: Path) -> None:
    """Generations with different layouts need another root."""
    repository, _ = make_history(tmp_path / "source", "v1")
    with pytest.raises(InvalidInputError, match="choose another target"):
        convert_repository(repository, repository.storage, to="sequence")
    with pytest.raises(InvalidInputError, match="choose another target"):
        convert_repository(repository, repository.storage, to="v2", newest=True)


def test_first_snapshots_map_to_each_other() -> None:
    """Padding and truncation map the first snapshot of each generation to that of the others."""
    for source, target in PAIRS:
        first = get_generation(source).initial_snapshot_id
        expected = get_generation(target).initial_snapshot_id
        assert map_id(first, get_generation(target).id_size) == expected


def test_colliding_ids() -> None:
    """Ids that differ only in the bytes that are cut off raise before anything is written."""
    rows = np.arange(64, dtype=np.uint8).reshape(4, 16)
    require_distinct(rows, 12, "chunks")
    hostile = np.concatenate([rows, rows[2:3]])
    require_distinct(hostile, 12, "chunks")  # the same id twice
    hostile[4, 15] += 1
    require_distinct(hostile, 16, "chunks")
    with pytest.raises(FormatError, match="two chunks have ids that agree in their first 12"):
        require_distinct(hostile, 12, "chunks")


def test_files_in_batches() -> None:
    """Files are distinct, have the largest end of their references, and are split by size."""
    ids = np.array([[2] * 12, [1] * 12, [2] * 12, [3] * 12], np.uint8)
    files = ChunkFiles.merge([ChunkFiles(ids, np.array([5, 6, 7, 100], np.uint64))])
    assert files.ids[:, 0].tolist() == [1, 2, 3]
    assert files.sizes.tolist() == [6, 7, 100]
    assert [batch.sizes.tolist() for batch in files.split(13)] == [[6, 7], [100]]
    assert files.num_bytes == 113


def test_short_leftovers_are_replaced() -> None:
    """A chunk file of the target that is too short is copied again."""
    source, target = MemoryStorage(), MemoryStorage()
    ids = np.array([[1] * 12, [2] * 12], np.uint8)
    keys = [V1.layout.chunks.format_key(ChunkId(row.tobytes())) for row in ids]
    for key in keys:
        source.put(key, b"12345678")
        target.put(key, b"12345678")
    target.put(keys[1], b"12")
    copier = ChunkCopier(source, target, V1, V2, 1000)
    missing = copier.find_missing(ChunkFiles(ids, np.array([8, 8], np.uint64)))
    assert missing.ids[:, 0].tolist() == [2]
    result = copier.copy(missing)
    assert (result.num_files, result.num_bytes, result.failures) == (1, 8, ())
    assert bytes(target.get(keys[1]).data) == b"12345678"
