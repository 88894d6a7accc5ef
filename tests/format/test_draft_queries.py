"""The examples of docs/query-draft-metadata.md give the right answers, without icefloe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe.format.timestamps import from_microseconds
from icefloe.model.chunk_payload import ChunkRef, InlineChunk, VirtualChunkRef
from icefloe.model.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from icefloe.model.node import (
    ArrayNodeData,
    DimensionShape,
    GroupNodeData,
    ManifestExtents,
    ManifestRef,
    NodeSnapshot,
)
from icefloe.model.path import Path as NodePath
from icefloe.model.snapshot import Snapshot
from support import zarr_documents
from support.draft_values import CODEC

GUIDE = Path(__file__).parents[2] / "docs" / "query-draft-metadata.md"
EXAMPLES = dict(
    zip(
        ("duckdb", "spark", "pandas"),
        re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL),
        strict=True,
    )
)
LOCATION = "s3://bucket/file.nc"


def make_array(path: str, number: int, shape: tuple[int, ...], refs: list[ManifestRef]) -> Any:
    data = CODEC.normalize_document(zarr_documents.array(shape), "zarr.json")
    dimensions = tuple(DimensionShape.regular(length, 1) for length in shape)
    node_data = ArrayNodeData(dimensions, None, tuple(refs))
    return NodeSnapshot(NodeId.from_number(number), NodePath(path), data, node_data)


@pytest.fixture(params=[False, True], ids=["branch", "branch and tag"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write a repository: two arrays in two inventories, one of them with rows out of use.

    The second one has a tag with the name of the branch, on another snapshot.
    """
    repository = tmp_path / "my-repository"
    for name in ("s", "i"):
        (repository / name).mkdir(parents=True)
    names = ManifestId(b"first id...."), ManifestId(b"second id...")
    refs = [ManifestRef(name, ManifestExtents(())) for name in names]
    coords = np.array([[0, 0], [0, 300], [1, 2]], np.uint32)
    native = ChunkPayloads.of([ChunkRef(ChunkId(bytes(12)), 0, length) for length in (5, 6, 7)])
    virtual = ChunkPayloads.of(
        [VirtualChunkRef(LOCATION, 0, 100), VirtualChunkRef(LOCATION, 9, 200), InlineChunk(b"abc")]
    )
    old, new = ArrayManifest(coords, native), ArrayManifest(coords, virtual)
    first = Manifest.of(names[0], {NodeId.from_number(1): old, NodeId.from_number(2): old})
    second = Manifest.of(names[1], {NodeId.from_number(2): new})
    for manifest in (first, second):
        data = CODEC.encode_manifest(manifest, None)
        (repository / "i" / f"{manifest.id}.parquet").write_bytes(data)
    group = CODEC.normalize_document(zarr_documents.group(), "zarr.json")
    nodes = (
        NodeSnapshot(NodeId.from_number(0), NodePath("/"), group, GroupNodeData()),
        make_array("/empty", 3, (), []),
        make_array("/native", 1, (2, 301), refs[:1]),
        make_array("/virtual", 2, (2, 301), refs[1:]),
    )
    snapshot = Snapshot(SnapshotId(bytes(12)), None, from_microseconds(0, ""), "", {}, nodes, (), 4)
    (repository / "s" / f"{snapshot.id}.parquet").write_bytes(CODEC.encode_snapshot(snapshot))
    main = {"name": "main", "snapshot-id": str(snapshot.id), "type": "branch"}
    tag = {"name": "main", "snapshot-id": "Z" * 19 + "0", "type": "tag"}
    state = {
        "id": "0" * 20,
        "generation": 1,
        "snapshots": [
            {
                "snapshot-id": str(snapshot.id),
                "timestamp-ms": 0,
                "structure-file": f"{snapshot.id}.parquet",
            }
        ],
        "refs": {"tag.main": tag, "branch.main": main} if request.param else {"main": main},
    }
    (repository / "state.json").write_text(json.dumps(state))
    return tmp_path


def run(example: str, folder: Path, ending: str) -> Any:
    """Run an example and return what its last lines print as JSON."""
    program = "import sys\nsys.modules['icefloe'] = None\n" + example + ending
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


LARGEST = [["/virtual", 3, 303], ["/native", 3, 18]]
MISSING: list[list[Any]] = [["/empty", 1], ["/native", 599], ["/virtual", 599]]
COORDINATES = [
    [path, coords] for path in ("/native", "/virtual") for coords in ([0, 0], [0, 300], [1, 2])
]


def test_duckdb(folder: Path) -> None:
    """The queries in DuckDB."""
    pytest.importorskip("duckdb", reason="DUCKDB IS NOT TESTED ON THIS MACHINE")
    ending = """
print(json.dumps([
    [[v if isinstance(v, str | list) else int(v) for v in row] for row in result.fetchall()]
    for result in (largest, missing, by_file, coordinates)
]))
"""
    results = run(EXAMPLES["duckdb"], folder, ending)
    by_file = [[LOCATION, 2, 300], ["0" * 20, 3, 18]]
    assert results == [LARGEST, MISSING, by_file, COORDINATES]


def test_pandas(folder: Path) -> None:
    """The queries in pandas."""
    ending = """
results = [largest.to_dict(), by_file.to_dict(), {path: len(v) for path, v in missing.items()}]
print(json.dumps([*results, missing["/native"][:2]]))
"""
    largest, by_file, missing, first = run(EXAMPLES["pandas"], folder, ending)
    assert largest == {path: num_bytes for path, _, num_bytes in LARGEST}
    assert by_file == {LOCATION: 300, "0" * 20: 18}
    assert missing == {path: count for path, count in MISSING}  # noqa: C416
    assert first == [[0, 1], [0, 2]]


def test_spark(folder: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queries in Spark, in the session of the tests."""
    monkeypatch.chdir(folder)
    lines = EXAMPLES["spark"].splitlines()
    program = "\n".join(line for line in lines if not line.startswith(("spark =", "from pyspark")))
    program = program.replace('Path("my-repository")', f"Path({str(folder / 'my-repository')!r})")
    names: dict[str, Any] = {"spark": spark}
    exec(program, names)  # noqa: S102
    rows = {
        name: [[*row] for row in names[name].collect()]
        for name in ("largest", "missing", "by_file", "coordinates")
    }
    assert [[path, count, int(size)] for path, count, size in rows["largest"]] == LARGEST
    assert rows["missing"] == MISSING
    assert [[name, int(size)] for name, _, size in rows["by_file"]] == [
        [LOCATION, 300],
        ["0" * 20, 18],
    ]
    assert rows["coordinates"] == COORDINATES
