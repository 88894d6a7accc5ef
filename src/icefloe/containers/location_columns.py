"""Which of many locations have a container, without Python work per location.

Nearly all locations are *plain*: no percent-encoding, no query, no dots to resolve. Of a plain
location the bytes themselves decide, and numpy looks at all of them at once; only the others are
read one by one. Both ways answer the same, which a test holds them to. Pure, no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.containers.locations import RELATIVE_SCHEME
from icefloe.errors import InvalidInputError
from icefloe.storage.keys import MAX_KEY_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.containers.container_table import ContainerTable
    from icefloe.model.strings import Strings

_SPECIAL: Final = np.zeros(256, np.bool_)
_SPECIAL[[*range(0x20), 0x7F, *b"%?#\\@"]] = True
"""Bytes that make a location mean something other than what it says."""

_ALPHANUMERIC: Final = np.zeros(256, np.bool_)
_ALPHANUMERIC[[*range(0x30, 0x3A), *range(0x41, 0x5B), *range(0x61, 0x7B)]] = True
_OF_BUCKETS: Final = _ALPHANUMERIC.copy()
_OF_BUCKETS[list(b"._-")] = True
"""Bytes that the name of a bucket can hold, whatever it begins with."""
_MAX_BUCKET_BYTES: Final = 255

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
    slash = data[:-1] == _SLASH
    special = _running_count(_SPECIAL[data])
    dots = _running_count(slash & (data[1:] == _DOT))
    slashes = _running_count(slash & (data[1:] == _SLASH))
    plain = _count(special, starts, ends) + _count(dots, starts, ends - 1) == 0
    plain &= _has_plain_scheme(table, data, starts, ends)
    # Short enough for a key also behind the prefix that a name or a prefix stands for.
    plain &= ends - starts <= MAX_KEY_BYTES - _longest_prefix(table)
    for prefix in _before_buckets(table):
        among = _start_with(data, starts, ends, prefix)
        plain &= ~among | _has_plain_bucket(data, starts + len(prefix), ends, slash)
    held = np.zeros(len(starts), np.bool_)
    for prefix in _prefixes(table):
        found = _start_with(data, starts, ends, prefix) & plain
        # The prefix ends in '/', so a second one would begin an empty segment.
        found &= _count(slashes, starts + len(prefix) - 1, ends - 1) == 0
        found[found] = data[ends[found] - 1] != _SLASH
        held |= found
    for text in _whole_locations(table):
        same = (ends - starts == len(text)) & plain
        held |= same & _start_with(data, starts, ends + 1, text)
    return held, plain


def _prefixes(table: ContainerTable) -> list[bytes]:
    """Write what held locations begin with; all end in '/'."""
    # A name in '%' or other odd bytes is never that of a plain location.
    prefixes = [known.prefix.text for known in table.known]
    prefixes += [f"{RELATIVE_SCHEME}{name}" for name in table.by_name]
    return [f"{prefix.removesuffix('/')}/".encode() for prefix in prefixes]


def _whole_locations(table: ContainerTable) -> list[bytes]:
    """Prefixes that are locations themselves, as ``s3://foo/bar.nc``."""
    texts = [known.prefix.text for known in table.known if known.prefix.path]
    return [text.encode() for text in texts if not text.endswith("/") and _is_held(table, text)]


def _before_buckets(table: ContainerTable) -> list[bytes]:
    """Prefixes of which the location itself names the bucket."""
    prefixes = [known.prefix.text for known in table.known if not known.prefix.path]
    names = [name for name, known in table.by_name.items() if not known.prefix.path]
    return [one.encode() for one in (*prefixes, *(f"{RELATIVE_SCHEME}{name}/" for name in names))]


def _longest_prefix(table: ContainerTable) -> int:
    lengths = [
        len(one.text.encode()) for known in table.known for one in (known.prefix, known.root)
    ]
    return max(lengths)


def _has_plain_bucket(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    slash: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Tell of which locations a plain bucket and a slash stand at ``begins``."""
    positions = np.append(np.flatnonzero(slash), len(data))
    bucket_ends = positions[np.searchsorted(positions, np.minimum(begins, len(data)))]
    odd = _running_count(~_OF_BUCKETS[data])
    found = (begins < bucket_ends) & (bucket_ends < ends)
    found &= bucket_ends - begins <= _MAX_BUCKET_BYTES
    found &= _count(odd, begins, bucket_ends) == 0
    found[found] = _ALPHANUMERIC[data[begins[found]]]
    return found


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
