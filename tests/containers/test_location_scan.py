"""The vectorized scan of locations agrees with parsing each."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.containers.container_table import ContainerTable
from icefloe.containers.location_scan import find_malformed, resolve_locations
from icefloe.containers.locations import parse_location
from icefloe.errors import InvalidInputError
from icefloe.model.manifest import NO_CODE
from icefloe.model.strings import Strings

_PIECES = st.sampled_from(
    ["s3", "S3", "://", "//", "/", ".", "..", "a", "x.nc", "%20", "%2e", "%2F", "?", "#", "file:",
     "file:///", "é", "\x00", "@", ":", "vcc", "vcc://cold", "gs1+x", "x" * 13, "", "\\", "-",
     "s3://archive", "s3://one/file"]
)  # fmt: skip
_TEXTS = st.lists(_PIECES, max_size=4).map("".join)
_LOCATIONS = st.lists(
    st.one_of(
        st.lists(_PIECES, max_size=7).map("".join),
        _TEXTS.map(lambda text: "s3://archive/" + text),
    ),
    max_size=40,
)
# Of one length, and different in one place.
_NUMBERED = st.builds(
    lambda before, varying, after: [f"{before}{text}{after}" for text in varying],
    st.sampled_from(["", "s", "s3:/", "s3://", "s3://archive/", "file://", "s3://archive/a"]),
    st.text("ab01_-/.%@:?S", max_size=40),
    st.sampled_from(["/x.nc", "://archive/x"]) | _TEXTS,
)
_CASES = settings(max_examples=150, deadline=None)

TABLE = ContainerTable(
    [
        icefloe.VirtualChunkContainer("s3://archive/", icefloe.s3_store(), name="cold"),
        icefloe.VirtualChunkContainer("s3://archive/a/", icefloe.s3_store(), name="inner"),
        icefloe.VirtualChunkContainer("s3://one/file/", icefloe.s3_store()),
    ]
)


def _is_malformed(location: str) -> bool:
    try:
        parse_location(location)
    except InvalidInputError:
        return True
    return False


@_CASES
@given(_LOCATIONS | _NUMBERED)
@example(["a://archive/x", "1://archive/x"])
@example(["bile://archive/x", "file://archive/x"])
def test_malformed_locations(locations: list[str]) -> None:
    """The scan finds exactly the locations that the parser rejects."""
    found = find_malformed(Strings.of(locations)).tolist()
    assert found == [row for row, location in enumerate(locations) if _is_malformed(location)]


@_CASES
@given(_LOCATIONS | _NUMBERED)
def test_containers_and_places(locations: list[str]) -> None:
    """The scan finds the container and the file that the table finds."""
    expected = []
    for location in locations:
        try:
            file = TABLE.find(location)
        except InvalidInputError:
            expected.append((NO_CODE, location))
        else:
            expected.append((TABLE.containers.index(file.container), file.location.text))
    found = resolve_locations(TABLE, Strings.of(locations))
    assert list(zip(found.container.tolist(), found.locations, strict=True)) == expected
