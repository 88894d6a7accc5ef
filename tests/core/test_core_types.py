"""`icefloe.core` has the documented types; ids and chunk indices refuse other values."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe import InvalidInputError, core
from icefloe.assets import Assets
from icefloe.errors import ErrorKind
from icefloe.format.generation import GENERATIONS, V2
from icefloe.storage import in_memory_storage
from support import ROOT

KINDS = [core.SnapshotId, core.ManifestId, core.ChunkId, core.AttributesId, core.NodeId]


def test_every_type_is_documented() -> None:
    """The page has each public name."""
    page = (ROOT / "docs" / "core-types.md").read_text()
    assert [name for name in core.__all__ if not re.search(rf"`{name}\b", page)] == []
    assert [name for name in core.__all__ if not hasattr(core, name)] == []


def test_the_module_is_an_attribute_of_the_package() -> None:
    """Without an import of its own; importing the package still loads nothing."""
    code = (
        "import sys, icefloe; print('numpy' in sys.modules, 'icefloe.core' in sys.modules);"
        "print(icefloe.core.ChunkIndices(1, 2))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\nChunkIndices(1, 2)\n"


@pytest.mark.parametrize("coord", [1.5, 1.0, True, np.bool_(True), -1, 2**32, "1", None, (1,)])
def test_chunk_indices_are_unsigned_integers(coord: object) -> None:
    """Everything else is refused, wherever it stands."""
    for coords in ((coord,), (0, coord), (coord, 0)):
        with pytest.raises(InvalidInputError, match="must be integers between 0 and") as raised:
            core.ChunkIndices(*coords)
        assert raised.value.kind is ErrorKind.INVALID_CHUNK_INDEX


@given(st.lists(st.integers(0, 2**32 - 1), max_size=4))
def test_chunk_indices_are_tuples(coords: list[int]) -> None:
    """Equal, hashed and ordered as tuples of plain integers, and copied as such."""
    indices = core.ChunkIndices(*np.array(coords, np.uint32))
    assert indices == tuple(coords)
    assert hash(indices) == hash(tuple(coords))
    assert all(type(coord) is int for coord in indices)
    for clone in (pickle.loads(pickle.dumps(indices)), copy.deepcopy(indices)):  # noqa: S301
        assert clone == indices
        assert type(clone) is core.ChunkIndices
    with pytest.raises(TypeError):
        indices[0] = 1  # type: ignore[index]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_ids_of_two_kinds_do_not_mix(kind: type[core.ObjectId], other: type[core.ObjectId]) -> None:
    """Neither equal nor ordered, nor parsed or made from each other."""
    left, right = kind(bytes(kind.SIZE)), other(bytes(other.SIZE))
    if kind is other:
        assert left == right
        assert kind.parse(right) is right
        return
    assert left != right
    assert len({left, right}) == 2
    with pytest.raises(TypeError):
        left < right  # noqa: B015
    with pytest.raises(InvalidInputError, match=f"is not a {kind.__name__}"):
        kind.parse(right)
    with pytest.raises(InvalidInputError, match=f"the bytes of a {kind.__name__}"):
        kind(right)  # type: ignore[arg-type]


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=GENERATIONS)
def test_keys_are_made_of_ids_of_their_kind(generation: object) -> None:
    """In all generations, for all kinds of files."""
    layout = generation.layout  # type: ignore[attr-defined]
    files = {
        core.SnapshotId: [layout.snapshots, layout.transaction_logs],
        core.ManifestId: [layout.manifests],
        core.ChunkId: [layout.chunks],
        core.AttributesId: [layout.attributes],
    }
    for kind, layouts in files.items():
        for file_kind in filter(None, layouts):
            object_id = kind.random()
            assert str(object_id) in file_kind.format_key(object_id)
            for other in KINDS:
                if other is not kind:
                    with pytest.raises(InvalidInputError, match=f"expected a {kind.__name__}"):
                        file_kind.format_key(other.random())


def test_a_file_is_fetched_by_an_id_of_its_kind() -> None:
    """Before a request is made."""
    assets = Assets(in_memory_storage(), V2)
    snapshot_id = core.SnapshotId.random()
    manifest_id = core.ManifestId(snapshot_id.raw)
    with pytest.raises(InvalidInputError, match="expected a ManifestId"):
        assets.fetch_manifest(snapshot_id)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="expected a SnapshotId"):
        assets.fetch_snapshot(manifest_id)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="expected a SnapshotId"):
        assets.fetch_transaction_log(manifest_id)  # type: ignore[arg-type]
