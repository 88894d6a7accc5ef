"""Which of many locations can name an object, without Python work per location.

`locations.parse_location` is the judge. Nearly all locations are of the plain form
``scheme://host/some/path``, which numpy recognises for all of them at once; the judge is asked
about the others. A test holds both to the same answers. Pure, no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.containers.locations import parse_location
from icefloe.errors import InvalidInputError
from icefloe.storage.keys import MAX_KEY_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.strings import Strings

_SLASH, _DOT, _COLON = b"/.:"
_BLOCK_ROWS: Final = 1 << 15

_ODD_BYTES: Final = bytes([*range(0x20), 0x7F, *b"%?#\\@"])
_ODD: Final = np.zeros(256, np.bool_)
_ODD[list(_ODD_BYTES)] = True
"""Bytes that make a location mean something other than what it says."""

_NOT_IN_SCHEME: Final = np.ones(256, np.bool_)
_NOT_IN_SCHEME[[*b"abcdefghijklmnopqrstuvwxyz0123456789+-"]] = False
_PLAINEST: Final = np.zeros(256, np.bool_)
_PLAINEST[[*b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"]] = True
"""Bytes that mean nothing but themselves, wherever they stand behind the scheme."""

_MAX_SCHEME_BYTES: Final = 9
_FILE: Final = b"file:///"


def find_malformed(locations: Strings) -> NDArray[np.int64]:
    """Find the locations that cannot name an object."""
    data = np.ascontiguousarray(locations.data)
    found: list[int] = []
    for begin in range(0, len(locations), _BLOCK_ROWS):
        offsets = locations.offsets[begin : begin + _BLOCK_ROWS + 1]
        block, places = data[offsets[0] : offsets[-1]], offsets - offsets[0]
        if _are_alike(block, places):
            plain = np.repeat(_find_plain(block[: places[1]], places[:2]), len(places) - 1)
        else:
            plain = _find_plain(block, places)
        rows = begin + np.flatnonzero(~plain)
        found += [row for row in rows.tolist() if _is_malformed(locations[row])]
    return np.array(found, np.int64)


def _is_malformed(location: str) -> bool:
    try:
        parse_location(location)
    except InvalidInputError:
        return True
    return False


def _are_alike(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bool:
    """Tell whether locations differ in nothing that matters: files numbered in figures."""
    length = int(offsets[1])
    if not length or not (np.diff(offsets) == length).all():
        return False
    # Compared with its neighbour each location is compared with all of them.
    varies = (data[length:] != data[:-length]).reshape(-1, length).any(axis=0)
    host = data[:length].tobytes().find(b"://") + len("://")
    if host < len("://") or varies[:host].any():
        return False
    return bool(_PLAINEST[data.reshape(-1, length)[:, varies]].all())


def _find_plain(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which locations are well formed at first sight."""
    starts, ends = offsets[:-1], offsets[1:]
    plain = (ends - starts > 0) & (ends - starts <= MAX_KEY_BYTES)
    if not len(data):
        return plain
    text = data.tobytes()
    is_slash = data == _SLASH
    doubled = np.flatnonzero(is_slash[:-1] & is_slash[1:])
    is_file = _are_files(data, starts, ends)
    # Just the '//' behind the scheme, with a third slash for files of this machine: another one
    # would make an empty segment.
    if len(doubled) == len(starts) and ((starts <= doubled) & (doubled < ends - 1)).all():
        first = np.arange(len(starts))
        plain &= ~is_file
    else:
        first = np.searchsorted(doubled, starts)
        plain &= np.searchsorted(doubled, ends - 1) - first == 1 + is_file
    # Mostly none of the block has what is rare, which bytes tell faster than numpy.
    if len(text.translate(None, _ODD_BYTES)) < len(text):
        odd = np.flatnonzero(_ODD[data])
        plain &= np.searchsorted(odd, starts) == np.searchsorted(odd, ends)
    if b"/." in text:
        dots = np.flatnonzero(is_slash[:-1] & (data[1:] == _DOT))
        plain &= np.searchsorted(dots, starts) == np.searchsorted(dots, ends - 1)
    plain[plain] = data[ends[plain] - 1] != _SLASH
    rows = np.flatnonzero(plain & ~is_file)
    plain[rows] = _have_host(data, starts[rows], ends[rows], doubled[first[rows]] + 2, is_slash)
    return plain


def _are_files(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Tell which locations begin with ``file:///`` and go on."""
    found = ends - starts > len(_FILE)
    if found.any():
        words = np.ndarray((len(data) - len(_FILE) + 1,), "<u8", data, strides=(1,))
        found[found] = words[starts[found]] == int.from_bytes(_FILE, "little")
    return found


def _have_host(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    hosts: NDArray[np.int64],
    is_slash: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Tell which locations have a plain scheme, then a host, then a path."""
    scheme_bytes = hosts - starts - len("://")
    kept = (scheme_bytes > 0) & (scheme_bytes <= _MAX_SCHEME_BYTES) & (hosts < ends)
    kept[kept] = data[hosts[kept] - len("://")] == _COLON
    for place in range(_MAX_SCHEME_BYTES):
        inside = kept & (place < scheme_bytes)
        if not inside.any():
            break
        kept[inside] = ~_NOT_IN_SCHEME[data[starts[inside] + place]]
    kept[kept] = data[starts[kept]] >= ord("a")
    is_file = kept & (scheme_bytes == len("file"))
    kept[is_file] = data[starts[is_file]] != ord("f")  # one with a host
    # A slash that is neither at the end nor part of '//' lies inside of host and path.
    kept[kept] = data[hosts[kept]] != _SLASH
    slashes = np.flatnonzero(is_slash)
    places = np.searchsorted(slashes, ends[kept]) - 1
    kept[kept] = slashes[places] > hosts[kept]
    return kept
