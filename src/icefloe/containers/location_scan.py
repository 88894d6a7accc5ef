"""Vectorized parsing and resolution of many locations.

Nearly all locations are *plain*: ``scheme://host/some/path`` with a lower-case scheme and without
percent-encoding, query, user, control characters, empty segments or segments that begin with a dot.
A plain location is valid and needs no decoding, so its container is the one whose prefix its bytes
start with, which numpy compares for all locations at once. `parse_location` and
`ContainerTable.find` handle the others one by one. Pure, no I/O.
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
"""Rows per pass: temporary arrays are several times larger than the locations."""

_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz"
_ALPHANUMERIC: Final = _LETTERS + _LETTERS.upper() + b"0123456789"
_SPECIAL: Final = bytes([*range(0x20), 0x7F, *b"%?#\\@"])
"""Bytes that are invalid in a location or have to be decoded."""


def _make_byte_mask(members: bytes) -> NDArray[np.bool_]:
    return np.isin(np.arange(256), list(members))


_IS_SPECIAL: Final = _make_byte_mask(_SPECIAL)
_IN_SCHEME: Final = _make_byte_mask(_LETTERS + b"0123456789+-")
_IN_BUCKET: Final = _make_byte_mask(_ALPHANUMERIC + b"._-")
_STARTS_BUCKET: Final = _make_byte_mask(_ALPHANUMERIC)
_IS_NEUTRAL: Final = _make_byte_mask(_ALPHANUMERIC + b"_-")
"""Bytes without a special meaning anywhere after the scheme."""


class ResolvedLocations(NamedTuple):
    """The container and the resolved text of each location.

    ``container`` is an index into ``table.containers``, `NO_CODE` where no container matches.
    ``locations`` are absolute, with one text per file, however it is referenced; a location in no
    container stays unchanged.
    """

    container: NDArray[np.int32]
    locations: Strings


class _Block(NamedTuple):
    """A block of locations that starts at row ``first``, and a mask of the plain ones."""

    first: int
    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    is_plain: NDArray[np.bool_]


class _Prefix(NamedTuple):
    """A rule for plain locations that start with ``text``: ``replacement`` takes its place.

    ``container`` is an index into ``table.containers``, None if these locations have to be resolved
    one by one. With ``is_exact``, ``text`` is the full location; other prefixes end in ``/``. With
    ``has_bucket``, a bucket name follows ``text``.
    """

    text: str
    container: int | None
    replacement: str
    is_exact: bool = False
    has_bucket: bool = False


class _Matches(NamedTuple):
    """Prefix index (-1 for none) and container of each location; rows to resolve one by one."""

    prefixes: list[_Prefix]
    prefix_index: NDArray[np.int64]
    container: NDArray[np.int32]
    unmatched: list[int]


def find_malformed(locations: Strings) -> NDArray[np.int64]:
    """Return the rows of the locations that cannot name an object."""
    malformed: list[int] = []
    for block in _scan(locations):
        rows = block.first + np.flatnonzero(~block.is_plain)
        malformed += [row for row in rows.tolist() if _is_malformed(locations[row])]
    return np.array(malformed, np.int64)


def find_containers(table: ContainerTable, locations: Strings) -> NDArray[np.int32]:
    """Return the index of each location's container in ``table.containers``.

    The index is `NO_CODE` where `ContainerTable.find` raises.
    """
    matches = _match(table, locations)
    for row in matches.unmatched:
        matches.container[row], _ = _resolve(table, locations[row])
    return matches.container


def resolve_locations(table: ContainerTable, locations: Strings) -> ResolvedLocations:
    """Resolve each location as `ContainerTable.find` does."""
    prefixes, prefix_index, container, unmatched = _match(table, locations)
    is_replaced = np.array([*(prefix.replacement != prefix.text for prefix in prefixes), False])
    replaced = np.flatnonzero(is_replaced[prefix_index])
    if not len(replaced) and not unmatched:
        return ResolvedLocations(container, locations)
    texts = locations.tolist()
    for row, index in zip(replaced.tolist(), prefix_index[replaced].tolist(), strict=True):
        texts[row] = prefixes[index].replacement + texts[row][len(prefixes[index].text) :]
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
    return table.containers.index(file.container), file.location.text


def _scan(locations: Strings) -> Iterator[_Block]:
    data = np.ascontiguousarray(locations.data)
    for first in range(0, len(locations), _BLOCK_ROWS):
        offsets = locations.offsets[first : first + _BLOCK_ROWS + 1]
        block, offsets = data[offsets[0] : offsets[-1]], offsets - offsets[0]
        if _differ_only_in_neutral(block, offsets):
            is_plain = np.repeat(_check_plain(block[: offsets[1]], offsets[:2]), len(offsets) - 1)
        else:
            is_plain = _check_plain(block, offsets)
        yield _Block(first, block, offsets[:-1], offsets[1:], is_plain)


def _differ_only_in_neutral(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bool:
    """Return whether locations differ only in neutral bytes, like those of numbered files."""
    length = int(offsets[1])
    if not length or not (np.diff(offsets) == length).all():
        return False
    # Comparing neighbours suffices: all locations are equal where no two neighbours differ.
    varies = (data[length:] != data[:-length]).reshape(-1, length).any(axis=0)
    host = data[:length].tobytes().find(b"://") + len("://")
    if host < len("://") or varies[:host].any():
        return False
    return bool(_IS_NEUTRAL[data.reshape(-1, length)[:, varies]].all())


def _check_plain(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the plain locations."""
    starts, ends = offsets[:-1], offsets[1:]
    is_plain = (ends - starts > 0) & (ends - starts <= MAX_KEY_BYTES)
    if not len(data):
        return is_plain
    text = data.tobytes()
    is_slash = data == _SLASH
    doubled = np.flatnonzero(is_slash[:-1] & is_slash[1:])
    is_file = _check_prefix(data, starts, ends, _FILE)
    # The only '//' is the one after the scheme ('///' for local files): any other is an empty
    # segment.
    if len(doubled) == len(starts) and ((starts <= doubled) & (doubled < ends - 1)).all():
        first = np.arange(len(starts))
        is_plain &= ~is_file
    else:
        first = np.searchsorted(doubled, starts)
        is_plain &= np.searchsorted(doubled, ends - 1) - first == 1 + is_file
    # Most blocks have no special bytes or dots, which bytes methods check faster than numpy.
    if len(text.translate(None, _SPECIAL)) < len(text):
        special = np.flatnonzero(_IS_SPECIAL[data])
        is_plain &= np.searchsorted(special, starts) == np.searchsorted(special, ends)
    if b"/." in text:
        dots = np.flatnonzero(is_slash[:-1] & (data[1:] == _DOT))
        is_plain &= np.searchsorted(dots, starts) == np.searchsorted(dots, ends - 1)
    is_plain[is_plain] = data[ends[is_plain] - 1] != _SLASH
    rows = np.flatnonzero(is_plain & ~is_file)
    is_plain[rows] = _check_host(data, starts[rows], ends[rows], doubled[first[rows]] + 2, is_slash)
    return is_plain


def _check_host(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    hosts: NDArray[np.int64],
    is_slash: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return a mask of the locations with a plain scheme, a host and a path."""
    scheme_bytes = hosts - starts - len("://")
    is_valid = (scheme_bytes > 0) & (scheme_bytes <= _MAX_SCHEME_BYTES) & (hosts < ends)
    is_valid[is_valid] = data[hosts[is_valid] - len("://")] == _COLON
    for position in range(_MAX_SCHEME_BYTES):
        inside = is_valid & (position < scheme_bytes)
        if not inside.any():
            break
        is_valid[inside] = _IN_SCHEME[data[starts[inside] + position]]
    is_valid[is_valid] = data[starts[is_valid]] >= ord("a")
    is_file = is_valid & (scheme_bytes == len("file"))
    is_valid[is_file] = data[starts[is_file]] != ord("f")  # file URLs with a host are not plain
    # A slash after the host starts the path.
    is_valid[is_valid] = data[hosts[is_valid]] != _SLASH
    slashes = np.flatnonzero(is_slash)
    last = np.searchsorted(slashes, ends[is_valid]) - 1
    is_valid[is_valid] = slashes[last] > hosts[is_valid]
    return is_valid


def _resolve_prefixes(table: ContainerTable, locations: Strings) -> list[_Prefix]:
    """Resolve the prefixes that plain locations can have; the longest come first."""
    prefixes = [(item.prefix.text, not item.prefix.path) for item in table.containers]
    if RELATIVE_SCHEME.encode() in locations.data.tobytes():
        prefixes += _iter_relative_prefixes(table)
    # A segment that no prefix has, so that no longer prefix matches the probe.
    used = {segment for item in table.containers for segment in item.prefix.text.split("/")}
    probe = next(name for name in map(str, range(len(used) + 1)) if name not in used)
    resolved = []
    for text, has_bucket in prefixes:
        if not text.endswith("/"):
            container, replacement = _resolve(table, text)
            resolved.append(_Prefix(text, container, replacement, is_exact=True))
            text += "/"  # noqa: PLW2901
        suffix = f"{probe}/{probe}" if has_bucket else probe
        container, location = _resolve(table, text + suffix)
        can_resolve = container != NO_CODE and location.endswith(suffix)
        index, replacement = container if can_resolve else None, location.removesuffix(suffix)
        resolved.append(_Prefix(text, index, replacement, has_bucket=has_bucket))
    return sorted(resolved, key=lambda prefix: -len(prefix.text))


def _iter_relative_prefixes(table: ContainerTable) -> Iterator[tuple[str, bool]]:
    """Yield the ``vcc://`` prefixes, and whether a bucket name follows each."""
    for name, outer in table.by_name.items():
        base = outer.prefix.text
        if outer.prefix.path:
            base = f"{base.removesuffix('/')}/"
        yield f"{RELATIVE_SCHEME}{name}/", not outer.prefix.path
        for inner in table.containers:
            if inner is not outer and inner.prefix.text.startswith(base):
                suffix = inner.prefix.text.removeprefix(base)
                yield f"{RELATIVE_SCHEME}{name}/{suffix}", not inner.prefix.path


def _match(table: ContainerTable, locations: Strings) -> _Matches:
    prefixes = _resolve_prefixes(table, locations)
    prefix_index = np.full(len(locations), -1)
    is_unmatched = np.zeros(len(locations), np.bool_)
    # The replacement of a prefix may be longer than the prefix.
    longest = max((len(prefix.replacement.encode()) for prefix in prefixes), default=0)
    for first, data, starts, ends, is_plain in _scan(locations):
        is_short = is_plain & (ends - starts <= MAX_KEY_BYTES - longest)
        is_unmatched[first : first + len(is_plain)] = ~is_short
        rows = np.flatnonzero(is_short)
        for index, prefix in enumerate(prefixes):
            text = prefix.text.encode()
            if prefix.is_exact:
                is_match = _check_prefix(data, starts[rows], ends[rows] + 1, text)
                is_match &= ends[rows] - starts[rows] == len(text)
            else:
                is_match = _check_prefix(data, starts[rows], ends[rows], text)
            matched, rows = rows[is_match], rows[~is_match]
            prefix_index[first + matched] = index
            if prefix.container is None:
                is_unmatched[first + matched] = True
            elif prefix.has_bucket and len(matched):
                buckets = starts[matched] + len(text)
                is_unmatched[first + matched] = ~_check_bucket(data, buckets, ends[matched])
            if not len(rows):
                break
    prefix_index[is_unmatched] = -1
    codes = [NO_CODE if prefix.container is None else prefix.container for prefix in prefixes]
    container = np.array([*codes, NO_CODE], np.int32)[prefix_index]
    return _Matches(prefixes, prefix_index, container, np.flatnonzero(is_unmatched).tolist())


def _check_bucket(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return a mask of the rows with a valid bucket name and a slash at ``begins``."""
    stops = np.append(np.flatnonzero(~_IN_BUCKET[data]), len(data))
    stop = stops[np.searchsorted(stops, begins)]
    is_valid: NDArray[np.bool_] = (begins < stop) & (stop < ends)
    is_valid &= stop - begins <= _MAX_BUCKET_BYTES
    is_valid[is_valid] = (data[stop[is_valid]] == _SLASH) & _STARTS_BUCKET[data[begins[is_valid]]]
    return is_valid


def _check_prefix(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], prefix: bytes
) -> NDArray[np.bool_]:
    """Return a mask of the strings that are longer than ``prefix`` and start with it."""
    is_match = ends - starts > len(prefix)
    position = 0
    while position < len(prefix) and is_match.any():
        # Words of up to 8 bytes: the first comparison usually decides.
        size = next(size for size in (8, 4, 2, 1) if size <= len(prefix) - position)
        words = np.ndarray((len(data) - size + 1,), f"<u{size}", data, strides=(1,))
        expected = int.from_bytes(prefix[position : position + size], "little")
        is_match[is_match] = words[starts[is_match] + position] == expected
        position += size
    return is_match
