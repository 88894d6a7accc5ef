"""Vectorized parsing and resolution of many locations.

Nearly all locations are *plain*: ``scheme://host/some/path`` with a lower-case scheme and without
percent-encoding, query, user, control characters, empty segments or segments that begin with a dot.
A plain location is well formed, means what its bytes spell, and lies in the container whose prefix
its bytes begin with, so numpy decides about all of them at once. `parse_location` and
`ContainerTable.find` decide about the others one by one. Pure, no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from icefloe.containers.locations import RELATIVE_SCHEME, parse_location
from icefloe.errors import InvalidInputError
from icefloe.model.manifest import NO_CODE
from icefloe.model.strings import Strings
from icefloe.storage.keys import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.containers.container_table import ContainerTable

_SLASH, _DOT, _COLON = b"/.:"
_FILE: Final = b"file:///"
_MAX_SCHEME_BYTES: Final = 16
_MAX_BUCKET_BYTES: Final = 255
_BLOCK_ROWS: Final = 1 << 15
"""Rows per pass: temporaries are several times larger than the locations."""

_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz"
_ALPHANUMERIC: Final = _LETTERS + _LETTERS.upper() + b"0123456789"
_SPECIAL: Final = bytes([*range(0x20), 0x7F, *b"%?#\\@"])
"""Bytes that make a location mean something other than what it spells."""


def _byte_set(members: bytes) -> NDArray[np.bool_]:
    return np.isin(np.arange(256), list(members))


_IS_SPECIAL: Final = _byte_set(_SPECIAL)
_IN_SCHEME: Final = _byte_set(_LETTERS + b"0123456789+-")
_IN_BUCKET: Final = _byte_set(_ALPHANUMERIC + b"._-")
_STARTS_BUCKET: Final = _byte_set(_ALPHANUMERIC)
_IS_NEUTRAL: Final = _byte_set(_ALPHANUMERIC + b"_-")
"""Bytes that behave alike anywhere behind the scheme."""


class ResolvedLocations(NamedTuple):
    """The container and the file of each location.

    ``container`` is an index into ``table.known``, `NO_CODE` where no container holds the location.
    ``places`` are absolute locations: the same text for the same file, however it is referenced; a
    location in no container stays unchanged.
    """

    container: NDArray[np.int32]
    places: Strings


class _Block(NamedTuple):
    """Some of the locations, from row ``first`` on, and which of them are plain."""

    first: int
    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    plain: NDArray[np.bool_]


class _Prefix(NamedTuple):
    """Plain locations that resolve alike: those that begin with ``text``, which ``place`` replaces.

    ``container`` is an index into ``table.known``, None if each location has to be resolved singly.
    With ``is_whole``, ``text`` is the whole location; other prefixes end in ``/``. With
    ``names_bucket``, a bucket name follows ``text``.
    """

    text: str
    container: int | None
    place: str
    is_whole: bool = False
    names_bucket: bool = False


class _Matches(NamedTuple):
    """The prefix of each location (-1 for none), its container, and rows to resolve singly."""

    prefixes: list[_Prefix]
    number: NDArray[np.int64]
    container: NDArray[np.int32]
    unmatched: list[int]


def find_malformed(locations: Strings) -> NDArray[np.int64]:
    """Return the rows of the locations that cannot name an object."""
    found: list[int] = []
    for block in _scan(locations):
        rows = block.first + np.flatnonzero(~block.plain)
        found += [row for row in rows.tolist() if _is_malformed(locations[row])]
    return np.array(found, np.int64)


def find_containers(table: ContainerTable, locations: Strings) -> NDArray[np.int32]:
    """Return the index of each location's container in ``table.known``.

    It is `NO_CODE` where `ContainerTable.find` raises.
    """
    matches = _match(table, locations)
    for row in matches.unmatched:
        matches.container[row], _ = _resolve(table, locations[row])
    return matches.container


def resolve_locations(table: ContainerTable, locations: Strings) -> ResolvedLocations:
    """Return the container and the file of each location, as `ContainerTable.find` does."""
    prefixes, number, container, unmatched = _match(table, locations)
    is_replaced = np.array([*(prefix.place != prefix.text for prefix in prefixes), False])
    replaced = np.flatnonzero(is_replaced[number])
    if not len(replaced) and not unmatched:
        return ResolvedLocations(container, locations)
    texts = locations.tolist()
    for row, prefix in zip(replaced.tolist(), number[replaced].tolist(), strict=True):
        texts[row] = prefixes[prefix].place + texts[row][len(prefixes[prefix].text) :]
    for row in unmatched:
        container[row], texts[row] = _resolve(table, texts[row])
    return ResolvedLocations(container, Strings.of(texts))


def _is_malformed(location: str) -> bool:
    try:
        parse_location(location)
    except InvalidInputError:
        return True
    return False


def _resolve(table: ContainerTable, location: str) -> tuple[int, str]:
    try:
        file = table.find(location)
    except InvalidInputError:
        return NO_CODE, location
    return table.known.index(file.known), file.location.text


def _scan(locations: Strings) -> Iterator[_Block]:
    data = np.ascontiguousarray(locations.data)
    for first in range(0, len(locations), _BLOCK_ROWS):
        offsets = locations.offsets[first : first + _BLOCK_ROWS + 1]
        block, offsets = data[offsets[0] : offsets[-1]], offsets - offsets[0]
        if _are_alike(block, offsets):
            plain = np.repeat(_find_plain(block[: offsets[1]], offsets[:2]), len(offsets) - 1)
        else:
            plain = _find_plain(block, offsets)
        yield _Block(first, block, offsets[:-1], offsets[1:], plain)


def _are_alike(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bool:
    """Return whether locations differ in neutral bytes only, as numbered files do."""
    length = int(offsets[1])
    if not length or not (np.diff(offsets) == length).all():
        return False
    # Compared with its neighbour each location is compared with all of them.
    varies = (data[length:] != data[:-length]).reshape(-1, length).any(axis=0)
    host = data[:length].tobytes().find(b"://") + len("://")
    if host < len("://") or varies[:host].any():
        return False
    return bool(_IS_NEUTRAL[data.reshape(-1, length)[:, varies]].all())


def _find_plain(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    starts, ends = offsets[:-1], offsets[1:]
    plain = (ends - starts > 0) & (ends - starts <= MAX_KEY_BYTES)
    if not len(data):
        return plain
    text = data.tobytes()
    is_slash = data == _SLASH
    doubled = np.flatnonzero(is_slash[:-1] & is_slash[1:])
    is_file = _start_with(data, starts, ends, _FILE)
    # Exactly the '//' behind the scheme, with a third slash for local files: another one would make
    # an empty segment.
    if len(doubled) == len(starts) and ((starts <= doubled) & (doubled < ends - 1)).all():
        first = np.arange(len(starts))
        plain &= ~is_file
    else:
        first = np.searchsorted(doubled, starts)
        plain &= np.searchsorted(doubled, ends - 1) - first == 1 + is_file
    # Most blocks have none of these, and bytes methods check that faster than numpy.
    if len(text.translate(None, _SPECIAL)) < len(text):
        special = np.flatnonzero(_IS_SPECIAL[data])
        plain &= np.searchsorted(special, starts) == np.searchsorted(special, ends)
    if b"/." in text:
        dots = np.flatnonzero(is_slash[:-1] & (data[1:] == _DOT))
        plain &= np.searchsorted(dots, starts) == np.searchsorted(dots, ends - 1)
    plain[plain] = data[ends[plain] - 1] != _SLASH
    rows = np.flatnonzero(plain & ~is_file)
    plain[rows] = _have_host(data, starts[rows], ends[rows], doubled[first[rows]] + 2, is_slash)
    return plain


def _have_host(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    hosts: NDArray[np.int64],
    is_slash: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return which locations have a plain scheme, then a host, then a path."""
    scheme_bytes = hosts - starts - len("://")
    kept = (scheme_bytes > 0) & (scheme_bytes <= _MAX_SCHEME_BYTES) & (hosts < ends)
    kept[kept] = data[hosts[kept] - len("://")] == _COLON
    for position in range(_MAX_SCHEME_BYTES):
        inside = kept & (position < scheme_bytes)
        if not inside.any():
            break
        kept[inside] = _IN_SCHEME[data[starts[inside] + position]]
    kept[kept] = data[starts[kept]] >= ord("a")
    is_file = kept & (scheme_bytes == len("file"))
    kept[is_file] = data[starts[is_file]] != ord("f")  # a file URL with a host
    # A slash that is neither at the end nor part of '//' separates host and path.
    kept[kept] = data[hosts[kept]] != _SLASH
    slashes = np.flatnonzero(is_slash)
    last = np.searchsorted(slashes, ends[kept]) - 1
    kept[kept] = slashes[last] > hosts[kept]
    return kept


def _resolve_prefixes(table: ContainerTable, locations: Strings) -> list[_Prefix]:
    """Resolve each prefix that can decide about plain locations; longest prefixes come first."""
    prefixes = [(known.prefix.text, not known.prefix.path) for known in table.known]
    if RELATIVE_SCHEME.encode() in locations.data.tobytes():
        prefixes += _relative_prefixes(table)
    # A segment that no prefix has, so that no longer prefix holds the probe.
    used = {segment for known in table.known for segment in known.prefix.text.split("/")}
    probe = next(name for name in map(str, range(len(used) + 1)) if name not in used)
    found = []
    for text, names_bucket in prefixes:
        if not text.endswith("/"):
            container, place = _resolve(table, text)
            found.append(_Prefix(text, container, place, is_whole=True))
            text += "/"  # noqa: PLW2901
        rest = f"{probe}/{probe}" if names_bucket else probe
        container, place = _resolve(table, text + rest)
        can_resolve = container != NO_CODE and place.endswith(rest)
        index, start = container if can_resolve else None, place.removesuffix(rest)
        found.append(_Prefix(text, index, start, names_bucket=names_bucket))
    return sorted(found, key=lambda prefix: -len(prefix.text))


def _relative_prefixes(table: ContainerTable) -> Iterator[tuple[str, bool]]:
    for name, known in table.by_name.items():
        base = known.prefix.text
        if known.prefix.path:
            base = f"{base.removesuffix('/')}/"
        yield f"{RELATIVE_SCHEME}{name}/", not known.prefix.path
        for inner in table.known:
            if inner is not known and inner.prefix.text.startswith(base):
                rest = inner.prefix.text.removeprefix(base)
                yield f"{RELATIVE_SCHEME}{name}/{rest}", not inner.prefix.path


def _match(table: ContainerTable, locations: Strings) -> _Matches:
    prefixes = _resolve_prefixes(table, locations)
    number = np.full(len(locations), -1)
    is_unmatched = np.zeros(len(locations), np.bool_)
    # Leaves room for a longer text in place of the prefix.
    max_bytes = MAX_KEY_BYTES - max((len(prefix.place.encode()) for prefix in prefixes), default=0)
    for first, data, starts, ends, plain in _scan(locations):
        is_plain = plain & (ends - starts <= max_bytes)
        is_unmatched[first : first + len(plain)] = ~is_plain
        rows = np.flatnonzero(is_plain)
        for index, prefix in enumerate(prefixes):
            text = prefix.text.encode()
            if prefix.is_whole:
                is_match = _start_with(data, starts[rows], ends[rows] + 1, text)
                is_match &= ends[rows] - starts[rows] == len(text)
            else:
                is_match = _start_with(data, starts[rows], ends[rows], text)
            matched, rows = rows[is_match], rows[~is_match]
            number[first + matched] = index
            if prefix.container is None:
                is_unmatched[first + matched] = True
            elif prefix.names_bucket and len(matched):
                buckets = starts[matched] + len(text)
                is_unmatched[first + matched] = ~_have_bucket(data, buckets, ends[matched])
            if not len(rows):
                break
    number[is_unmatched] = -1
    codes = [NO_CODE if prefix.container is None else prefix.container for prefix in prefixes]
    container = np.array([*codes, NO_CODE], np.int32)[number]
    return _Matches(prefixes, number, container, np.flatnonzero(is_unmatched).tolist())


def _have_bucket(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return where a plain bucket and a slash stand at ``begins``."""
    stops = np.append(np.flatnonzero(~_IN_BUCKET[data]), len(data))
    stop = stops[np.searchsorted(stops, begins)]
    found: NDArray[np.bool_] = (begins < stop) & (stop < ends)
    found &= stop - begins <= _MAX_BUCKET_BYTES
    found[found] = (data[stop[found]] == _SLASH) & _STARTS_BUCKET[data[begins[found]]]
    return found


def _start_with(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], prefix: bytes
) -> NDArray[np.bool_]:
    """Return which strings are longer than ``prefix`` and begin with it."""
    found = ends - starts > len(prefix)
    position = 0
    while position < len(prefix) and found.any():
        # One word at a time, as wide as the rest allows: the first decides nearly all.
        size = next(size for size in (8, 4, 2, 1) if size <= len(prefix) - position)
        words = np.ndarray((len(data) - size + 1,), f"<u{size}", data, strides=(1,))
        expected = int.from_bytes(prefix[position : position + size], "little")
        found[found] = words[starts[found] + position] == expected
        position += size
    return found
