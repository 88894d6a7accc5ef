"""Verifies source files chunk by chunk, after copying them failed.

Copying reads boxes that span files, so a failed box does not identify the file. Verification reads
every chunk of every file, an additional pass that only failed jobs need.
"""

from __future__ import annotations

import uuid
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zarr.errors import ZarrUserWarning

from icefloe.pipeline.arrays.boxes import format_box, iter_boxes
from icefloe.pipeline.report import Failure
from icefloe.session import ForkSession, contents
from icefloe.spark.engine.tasks import format_error
from icefloe.store.open_array import open_array
from icefloe.virtual.arrays import LoadedArray
from icefloe.virtual.parsing import parse_at
from icefloe.virtual.sources import Sources
from icefloe.virtual.writer import write as write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icefloe.pipeline.run import JobRun


def find_unreadable_files(
    run: JobRun, tasks: Sequence[tuple[str, ...]], options: Mapping[str, Any]
) -> list[Failure]:
    """Read whole files on executors, parsed with ``options``; return those that cannot be read."""
    run.enter_phase("checking files")
    outcomes = run.run_stage(tasks, VerifyFiles(run.fork_scratch(), dict(options)))
    return [failure for outcome in outcomes for failure in outcome.result or ()]


@dataclass(frozen=True, slots=True)
class VerifyFiles:
    """Worker task: read every chunk of files through a fork that is never committed."""

    fork: ForkSession
    options: dict[str, Any]

    def __call__(self, urls: tuple[str, ...]) -> list[Failure]:
        """Return a failure for each file that cannot be read."""
        sources = Sources.of(self.fork.connection.virtual)
        results = ((url, list(self._find_problems(url, sources))) for url in urls)
        return [Failure(url, "; ".join(problems)) for url, problems in results if problems]

    def _find_problems(self, url: str, sources: Sources) -> Iterator[str]:
        origin = contents.get_base_id(self.fork)
        session = ForkSession(self.fork.connection, origin, origin=origin)
        group = f"/file-{uuid.uuid4().hex}"
        try:
            dataset = parse_at(url, sources, **self.options)
            loaded = [
                path for path, array in dataset.arrays.items() if isinstance(array, LoadedArray)
            ]
            write_dataset(dataset.without(*loaded), session, group=group, validate_containers=False)
        except Exception as error:  # noqa: BLE001 - reported with all others
            yield format_error(error)
            return
        for path in dataset.arrays:
            if path not in loaded:
                yield from _find_unreadable(session, group, path)


def _find_unreadable(session: ForkSession, group: str, path: str) -> Iterator[str]:
    """Yield the first chunk of an array that cannot be read."""
    with warnings.catch_warnings():
        # Codecs and types outside the Zarr specification cannot be avoided in source files.
        warnings.simplefilter("ignore", ZarrUserWarning)
        array = open_array(session.store, f"{group}/{path}")
        for box in iter_boxes(array.shape, array.shards or array.chunks):
            try:
                array[box]
            except Exception as error:  # noqa: BLE001 - reported with all others
                problem = format_error(error).replace(f"{group}/", "")  # a temporary group
                yield f"{format_box(path, box)}: {problem}"
                return
