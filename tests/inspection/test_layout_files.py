"""Files of the generations draft and sequence as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icefloe.format.generation import get_generation
from icefloe.inspection import describe_layout_file, stream_json
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from support.generations import OLDER
from support.repository_damage import list_metadata, make_files


def inspect(generation: str, key: str) -> Any:
    files = make_files(generation)
    description = describe_layout_file(
        files[key], key, refs=True, read_file=lambda file: files[file]
    )
    return None if description is None else json.loads("".join(stream_json(description)))


def open_repository(generation: str) -> Repository:
    storage = MemoryStorage()
    for key, data in make_files(generation).items():
        storage.put(key, data)
    return Repository.open(storage)


@pytest.mark.parametrize("generation", OLDER)
def test_every_metadata_file_is_json(generation: str) -> None:
    """Each metadata file but ``config.yaml`` becomes JSON with its file type."""
    found = {key: inspect(generation, key) for key in list_metadata(generation)}
    assert [key for key, value in found.items() if value is None] == ["config.yaml"]
    kinds = {value["file_type"] for value in found.values() if value is not None}
    ref = "state" if generation == "draft" else "reference"
    assert kinds == {"snapshot", "manifest", "attributes", ref}


@pytest.mark.parametrize("generation", OLDER)
def test_node_ids_are_numbers(generation: str) -> None:
    """Snapshots and manifests show the numbers of nodes as their files have them."""
    repository, layout = open_repository(generation), get_generation(generation).layout
    tip = repository.lookup_branch("main")
    snapshot = inspect(generation, layout.snapshots.format_key(tip))
    numbers = {node["path"]: node["id"] for node in snapshot["nodes"]}
    assert sorted(numbers.values()) == list(range(len(numbers)))
    arrays = {node["id"] for node in snapshot["nodes"] if node["node_type"] == "array"}
    used = set()
    for manifest in snapshot["manifests"]:
        found = inspect(generation, layout.manifests.format_key(manifest["id"]))
        used |= {array["node_id"] for array in found["arrays"]}
        assert repository.inspect_manifest(manifest["id"])["arrays"][0]["node_id"] in used
    assert used == arrays
    nodes = repository.inspect_snapshot(tip)["nodes"]
    assert {node["path"]: node["id"] for node in nodes} == numbers
    session = repository.readonly_session("main")
    assert {path: int(session.get_node_id(path)) for path in numbers} == numbers


@pytest.mark.parametrize("generation", OLDER)
def test_changes_have_numbers(generation: str) -> None:
    """The changes of a commit show node ids as numbers."""
    repository = open_repository(generation)
    session = repository.readonly_session("main")
    numbers = {path: int(session.get_node_id(path)) for path in ("/", "/g", "/g/f")}
    moved, second, first, _ = repository.ancestry(branch="main")
    (updated,) = repository.inspect_transaction_log(second.id)["updated_chunks"]
    assert updated["node_id"] == numbers["/g/f"]
    assert set(repository.inspect_transaction_log(first.id)["new_groups"]) == {
        numbers["/"],
        numbers["/g"],
    }
    assert repository.inspect_transaction_log(moved.id)["moved_nodes"]
