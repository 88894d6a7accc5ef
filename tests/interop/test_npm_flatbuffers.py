"""The npm package flatbuffers, which web viewers use, reads what is written, as it does Icechunk's.

It supports fewer combinations of FlexBuffers types and widths than the format allows, and viewers
do not decompress locations.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import zarr

from icefloe import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    VirtualChunkSpec,
    local_filesystem_storage,
    local_filesystem_store,
)
from icefloe.format import flexbuffers
from icefloe.format.envelope import FileType, unpack
from support import SUPPORT

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = SUPPORT / "npm_flatbuffers.js"
VALUES: list[Any] = [
    *(0.5, 0.1, 1e300, -1, 300, 2**31, "text", True, None, [], {}),
    *([0.5, 1.5], [0.1, 0.2], [0.1, 0.2, 0.3]),
    *([1, 2], [1, -2, 300], [True, False], [None, None], [1, 0.5]),
    *(["a", "b"], ["a"] * 300, [1, "x", None], {"x": 0.5, "y": [0.1, 0.2]}),
    *({"b": [1, 2], "a": {"b": "x", "z": 2}}, [{"a": 1}, {"a": 2}], {"é": "é"}),
]

Read: TypeAlias = Callable[[str, bytes], Any]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Return a function that reads bytes with the package."""
    folder = tmp_path_factory.mktemp("npm")
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"NPM'S FLATBUFFERS IS NOT TESTED ON THIS MACHINE: there is no {program}")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", f"--prefix={folder}"]
    done = subprocess.run(
        [*install, "flatbuffers@25.9.23"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"NPM'S FLATBUFFERS IS NOT TESTED ON THIS MACHINE: {done.stderr[-200:]}")
    environment = os.environ | {"NODE_PATH": str(folder / "node_modules")}

    def run(kind: str, data: bytes) -> Any:
        file = folder / "data"
        file.write_bytes(data)
        done = subprocess.run(
            ["node", SCRIPT, kind, file],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value!r:.30}")
def test_values_of_commit_metadata(read: Read, value: Any) -> None:
    assert read("flexbuffers", flexbuffers.dumps(value)) == value


def test_the_bytes_of_commit_metadata_are_those_of_icechunk(
    icechunk2: Path, tmp_path: Path
) -> None:
    """Also for values of which the package can read neither, such as long lists of floats."""
    values = [
        *VALUES,
        *([0.5, 0.1, 0.2, 0.3], [0.1] * 7, [0.5] * 300, [[0.1], [0.2, 0.5]], [-1, -2, -3, -4, -5]),
        *({"a": 0.1, "b": "x"}, [0.1, "x"], [2**40, 1, "x"], 2**63, -(2**63)),
    ]
    program = """
        import icechunk, json, sys, zarr
        folder, values = sys.argv[1], json.loads(sys.argv[2])
        storage = icechunk.local_filesystem_storage(folder)
        session = icechunk.Repository.create(storage, spec_version=2).writable_session("main")
        zarr.create_group(session.store)
        print(session.commit("m", metadata={f"{i:03}": value for i, value in enumerate(values)}))
    """
    done = subprocess.run(
        [icechunk2, "-c", textwrap.dedent(program), tmp_path / "repo", json.dumps(values)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    file = tmp_path / "repo" / "snapshots" / done.stdout.strip()
    _, body = unpack(file.read_bytes(), FileType.SNAPSHOT, "file")
    assert [value for value in values if flexbuffers.dumps(value) not in body] == []


@pytest.mark.parametrize("chunk_counts", [(1,), (999,), (400, 400, 400), (2, 998)])
def test_locations_of_arrays_that_share_a_manifest(
    read: Read, tmp_path: Path, chunk_counts: tuple[int, ...]
) -> None:
    """No array has the 1000 locations from which on Icechunk compresses them."""
    prefix = f"file://{tmp_path}/data/"
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(
        VirtualChunkContainer(prefix, local_filesystem_store(str(tmp_path)))
    )
    repository = Repository.create(
        local_filesystem_storage(str(tmp_path / "repo")), config=config, spec_version=2
    )
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    expected = []
    for number, count in enumerate(chunk_counts):
        group.create_array(f"a{number}", shape=(count,), chunks=(1,), dtype="i1")
        locations = [f"{prefix}{number}-{index}" for index in range(count)]
        expected += locations
        specs = [VirtualChunkSpec([i], location, 0, 1) for i, location in enumerate(locations)]
        session.store.set_virtual_refs(f"a{number}", specs, validate_containers=False)
    session.commit("references")
    found = []
    for file in (tmp_path / "repo" / "manifests").iterdir():
        _, body = unpack(file.read_bytes(), FileType.MANIFEST, file.name)
        found += read("locations", body)
    assert sorted(found) == sorted(expected)
