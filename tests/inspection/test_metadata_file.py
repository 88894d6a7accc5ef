"""Metadata files as JSON: complete, valid and streamed."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from icefloe.errors import FormatError
from icefloe.format.manifest import encode_manifest
from icefloe.inspection import describe_file, stream_json
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from icefloe.model.strings import Strings
from support.golden_repositories import Golden, every_golden

if TYPE_CHECKING:
    from collections.abc import Iterator


def inspect(data: bytes, file: str, **options: bool) -> Any:
    return json.loads("".join(stream_json(describe_file(data, file, **options))))


@every_golden
def test_every_metadata_file_is_json(golden: Golden) -> None:
    """Each metadata file of a real repository becomes JSON with its file type."""
    kinds = set()
    for path in golden.files():
        if path.parent.name != "chunks":
            kinds.add(inspect(path.read_bytes(), path.as_posix())["file_type"])
    expected = {"snapshot", "manifest", "transaction log"}
    if golden.expected["spec_version"] == 1:
        expected |= {"reference", "configuration", "tag tombstone"}
    else:
        expected |= {"repo info"}
    assert kinds == expected


def test_snapshot() -> None:
    """A snapshot shows its commit and its nodes, Zarr metadata included."""
    golden = Golden("v2-by-2.3.0")
    first = golden.expected["ids"]["first"]
    found = inspect((golden.repository / "snapshots" / first).read_bytes(), "snapshots/X")
    assert (found["id"], found["commit_message"]) == (first, "first data")
    assert found["metadata"]["deep"] == {"l": [1, "two", None]}
    nodes = {node["path"]: node for node in found["nodes"]}
    assert set(nodes) == set(golden.expected["snapshots"][first])
    split = nodes["/split_me"]
    assert split["shape"][0] == {"array_length": 40, "num_chunks": 10}
    assert split["dimension_names"] == ["y", "x", None]
    assert split["user_data"]["data_type"] == "float64"
    assert len(split["manifest_refs"]) > 1


def test_repo_info() -> None:
    """The file ``repo`` shows refs, history and the ops log with its details."""
    golden = Golden("v2-by-2.3.0")
    found = inspect((golden.repository / "repo").read_bytes(), "repo")
    assert found["branches"] == golden.expected["branches"]
    assert [update["update_type"]["type"] for update in found["latest_updates"]] == golden.expected[
        "ops"
    ]
    amended = found["latest_updates"][2]["update_type"]
    assert amended["new_snap_id"] == golden.expected["ids"]["amended"]
    assert found["config"]["inline_chunk_threshold_bytes"] == 64


def test_manifest() -> None:
    """A manifest shows every chunk reference, or only counts them."""
    golden = Golden("v1-by-1.1.21")
    described = [
        inspect(path.read_bytes(), path.name)
        for path in golden.files()
        if "manifests" in path.parts
    ]
    refs = [ref for manifest in described for array in manifest["arrays"] for ref in array["refs"]]
    assert len(refs) == sum(manifest["total_chunk_refs"] for manifest in described)
    virtual = [ref for ref in refs if "location" in ref]
    assert len(virtual) == sum(manifest["total_virtual"] for manifest in described)
    assert {"checksum_etag", "checksum_last_modified"} <= {name for ref in virtual for name in ref}
    path = next(path for path in golden.files() if "manifests" in path.parts)
    assert "refs" not in inspect(path.read_bytes(), "X", refs=False)["arrays"][0]


def test_large_manifests_are_streamed() -> None:
    """Memory does not grow with the length of the text, which is streamed in small parts."""
    rows = 20_000
    payloads = ChunkPayloads.make_virtual(
        np.zeros(rows, np.int32),
        Strings.of(["s3://bucket/file.nc"]),
        np.arange(rows, dtype=np.uint64),
        np.arange(rows, dtype=np.uint64),
    )
    coords = np.arange(rows, dtype=np.uint32).reshape(-1, 1)
    array = ArrayManifest.of(coords, payloads)
    data = encode_manifest(
        Manifest.of(ManifestId.random(), {NodeId.random(): array}), spec_version=1
    )

    def size(pieces: Iterator[str]) -> tuple[int, int]:
        total = longest = 0
        for piece in pieces:
            total, longest = total + len(piece), max(longest, len(piece))
        return total, longest

    description = describe_file(data, "manifests/X")
    tracemalloc.start()
    total, longest = size(stream_json(description))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 80 * rows
    assert longest < 300
    assert peak < total / 3


def test_values_that_json_cannot_represent() -> None:
    """Infinite numbers become strings, and bytes that are not JSON become base64."""
    text = "".join(stream_json({"a": [float("nan"), float("inf"), 1.5], "b": {}, "c": iter(())}))
    assert json.loads(text) == {"a": ["nan", "inf", 1.5], "b": {}, "c": []}


@pytest.mark.parametrize("name", ["chunks/X", "c/X", "README.md", "refs/branch.main/other.json"])
def test_other_files_are_rejected(name: str) -> None:
    """Files that are not metadata raise an error that describes metadata files."""
    with pytest.raises(FormatError, match=r"not a metadata file.*sequence and draft"):
        describe_file(b"some bytes", name)


def test_conversion() -> None:
    """The record of a conversion is shown as it is; damaged ones are refused."""
    assert inspect(b'{"from": "v1", "snapshots": {}}', "target/conversion.json") == {
        "file_type": "conversion",
        "from": "v1",
        "snapshots": {},
    }
    for data in (b"[]", b"{", b"\xff"):
        with pytest.raises(FormatError, match=r"^conversion\.json: "):
            describe_file(data, "conversion.json")
