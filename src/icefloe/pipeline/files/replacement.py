"""Replaces the steps of files in a group by those of new versions of the files.

The new versions are combined like new files; each run of consecutive steps is then written where
its coordinates are stored. Only the chunks with these steps are written.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import numpy as np

from icefloe.pipeline.files.manifest_building import BuildManifests, place_file, take_markers
from icefloe.session import contents
from icefloe.virtual.agreement import Disagreement
from icefloe.virtual.append_plan import Placement, fetch_stored_refs, slice_steps
from icefloe.virtual.arrays import LoadedArray, VirtualArray
from icefloe.virtual.stored_group import align_with_stored, join_path, resolve_group
from icefloe.virtual.stored_steps import StoredSteps
from icefloe.virtual.writer import append as append_dataset
from icefloe.virtual.writer import write as write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.pipeline.files.file_job import CombinedFiles
    from icefloe.pipeline.files.manifest_building import Positions
    from icefloe.pipeline.files.staged_refs import ParsedFile
    from icefloe.pipeline.run import JobRun
    from icefloe.session import Session
    from icefloe.virtual.arrays import AnyArray
    from icefloe.virtual.dataset import VirtualDataset


class Span(NamedTuple):
    """Consecutive steps of combined files, from ``source``, which are stored from ``target``."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Replacement:
    """Where the steps of combined files are stored along a dimension of a group."""

    dim: str
    group: str
    steps: NDArray[np.int64]

    @classmethod
    def find(
        cls, session: Session, dataset: VirtualDataset, *, dim: str, group: str
    ) -> Replacement:
        """Find the steps of a dataset, which `StoredSteps.find_problem` accepted file by file."""
        return cls(dim, group, StoredSteps(session, dim=dim, group=group).find(dataset))

    @property
    def spans(self) -> list[Span]:
        """The runs of consecutive steps."""
        starts = [0, *(np.flatnonzero(np.diff(self.steps) != 1) + 1).tolist()]
        stops = [*starts[1:], len(self.steps)]
        return [
            Span(start, int(self.steps[start]), stop - start)
            for start, stop in zip(starts, stops, strict=True)
            if stop > start
        ]

    def write_loaded(self, session: Session, dataset: VirtualDataset) -> None:
        """Write the loaded arrays of the files, such as bounds."""
        for span in self.spans:
            append_dataset(
                _select_loaded(dataset, self.dim, span),
                session,
                dim=self.dim,
                group=self.group,
                if_present="replace",
                is_partial=True,
            )

    def write_refs(self, run: JobRun, combined: CombinedFiles) -> None:
        """Replace the chunk references of the files.

        The driver holds the references of the files that changed. References to static arrays of
        these files are replaced too: their old versions cannot be read anymore.
        """
        base = resolve_group(run.session, self.group)
        dataset = align_with_stored(run.session, base, combined.dataset, self.dim)
        combined = replace(combined, dataset=dataset)
        scratch, scratch_group = run.fork_scratch(), f"/replaced-{uuid.uuid4().hex}"
        write_dataset(dataset, scratch, group=scratch_group, validate_containers=False)
        paths = [path for path, array in dataset.arrays.items() if isinstance(array, VirtualArray)]
        targets, positions = take_markers(scratch, combined, scratch_group, paths)
        work = BuildManifests(
            run.session.connection, {path: target for path, (_, target) in targets.items()}, 0
        )
        moved = self._move(dataset, positions)
        files = [place_file(file, number, moved) for number, file in enumerate(combined.files)]
        refs = work.load_refs(files)
        for path in moved:
            array, node_path = dataset.arrays[path], join_path(base, path)
            assert isinstance(array, VirtualArray)  # noqa: S101 - only these have markers
            for span in self.spans:
                placement = Placement(self.dim, span.target, span.length, span.length)
                old = fetch_stored_refs(run.session, node_path, array, placement)
                contents.delete_chunks(run.session, node_path, old.coords)
            if path in refs:
                contents.set_payloads(
                    run.session, node_path, refs[path].coords, refs[path].payloads
                )
        for path in targets.keys() - moved.keys():
            self._write_static_refs(run.session, combined.files, work, path)

    def _move(self, dataset: VirtualDataset, positions: Positions) -> Positions:
        """Return the positions of arrays with the dimension, moved to where they are stored."""
        moved: Positions = {}
        for path, starts in positions.items():
            array = dataset.arrays[path]
            if self.dim not in array.dimension_names:
                continue
            axis = array.dimension_names.index(self.dim)
            length = (array.chunk_shape or ())[axis]
            moved[path] = {
                number: (
                    *start[:axis],
                    int(self.steps[start[axis] * length]) // length,
                    *start[axis + 1 :],
                )
                for number, start in starts.items()
            }
        return moved

    def find_unaligned(self, session: Session, dataset: VirtualDataset) -> Iterator[Disagreement]:
        """Find runs of steps that share a chunk with other steps, whose references must stay."""
        base = resolve_group(session, self.group)
        for path, array in align_with_stored(session, base, dataset, self.dim).arrays.items():
            if not isinstance(array, VirtualArray) or self.dim not in array.dimension_names:
                continue
            axis = array.dimension_names.index(self.dim)
            length = (array.chunk_shape or array.shape)[axis]
            node = contents.require_array(session, join_path(base, path))
            end = json.loads(node.user_data)["shape"][axis]
            for span in self.spans:
                stop = span.target + span.length
                if span.target % length or (stop % length and stop != end):
                    text = (
                        f"shares chunks of {length} steps with other files (steps {span.target} to "
                        f"{stop - 1}), so its references cannot replace theirs: copy the file "
                        "with virtual=False"
                    )
                    yield Disagreement(dataset.label, path, "chunks", text)
                    break

    def _write_static_refs(
        self, session: Session, files: Sequence[ParsedFile], work: BuildManifests, path: str
    ) -> None:
        """Replace the references of a static array if they refer to one of the files."""
        node_path = join_path(resolve_group(session, self.group), path)
        locations = {
            unquote(location)
            for part in contents.fetch_chunk_refs(session, node_path)
            for location in part.payloads.locations
        }
        for file in files:
            url = unquote(file.url)
            if any(location == url or location.startswith(f"{url}/") for location in locations):
                start = (0,) * len(file.dataset.arrays[path].shape)
                for refs in work.load_refs([place_file(file, 0, {path: {0: start}})]).values():
                    contents.set_payloads(session, node_path, refs.coords, refs.payloads)
                return


def separate_spans(spans: Iterable[Span], chunk_length: int) -> list[list[Span]]:
    """Distribute spans over the fewest lists, so that the spans of a list share no chunk."""
    lists: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.target):
        for other in lists:
            last = other[-1]
            if (last.target + last.length - 1) // chunk_length < span.target // chunk_length:
                other.append(span)
                break
        else:
            lists.append([span])
    return lists


def _select_loaded(dataset: VirtualDataset, dim: str, span: Span) -> VirtualDataset:
    """Return the loaded arrays of a dataset, with the steps of a span."""
    arrays: dict[str, AnyArray] = {}
    for path, array in dataset.arrays.items():
        if not isinstance(array, LoadedArray):
            continue
        if dim not in array.dimension_names:
            arrays[path] = array
            continue
        axis = array.dimension_names.index(dim)
        values = array.values[slice_steps(axis, span.source, span.source + span.length)]
        arrays[path] = LoadedArray(array.metadata_with_shape(values.shape), values)
    return replace(dataset, arrays=arrays)
