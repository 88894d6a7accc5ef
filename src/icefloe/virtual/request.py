"""`ParseRequest`: the normalized options of `icefloe.virtual.parse`. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icefloe.virtual.arrays import VirtualArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icefloe.model.chunk_payload import Checksum
    from icefloe.virtual.arrays import AnyArray
    from icefloe.virtual.sources import SourceFile


@dataclass(frozen=True, slots=True)
class ParseRequest:
    """Options of `icefloe.virtual.parse`, as parsers receive them.

    Paths have no leading or trailing slash; the root group is ``""``. ``checksum`` is stored with
    each reference. ``dropped`` collects the paths in ``drop_variables`` that the file has.
    """

    source: SourceFile
    group: str = ""
    drop_variables: frozenset[str] = frozenset()
    loadable_variables: frozenset[str] | None = None
    inline_below_bytes: int = 0
    checksum: Checksum | None = None
    dropped: set[str] = field(default_factory=set, compare=False)

    @property
    def url(self) -> str:
        """URL of the file, for messages."""
        return self.source.url

    def is_dropped(self, path: str) -> bool:
        """Return whether to drop an array or a group of the file, and note that it exists."""
        if path not in self.drop_variables:
            return False
        self.dropped.add(path)
        return True

    def is_loadable(self, path: str, dims: Sequence[str | None], size_bytes: int) -> bool:
        """Return whether to load the values of an array; `find_bounds_to_load` adds bounds."""
        if size_bytes < self.inline_below_bytes:
            return True
        if self.loadable_variables is not None:
            return path in self.loadable_variables
        # Scalars are small and describe other arrays: a grid mapping, a reference time.
        return not dims or list(dims) == [path.rpartition("/")[2]]

    def find_bounds_to_load(
        self, arrays: Mapping[str, AnyArray], paths: Iterable[str]
    ) -> list[str]:
        """Return the virtual bounds of the coordinates among ``paths``.

        Bounds are loaded with their coordinate: they have its units and are converted with it.
        """
        if self.loadable_variables is not None:
            return []
        bounds: list[str] = []
        for path in paths:
            group, _, name = path.rpartition("/")
            array = arrays[path]
            bounds_name = array.attributes.get("bounds")
            if array.dimension_names == (name,) and isinstance(bounds_name, str):
                bounds_path = f"{group}/{bounds_name}" if group else bounds_name
                if isinstance(arrays.get(bounds_path), VirtualArray):
                    bounds.append(bounds_path)
        return bounds
