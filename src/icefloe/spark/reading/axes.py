"""The dimensions of a table: which positions were selected, and in which chunks they lie.

A table is a grid of blocks, one for each chunk that has selected positions; blocks are numbered in
C order, so that a partition is a range of numbers. Pure, no I/O.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from icefloe.spark.reading.read_options import invalid_input, suggest_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import xarray as xr
    from numpy.typing import NDArray

Positions: TypeAlias = "range | NDArray[np.int64]"
"""Ascending and distinct: rows have no order in Spark, and none is there twice."""

Box: TypeAlias = tuple[tuple[int, int], ...]
"""From where to where, along each dimension."""

_MOST_CHUNKS: Final = 1 << 24
"""As many along one dimension take half a gigabyte to plan; metadata may tell of any number."""

_NOT_FOUND: Final = (KeyError, ValueError, TypeError)
"""What xarray raises where a label is not there, or cannot be one."""


@dataclass(frozen=True, slots=True)
class RegularEdges:
    """Where chunks of one length begin, and the last ends: told as an array would, but not listed.

    Parameters
    ----------
    path
        The array, for messages.
    length
        Of the dimension.
    chunk_length
        Of all chunks but perhaps the last.
    """

    path: str
    length: int
    chunk_length: int

    def __len__(self) -> int:
        return -(-self.length // self.chunk_length) + 1

    def __getitem__(self, number: Any) -> Any:
        return np.minimum(number * np.int64(self.chunk_length), self.length)

    def find_chunks(
        self, name: str, positions: Positions
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the chunks that have some of the positions, and where those of each end."""
        if not len(positions):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        first, last = (int(positions[place]) // self.chunk_length for place in (0, -1))
        num_chunks = last - first + 1
        if min(num_chunks, len(positions)) > _MOST_CHUNKS:
            raise invalid_input(
                f"array {self.path!r} has {len(self) - 1} chunks of length {self.chunk_length} "
                f"along {name!r}, and a read plans at most {_MOST_CHUNKS}: select fewer of its "
                f"{self.length} positions with 'isel', or rechunk it"
            )
        if len(positions) >= num_chunks:
            used, ends = _find_chunks(positions, self[np.arange(first, last + 2)])
            return used + first, ends
        # One here and one there: most of the chunks between them have none.
        listed = (
            np.arange(positions.start, positions.stop, positions.step)
            if isinstance(positions, range)
            else positions
        )
        chunks = listed // self.chunk_length
        ends = np.append(np.flatnonzero(np.diff(chunks)) + 1, len(chunks))
        return chunks[ends - 1], ends


Edges: TypeAlias = "RegularEdges | NDArray[np.int64]"
"""Where the chunks along a dimension begin, and where the last ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """One dimension of a table.

    Parameters
    ----------
    name
        The dimension.
    positions
        What was selected of it.
    chunks
        The numbers of the chunks in which selected positions lie.
    offsets
        Where the positions of each of these chunks begin in ``positions``, and the end.
    """

    name: str
    positions: Positions
    chunks: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def from_edges(cls, name: str, positions: Positions, edges: Edges) -> Axis:
        """Cut selected positions where chunks begin.

        Raises
        ------
        InvalidInputError
            If they lie in more chunks than can be planned.
        """
        used, ends = (
            edges.find_chunks(name, positions)
            if isinstance(edges, RegularEdges)
            else _find_chunks(positions, edges)
        )
        return cls(name, positions, used, np.concatenate([np.zeros(1, np.int64), ends]))

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def num_blocks(self) -> int:
        """How many chunks have selected positions."""
        return len(self.chunks)

    @property
    def block_lengths(self) -> NDArray[np.int64]:
        """How many selected positions each block has."""
        return np.diff(self.offsets)

    def split(self, position: int) -> Axis:
        """Cut the block that has a position in two, so that one begins there."""
        place = bisect_left(self.positions, position)
        number = int(np.searchsorted(self.offsets, place))
        if number == len(self.offsets) or self.offsets[number] == place:
            return self
        chunk = self.chunks[number - 1]
        return replace(
            self,
            chunks=np.insert(self.chunks, number, chunk),
            offsets=np.insert(self.offsets, number, place),
        )

    def blocks(self, start: int, stop: int) -> slice:
        """Find the blocks that have selected positions of a stretch."""
        first, last = (bisect_left(self.positions, position) for position in (start, stop))
        if first >= last:
            return slice(0, 0)
        return slice(
            int(np.searchsorted(self.offsets, first, "right")) - 1,
            int(np.searchsorted(self.offsets, last, "left")),
        )

    def indexer(self, first: int, stop: int) -> slice | NDArray[np.int64]:
        """Say what to read of an array for some of the positions, by their place in order."""
        part = self.positions[first:stop]
        if isinstance(part, range):
            return slice(part.start, part.stop, part.step)
        return part


def boxes(first: int, stop: int, shape: Sequence[int]) -> Iterator[Box]:
    """Cut a range of numbers of a grid, counted in C order, into as few boxes as it takes."""
    if not shape:
        if first < stop:
            yield ()
        return
    inner = prod(shape[1:])
    whole = tuple((0, size) for size in shape[1:])
    row, start = divmod(first, inner)
    last, end = divmod(stop, inner)
    if row == last:
        for box in boxes(start, end, shape[1:]):
            yield ((row, row + 1), *box)
        return
    if start:
        for box in boxes(start, inner, shape[1:]):
            yield ((row, row + 1), *box)
        row += 1
    if row < last:
        yield ((row, last), *whole)
    if end:
        for box in boxes(0, end, shape[1:]):
            yield ((last, last + 1), *box)


def pieces(shape: Sequence[int], max_size: int) -> Iterator[Box]:
    """Cut a box into pieces that lie in one stretch in C order, each at most so large."""
    split = len(shape)
    inner = 1
    while split and inner * shape[split - 1] <= max_size:
        split -= 1
        inner *= shape[split]
    if split == 0:
        if prod(shape):
            yield tuple((0, size) for size in shape)
        return
    step = max(1, max_size // inner)
    whole = tuple((0, size) for size in shape[split:])
    for outer in np.ndindex(*shape[: split - 1]):
        fixed = tuple((place, place + 1) for place in outer)
        for start in range(0, shape[split - 1], step):
            yield (*fixed, (start, min(start + step, shape[split - 1])), *whole)


def select_positions(name: str, length: int, wanted: Any) -> Positions:
    """Find positions by index, as ``isel`` of xarray does; negative ones count from the end.

    Raises
    ------
    InvalidInputError
        If what is wanted is not there, or is none of: a number, a list of numbers, an object with
        ``start``, ``stop`` and ``step``.
    """
    match wanted:
        case dict():
            _require_parts("isel", name, wanted, ("start", "stop", "step"))
            parts = [wanted.get(part) for part in ("start", "stop", "step")]
            if any(part is not None and not _is_integer(part) for part in parts) or parts[2] == 0:
                raise _no_selection("isel", name, wanted)
            found = range(length)[slice(*parts)]
            found = found if found.step > 0 else found[::-1]
        case list() if all(map(_is_integer, wanted)):
            return _check_positions(name, length, wanted)
        case _ if _is_integer(wanted):
            return _check_positions(name, length, [wanted])
        case _:
            raise _no_selection("isel", name, wanted)
    if not found:
        raise invalid_input(
            f"isel selects nothing along {name!r}: {wanted!r} of positions 0 to {length - 1}"
        )
    return found


def select_labels(name: str, coordinate: xr.Variable | None, length: int, wanted: Any) -> Positions:
    """Find positions by label, as ``sel`` of xarray does.

    A label, a list of labels, an object with ``start`` and ``stop``, both of which belong to the
    selection, or an object with ``nearest``. Times are ISO text; part of one, such as ``2020-05``,
    means all of it.

    Raises
    ------
    InvalidInputError
        If nothing is there; the message has the range of the coordinate.
    """
    import xarray as xr  # noqa: PLC0415 - slow, and only for labels

    if coordinate is None:
        return select_positions(name, length, wanted)
    places = xr.DataArray(
        np.arange(length), dims=[name], coords={name: coordinate.to_index_variable()}
    )
    method = None
    label = wanted
    if isinstance(wanted, dict):
        if "nearest" in wanted:
            _require_parts("sel", name, wanted, ("nearest",))
            label, method = wanted["nearest"], "nearest"
        else:
            _require_parts("sel", name, wanted, ("start", "stop", "step"))
            label = slice(wanted.get("start"), wanted.get("stop"), wanted.get("step"))
    try:
        found = np.atleast_1d(places.sel({name: label}, method=method).values)
    except _NOT_FOUND as error:
        raise invalid_input(_explain_empty(name, wanted, coordinate, places)) from error
    if not len(found):
        raise invalid_input(_explain_empty(name, wanted, coordinate, places))
    return sort_positions(found)


def sort_positions(found: NDArray[Any]) -> Positions:
    """Bring positions into ascending order, each once, as a range where they are one."""
    distinct = np.unique(found).astype(np.int64)
    steps = np.diff(distinct)
    if not len(steps):
        return range(int(distinct[0]), int(distinct[0]) + 1)
    if (steps == steps[0]).all():
        return range(int(distinct[0]), int(distinct[-1]) + 1, int(steps[0]))
    return distinct


def require_dimensions(option: str, wanted: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse selections along dimensions that a table does not have."""
    for name in wanted:
        if name not in names:
            raise invalid_input(
                f"{option} names {name!r}, which is no dimension here: {suggest_name(name, names)}"
            )


def _find_chunks(
    positions: Positions, edges: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the chunks that have some of the positions, and where those of each end."""
    if isinstance(positions, range):
        found = -((positions.start - edges) // positions.step)
        offsets = np.clip(found, 0, len(positions))
    else:
        offsets = np.searchsorted(positions, edges)
    used = np.flatnonzero(np.diff(offsets))
    return used, offsets[used + 1]


def _check_positions(name: str, length: int, wanted: list[int]) -> Positions:
    for one in wanted:
        if not -length <= one < length:
            raise invalid_input(
                f"isel: {name!r} has no position {one}; its positions are 0 to {length - 1}"
            )
    if not wanted:
        raise invalid_input(f"isel selects nothing along {name!r}: its list is empty")
    return sort_positions(np.array(wanted) % length)


def _explain_empty(name: str, wanted: Any, coordinate: xr.Variable, places: xr.DataArray) -> str:
    values = coordinate.values
    if not len(values):
        return f"sel selects nothing along {name!r}, which has no labels at all"
    low, high = (_format_label(one) for one in (values.min(), values.max()))
    advice = ""
    if values.dtype.kind == "M" and (text := _find_invalid_time(name, wanted, places)) is not None:
        advice = f"; {text!r} is no time: write times as these are"
    elif isinstance(wanted, dict) and values[0] > values[-1]:
        advice = "; they fall, so that a slice starts with the larger one"
    elif not isinstance(wanted, (dict, list)) and _has_nearest(name, wanted, places):
        advice = f"; {json.dumps({'nearest': wanted})} takes the closest"
    return (
        f"sel selects nothing along {name!r} with {wanted!r}: its labels lie between {low} and "
        f"{high}{advice}"
    )


def _find_invalid_time(name: str, wanted: Any, places: xr.DataArray) -> str | None:
    """Find a text in a selection of times that is none."""
    parse = type(places.indexes[name])  # reads what it would compare with
    parts = wanted.values() if isinstance(wanted, dict) else np.atleast_1d(wanted).tolist()
    for part in parts:
        if isinstance(part, str):
            try:
                parse([part])
            except ValueError:
                return part
    return None


def _has_nearest(name: str, wanted: Any, places: xr.DataArray) -> bool:
    """Whether the closest label is found: an advice that fails in turn is none."""
    try:
        places.sel({name: wanted}, method="nearest")
    except _NOT_FOUND:
        return False
    return True


def _format_label(value: Any) -> str:
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[s]"))
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_parts(option: str, name: str, wanted: dict[str, Any], known: tuple[str, ...]) -> None:
    for part in wanted:
        if part not in known:
            raise invalid_input(
                f"{option} along {name!r}: there is no {part!r} in a selection; {part!r} is none "
                f"of {', '.join(known)}"
            )


def _no_selection(option: str, name: str, wanted: Any) -> Exception:
    return invalid_input(
        f"{option} along {name!r} is a number, a list of numbers, or an object with start, stop "
        f"and step, not {wanted!r}"
    )
