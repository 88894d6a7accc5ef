"""Makes room in a group for steps that belong between stored steps.

References of later steps move by whole chunks, and no chunk is copied. `Replacement` then writes
the new steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.manifest import ChunkPayloads
from icefloe.pipeline.arrays.nodes import parse_path, read_arrays
from icefloe.session import contents
from icefloe.virtual import stored_group
from icefloe.virtual.agreement import Disagreement, raise_disagreements
from icefloe.virtual.append_plan import convert_to_stored_units, slice_steps
from icefloe.virtual.arrays import LoadedArray, VirtualArray
from icefloe.virtual.stored_steps import StoredSteps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.pipeline.arrays.array_document import ArrayDocument
    from icefloe.session import Session
    from icefloe.virtual.dataset import VirtualDataset


def make_room(session: Session, dataset: VirtualDataset, *, dim: str, group: str) -> None:
    """Insert the loaded arrays of a dataset into a group, and move the chunks of other arrays.

    Raises `FilesDisagreeError` if steps would be inserted within a chunk.
    """
    places = StoredSteps(session, dim=dim, group=group).find_places(dataset)
    base = stored_group.resolve_group(session, group)
    growing = {
        array.path.removeprefix(f"{base.value.rstrip('/')}/"): array
        for array in read_arrays(session, group)
        if dim in array.dimension_names
    }
    moving = {
        path: array
        for path, array in growing.items()
        if not isinstance(dataset.arrays.get(path), LoadedArray)
    }
    raise_disagreements(
        _find_unaligned(dataset.label, moving, places, dim), f"inserting into {base}"
    )
    virtual = [path for path, array in dataset.arrays.items() if isinstance(array, VirtualArray)]
    loaded = dataset.without(*virtual)
    stored = stored_group.fetch_stored_dataset(session, base, loaded)
    converted, problems = convert_to_stored_units(stored, loaded)
    raise_disagreements(problems, f"inserting into {base}")
    for path, array in growing.items():
        axis = array.dimension_names.index(dim)
        new, old = converted.arrays.get(path), stored.arrays[path]
        shape = list(array.shape)
        shape[axis] += len(places)
        document = array.with_shape(shape).to_bytes()
        contents.set_metadata(session, parse_path(array.path), document)
        if path in moving:
            _move_chunks(session, array, axis, places)
        elif isinstance(new, LoadedArray) and isinstance(old, LoadedArray):
            values = np.insert(old.values, places, new.values, axis=axis)
            region = slice_steps(axis, int(places.min()), shape[axis])
            target = stored_group.open_stored_array(session, parse_path(array.path))
            target[region] = values[region]


def _find_unaligned(
    label: str, arrays: dict[str, ArrayDocument], places: NDArray[np.int64], dim: str
) -> Iterator[Disagreement]:
    """Find arrays in which steps would be inserted within a chunk, or do not fill chunks."""
    starts, counts = np.unique(places, return_counts=True)
    for path, array in arrays.items():
        length = array.write_unit[array.dimension_names.index(dim)]
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            if start % length or count % length:
                text = (
                    f"would be inserted at step {start} along {dim} with {count} steps, but has "
                    f"chunks of {length} steps: only whole chunks can be inserted"
                )
                yield Disagreement(label, path, "insertion", text)
                break


def _move_chunks(
    session: Session, array: ArrayDocument, axis: int, places: NDArray[np.int64]
) -> None:
    """Move the chunks after each place by the steps that are inserted before them."""
    node_path = parse_path(array.path)
    parts = [*contents.fetch_chunk_refs(session, node_path)]
    if not parts:
        return
    length = array.write_unit[axis]
    coords = np.concatenate([part.coords for part in parts])
    payloads = ChunkPayloads.concatenate([part.payloads for part in parts])
    steps = coords[:, axis].astype(np.int64) * length
    shifts = np.searchsorted(np.sort(places), steps, side="right") // length
    rows = np.flatnonzero(shifts)
    moved = coords[rows].copy()
    moved[:, axis] += shifts[rows].astype(np.uint32)
    contents.delete_chunks(session, node_path, coords[rows])
    contents.set_payloads(session, node_path, moved, payloads.select_rows(rows))
