"""`VirtualDataset`: the groups and arrays of one file, or of several combined files.

An immutable value that pickles and does not depend on a repository. Group and array paths are
relative to the dataset root: ``""`` is the root group, ``a/b`` a node below it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from icefloe.virtual import writer
from icefloe.virtual.arrays import VirtualArray

if TYPE_CHECKING:
    from icefloe.virtual.arrays import AnyArray
    from icefloe.virtual.sources import SourceFile


@dataclass(frozen=True, slots=True)
class VirtualDataset:
    """Groups and arrays of one file, or of several combined files.

    Parameters
    ----------
    sources
        The parsed files.
    groups
        Attributes of each group by path, including the root.
    arrays
        Arrays by path.
    """

    sources: tuple[SourceFile, ...]
    groups: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})
    arrays: dict[str, AnyArray] = field(default_factory=dict)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the root group."""
        return self.groups[""]

    @property
    def label(self) -> str:
        """The source files, as text for messages."""
        if not self.sources:
            return "a dataset without a file"
        more = f" and {len(self.sources) - 1} more" if len(self.sources) > 1 else ""
        return f"{self.sources[0].url}{more}"

    @property
    def num_refs(self) -> int:
        """Number of chunk references."""
        arrays = self.arrays.values()
        return sum(len(array.refs) for array in arrays if isinstance(array, VirtualArray))

    def lengths(self) -> dict[str, int]:
        """Return the length of each dimension of the root group's arrays."""
        return {
            name: length
            for path, array in self.arrays.items()
            if "/" not in path
            for name, length in zip(array.dimension_names, array.shape, strict=True)
            if name is not None
        }

    def without(self, *paths: str) -> VirtualDataset:
        """Return the dataset without some arrays."""
        arrays = {path: array for path, array in self.arrays.items() if path not in paths}
        return replace(self, arrays=arrays)

    write = writer.write
    append = writer.append

    def __repr__(self) -> str:
        lines = [f"<VirtualDataset of {self.label}: {self.num_refs} references>"]
        lines += [f"  {path}: {array!r}" for path, array in self.arrays.items()]
        return "\n".join(lines)
