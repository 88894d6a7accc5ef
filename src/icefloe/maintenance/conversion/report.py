"""The result of a conversion, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from icefloe.display import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """The result of a conversion, or its plan after a dry run.

    Parameters
    ----------
    source, target
        The roots, without secrets.
    from_generation, to_generation
        The names of the generations.
    selection
        Which branches and tags are converted.
    is_dry_run
        Whether nothing was written.
    is_new
        Whether this run published the target; False if an earlier run had.
    in_place
        Whether the target is the source.
    branches, tags
        The names of the converted branches and tags.
    snapshots
        The ids in the source, and the ids in the target.
    num_manifests
        The number of manifest files.
    num_chunks, num_chunk_bytes
        The number of chunk files, and the bytes of them that references use.
    num_copied_chunks
        The number of chunk files that this run copied.
    num_transferred_bytes
        The bytes that were downloaded and uploaded, because they could not be copied on the server
        or linked.
    not_converted
        What the target generation has no place for.
    seconds
        The duration.
    """

    source: str
    target: str
    from_generation: str
    to_generation: str
    selection: str
    is_dry_run: bool
    is_new: bool
    in_place: bool
    branches: tuple[str, ...]
    tags: tuple[str, ...]
    snapshots: Mapping[str, str]
    num_manifests: int = 0
    num_chunks: int = 0
    num_chunk_bytes: int = 0
    num_copied_chunks: int = 0
    num_transferred_bytes: int = 0
    not_converted: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        where = "in place" if self.in_place else f"to {self.target}"
        task = f"{self.source} from {self.from_generation} to {self.to_generation}, {where}"
        if self.is_dry_run:
            first_line = f"would convert {task}"
        elif self.is_new:
            first_line = f"converted {task}, in {self.seconds:.1f} s"
        else:
            first_line = f"nothing to do: an earlier run converted {task}"
        counts = (
            _count(len(self.branches), "branch", "branches"),
            _count(len(self.tags), "tag"),
            _count(len(self.snapshots), "snapshot"),
        )
        lines = [first_line, f"  {self.selection}: {', '.join(counts)}"]
        if self.num_manifests:
            lines.append(f"  {_count(self.num_manifests, 'manifest')}")
        if self.num_chunks:
            lines.append(f"  {self._format_chunks()}")
        lines += [f"  not converted: {item}" for item in self.not_converted]
        return "\n".join(lines)

    def _format_chunks(self) -> str:
        text = f"{_count(self.num_chunks, 'chunk file')} of {format_size(self.num_chunk_bytes)}"
        if self.is_dry_run:
            return text
        copied = f"{self.num_copied_chunks:,} copied by this run"
        return f"{text}, {copied}, {format_size(self.num_transferred_bytes)} transferred"


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
