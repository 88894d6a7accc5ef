"""What a user asked of a file: which group, which variables, which of them as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefloe.virtual.dataset import VirtualArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icefloe.model.chunk_payload import Checksum
    from icefloe.virtual.dataset import AnyArray, SourceFile


@dataclass(frozen=True, slots=True)
class ParseRequest:
    """One call of `icefloe.virtual.parse`, as the modules of formats see it.

    Parameters
    ----------
    source
        The file.
    group
        The group to start from, without slashes around it; empty for the root.
    drop_variables
        Paths of arrays and groups to leave out.
    loadable_variables
        Paths of arrays whose values are copied. None means the coordinates of dimensions and their
        bounds, so that files can be compared and put in order.
    inline_below_bytes
        Arrays with fewer bytes are copied, too.
    checksum
        What references remember of the file.
    """

    source: SourceFile
    group: str = ""
    drop_variables: frozenset[str] = frozenset()
    loadable_variables: frozenset[str] | None = None
    inline_below_bytes: int = 0
    checksum: Checksum | None = None

    @property
    def url(self) -> str:
        """The file, for messages."""
        return self.source.url

    def is_dropped(self, path: str) -> bool:
        """Whether an array or a group is to be left out."""
        return path in self.drop_variables

    def is_loadable(self, path: str, dims: Sequence[str | None], size_bytes: int) -> bool:
        """Whether the values of an array are to be copied, whatever the other arrays are."""
        if size_bytes < self.inline_below_bytes:
            return True
        if self.loadable_variables is not None:
            return path in self.loadable_variables
        # Scalars say what the others mean (a projection, a reference time), in a few bytes.
        return not dims or list(dims) == [path.rpartition("/")[2]]

    def bounds_to_load(self, arrays: Mapping[str, AnyArray], among: Iterable[str]) -> list[str]:
        """Tell the arrays that are to be copied because a coordinate has them as its bounds.

        They have no units of their own, so they must follow those of the coordinate.
        """
        if self.loadable_variables is not None:
            return []
        bounds: list[str] = []
        for path in among:
            group, _, name = path.rpartition("/")
            array = arrays[path]
            named = array.attributes.get("bounds")
            if array.dimension_names == (name,) and isinstance(named, str):
                found = f"{group}/{named}" if group else named
                if isinstance(arrays.get(found), VirtualArray):
                    bounds.append(found)
        return bounds
