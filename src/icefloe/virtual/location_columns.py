"""Which of many locations have a container, without Python work per location.

Nearly all locations are *plain*: no percent-encoding, no query, no dots to resolve. Of a plain
location the bytes themselves decide, and numpy looks at all of them at once; only the others are
read one by one. Both ways answer the same, which a test holds them to. Pure, no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.storage.keys import MAX_KEY_BYTES
from icefloe.virtual.locations import RELATIVE_SCHEME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.strings import Strings
    from icefloe.virtual.container_table import ContainerTable

_SPECIAL: Final = np.zeros(256, np.bool_)
_SPECIAL[[*range(0x20), 0x7F, *b"%?#\\@"]] = True
"""Bytes that make a location mean something other than what it says."""

_SLASH, _DOT = b"/."
_BLOCK_ROWS: Final = 1 << 15
"""Locations looked at at once: the temporaries are several times as large as they."""
_SCHEME_BYTES: Final = 16
"""As far into a location an upper-case letter may belong to its scheme."""


def find_held(table: ContainerTable, locations: Strings) -> NDArray[np.bool_]:
    """Tell of each location whether it is well formed and a container holds it."""
    held = np.zeros(len(locations), np.bool_)
    if not table.known:
        return held
    data = np.ascontiguousarray(locations.data)
    for begin in range(0, len(locations), _BLOCK_ROWS):
        offsets = locations.offsets[begin : begin + _BLOCK_ROWS + 1]
        first, last = offsets[0], offsets[-1]
        rows = slice(begin, begin + len(offsets) - 1)
        held[rows], plain = _find_plain(table, data[first:last], offsets - first)
        for index in begin + np.flatnonzero(~plain):
            held[index] = _is_held(table, locations[int(index)])
    return held


def _find_plain(
    table: ContainerTable, data: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell which locations are plain and held, and which are plain."""
    starts, ends = offsets[:-1], offsets[1:]
    prefixes = _prefixes(table)
    slash = data[:-1] == _SLASH
    special = _running_count(_SPECIAL[data])
    dots = _running_count(slash & (data[1:] == _DOT))
    slashes = _running_count(slash & (data[1:] == _SLASH))
    plain = _count(special, starts, ends) + _count(dots, starts, ends - 1) == 0
    plain &= _has_plain_scheme(table, data, starts, ends)
    # Short enough for a key also behind the prefix that a name stands for.
    plain &= ends - starts <= MAX_KEY_BYTES - max(len(prefix) for prefix in prefixes)
    held = np.zeros(len(starts), np.bool_)
    for prefix in prefixes:
        found = _start_with(data, starts, ends, prefix) & plain
        # The prefix ends in '/', so a second one would begin an empty segment.
        found &= _count(slashes, starts + len(prefix) - 1, ends - 1) == 0
        found[found] = data[ends[found] - 1] != _SLASH
        held |= found
    return held, plain


def _prefixes(table: ContainerTable) -> list[bytes]:
    prefixes = [known.prefix.text for known in table.known]
    # A name in '%' or other odd bytes is never that of a plain location.
    names = [known.container.name for known in table.known]
    prefixes += [f"{RELATIVE_SCHEME}{name}/" for name in names if name is not None]
    return [prefix.encode() for prefix in prefixes]


def _is_held(table: ContainerTable, location: str) -> bool:
    try:
        table.find(location)
    except InvalidInputError:
        return False
    return True


def _running_count(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the flags before each position."""
    count = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, out=count[1:])
    return count


def _count(
    running: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    last = len(running) - 1
    starts, ends = np.clip(starts, 0, last), np.clip(ends, 0, last)
    counted: NDArray[np.int64] = np.maximum(running[ends] - running[starts], 0)
    return counted


def _has_plain_scheme(
    table: ContainerTable,
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.bool_]:
    upper = _running_count((data >= ord("A")) & (data <= ord("Z")))
    plain: NDArray[np.bool_] = _count(upper, starts, np.minimum(ends, starts + _SCHEME_BYTES)) == 0
    for scheme in {f"{known.prefix.scheme}://" for known in table.known} | {RELATIVE_SCHEME}:
        plain |= _start_with(data, starts, ends, scheme.encode())
    # file://localhost/ and file:/ mean what file:/// does.
    is_file = _start_with(data, starts, ends, b"file:")
    plain &= ~is_file | _start_with(data, starts, ends, b"file:///")
    return plain


def _start_with(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], prefix: bytes
) -> NDArray[np.bool_]:
    """Tell which strings are longer than ``prefix`` and begin with it."""
    candidates = np.flatnonzero(ends - starts > len(prefix))
    first = 0
    while first < len(prefix) and len(candidates):
        # A word at a time, of as many bytes as are left: nearly all are decided by the first.
        size = next(size for size in (8, 4, 2, 1) if size <= len(prefix) - first)
        words = np.ndarray((len(data) - size + 1,), f"<u{size}", data, strides=(1,))
        wanted = int.from_bytes(prefix[first : first + size], "little")
        candidates = candidates[words[starts[candidates] + first] == wanted]
        first += size
    found = np.zeros(len(starts), np.bool_)
    found[candidates] = True
    return found
