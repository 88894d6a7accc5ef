"""Where many locations lead: the container of each, and the file itself, by columns.

One file has many names: ``vcc://name/a.nc``, a scheme that a container maps to a bucket, an encoded
blank. `ContainerTable.find` is the judge of each. It is asked once for each folder, because all
plain names in a folder go the same way; names that are not plain are asked about one by one. Pure,
no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.manifest import NO_CODE
from icefloe.model.strings import Strings, factorize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.containers.container_table import ContainerTable

_SLASH, _DOT = b"/."
_ODD: Final = np.zeros(256, np.bool_)
_ODD[[*range(0x20), 0x7F, *b"%?#\\@"]] = True
"""Bytes that make a name mean something other than what it says."""
_ENDS_PATH: Final = np.zeros(256, np.bool_)
_ENDS_PATH[list(b"?#")] = True


class ResolvedLocations(NamedTuple):
    """Where locations lead.

    Attributes
    ----------
    container
        The place of each one's container in ``table.known``, `NO_CODE` where none holds it.
    places
        Where the bytes are: one text for each file, however it was referred to. What no container
        holds is as it was said.
    """

    container: NDArray[np.int32]
    places: Strings


def resolve_locations(table: ContainerTable, locations: Strings) -> ResolvedLocations:
    """Find where each location leads."""
    container = np.full(len(locations), NO_CODE, np.int32)
    if not len(locations):
        return ResolvedLocations(container, locations)
    data = np.ascontiguousarray(locations.data)
    starts, ends = locations.offsets[:-1], locations.offsets[1:]
    names = _name_starts(data, starts, ends)
    plain = _find_plain(table, data, locations, names)
    rows = np.flatnonzero(plain)
    moved: dict[int, str] = {}
    if len(rows):
        codes, folders = factorize(data, starts[rows], names[rows] - starts[rows])
        found = [_find(table, folder + _some_name(table)) for folder in folders]
        container[rows] = np.array([number for number, _ in found], np.int32)[codes]
        places = [place.removesuffix(_some_name(table)) for _, place in found]
        elsewhere = np.array(
            [place != folder for place, folder in zip(places, folders, strict=True)], bool
        )
        for row, code in zip(
            rows[elsewhere[codes]].tolist(), codes[elsewhere[codes]].tolist(), strict=True
        ):
            name = data[names[row] : ends[row]].tobytes().decode()
            moved[row] = places[code] + name
    for row in np.flatnonzero(~plain).tolist():
        location = locations[row]
        number, place = _find(table, location)
        container[row] = number
        if place != location:
            moved[row] = place
    if moved:
        spelled = list(locations)
        for row, place in moved.items():
            spelled[row] = place
        locations = Strings.of(spelled)
    return ResolvedLocations(container, locations)


def _find(table: ContainerTable, location: str) -> tuple[int, str]:
    try:
        file = table.find(location)
    except InvalidInputError:
        return NO_CODE, location
    number = next(number for number, known in enumerate(table.known) if known is file.known)
    return number, file.location.text


def _some_name(table: ContainerTable) -> str:
    """Make the name of a file that no container is made of."""
    taken = {known.prefix.path.rpartition("/")[2] for known in table.known}
    return next(name for name in map(str, range(len(taken) + 1)) if name not in taken)


def _name_starts(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Find where the last segment of each location begins; at the start if it has one only."""
    slashes = np.append(-1, np.flatnonzero(data == _SLASH))
    last = slashes[np.searchsorted(slashes, ends) - 1]
    found: NDArray[np.int64] = np.maximum(last + 1, starts)
    return found


def _find_plain(
    table: ContainerTable,
    data: NDArray[np.uint8],
    locations: Strings,
    names: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Tell which names mean what they say, so that only their folder has to be looked at."""
    starts, ends = locations.offsets[:-1], locations.offsets[1:]
    plain = (names > starts) & (names < ends)
    plain[plain] = data[names[plain]] != _DOT
    odd = np.flatnonzero(_ODD[data])
    if len(odd):
        plain &= np.searchsorted(odd, names) == np.searchsorted(odd, ends)
        stops = np.flatnonzero(_ENDS_PATH[data])
        plain &= np.searchsorted(stops, starts) == np.searchsorted(stops, ends)
    # A container can be one file.
    files = [known.prefix.text for known in table.known]
    sizes = {len(text.encode()) for text in files if not text.endswith("/")}
    for row in np.flatnonzero(np.isin(ends - starts, list(sizes))).tolist():
        plain[row] &= locations[row] not in files
    return plain
