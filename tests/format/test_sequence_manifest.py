"""Manifest files of generation sequence: keys, columns, foreign layouts and damage."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format.sequence import manifest as manifest_files
from icefloe.format.sequence.chunk_keys import format_key, format_numbers, parse_key
from icefloe.format.sequence.manifest import decode_manifest, encode_manifest
from icefloe.format.sequence.manifest_scan import find_row_starts, scan_rows
from icefloe.format.sequence.manifest_text import format_decimals
from icefloe.model.chunk_payload import ChunkRef, ETag, InlineChunk, LastModified, VirtualChunkRef
from icefloe.model.ids import ChunkId, ManifestId, NodeId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from support.format_strategies import U32, U64, up_to
from support.hypothesis_examples import examples
from support.json_damage import damage_json
from support.sequence_schemas import validate
from support.sequence_strategies import manifests

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import ChunkPayload

FILE = "m/damaged.json"
MANIFEST_ID = ManifestId(bytes(16))
KEYS = st.tuples(up_to(U32), st.lists(up_to(U32), max_size=4).map(tuple))


def make_manifest(*payloads: ChunkPayload) -> Manifest:
    coords = np.arange(len(payloads), dtype=np.uint32).reshape(-1, 1)
    array = ArrayManifest(coords, ChunkPayloads.of(payloads))
    return Manifest.of(MANIFEST_ID, {NodeId.from_number(7): array})


def encode_members(*members: str) -> bytes:
    return ('{"chunks":{' + ",".join(members) + "}}").encode()


def try_decoding(data: bytes) -> Manifest | None:
    """Decode a file, or return None if it is refused with an error that names it."""
    return require_name(lambda: decode_manifest(data, FILE, MANIFEST_ID))


def try_parsing(data: bytes) -> Manifest | None:
    """Decode a file with a JSON parser only, or return None if it is refused."""

    def parse() -> Manifest:
        part = manifest_files._parse_file(data, FILE)
        return manifest_files._build_manifest([part], FILE, MANIFEST_ID)

    return require_name(parse)


def require_name(decode: Callable[[], Manifest]) -> Manifest | None:
    try:
        return decode()
    except FormatError as error:
        if not str(error).startswith(FILE):
            raise
        return None


@given(KEYS)
def test_keys_come_back(key: tuple[int, tuple[int, ...]]) -> None:
    """A key has one reading: the node and the coordinates that it was made of."""
    assert parse_key(format_key(*key)) == key


@given(up_to(U32), st.lists(st.tuples(up_to(U32), up_to(U32)), min_size=2, max_size=8), up_to(U32))
def test_keys_are_ordered_like_tuples(node: int, coords: list[tuple[int, int]], other: int) -> None:
    """Keys of arrays, sorted as strings, are in the order of node and coordinates."""
    tuples = [(node, pair) for pair in coords] + ([(other, ())] if other != node else [])
    by_key = sorted(tuples, key=lambda key: format_key(*key))
    assert by_key == sorted(tuples)
    assert len({format_key(*key) for key in tuples}) == len(set(tuples))


@given(st.text("0123456789ABCDEFGHJKMNPQRSTVWXYZabIL", max_size=12))
def test_a_text_is_the_key_of_at_most_one_chunk(text: str) -> None:
    """A text that is read as a key is the text that is written for it."""
    key = parse_key(text)
    assert key is None or format_key(*key) == text


def test_examples_of_keys() -> None:
    """The examples of the format document."""
    assert format_key(3, (0, 33)) == "130211"
    assert format_key(0, ()) == "0"
    assert format_key(U32, (31, 32)) == "73ZZZZZZ1Z210"
    for text in ("", "1", "10", "8", "2A", "210A", "74000000", "1é", "0" * 300):
        assert parse_key(text) is None


@given(st.lists(up_to(U32), min_size=1, max_size=5))
def test_columns_of_numbers_are_written_like_single_numbers(numbers: list[int]) -> None:
    """The vectorised forms of numbers in keys and of decimals equal the plain ones."""
    rows = format_numbers(np.array(numbers, np.uint32))
    texts = [row.tobytes().replace(b"\0", b"").decode() for row in rows]
    assert texts == [format_key(number, ()) for number in numbers]


@given(st.lists(up_to(U64) | st.integers(0, 10**9), min_size=1, max_size=5))
def test_columns_of_decimals(numbers: list[int]) -> None:
    """Decimals have no leading zeros and all their digits."""
    rows = format_decimals(np.array(numbers, np.uint64))
    assert [row.tobytes().replace(b"\0", b"").decode() for row in rows] == list(map(str, numbers))


@given(manifests() | manifests(one_kind=True))
@settings(max_examples=examples(100, thorough=400), deadline=None)
def test_manifests_come_back(manifest: Manifest) -> None:
    """Arrays of any rank with payloads of all kinds: nothing is lost, by the schema and sorted."""
    data = encode_manifest(manifest)
    validate(data, "manifest")
    keys = list(json.loads(data)["chunks"])
    assert all(a < b for a, b in pairwise(keys))
    again = decode_manifest(data, FILE, manifest.id)
    assert again == manifest
    assert list(again.payloads) == list(manifest.payloads)
    assert again.payloads.chunk_id.shape[1] == 16


@given(manifests(), st.randoms(use_true_random=False))
@settings(max_examples=examples(50, thorough=200), deadline=None)
def test_other_layouts_have_the_same_values(manifest: Manifest, source: random.Random) -> None:
    """White space, escapes and any order of members and chunks make no difference."""
    content = json.loads(encode_manifest(manifest))
    members = list(content["chunks"].items())
    source.shuffle(members)
    shuffled = [
        (key, {kind: dict(sorted(ref.items(), reverse=True)) if isinstance(ref, dict) else ref})
        for key, payload in members
        for kind, ref in payload.items()
    ]
    for text in (
        json.dumps({"other": 1, "chunks": dict(shuffled)}, indent=1),
        json.dumps({"chunks": dict(members)}, separators=(",", ":")),
    ):
        again = decode_manifest(text.encode(), FILE, manifest.id)
        assert again == manifest
        assert list(again.payloads) == list(manifest.payloads)


@given(manifests())
@settings(max_examples=examples(40, thorough=100), deadline=None)
def test_the_parser_and_the_scanner_agree(manifest: Manifest) -> None:
    """A file of icefloe has the same values if it is parsed as JSON."""
    data = encode_manifest(manifest)
    part = manifest_files._parse_file(data, FILE)
    assert manifest_files._build_manifest([part], FILE, manifest.id) == decode_manifest(
        data, FILE, manifest.id
    )


def test_icefloe_files_need_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native, virtual and inline chunks, with entity tags and times, are read by columns."""
    payloads: list[ChunkPayload] = []
    for row in range(300):
        payloads += [
            ChunkRef(ChunkId.random(16), row, U64 - row),
            VirtualChunkRef(f"s3://b/{row % 7},é}}}}.nc", row * 10**15, row, LastModified(row + 1)),
            VirtualChunkRef(f"s3://b/{row}", 0, row, ETag(f'"{row}"')),
            InlineChunk(bytes(range(row % 256))),
        ]
    for kinds in (slice(None), slice(0, None, 4), slice(1, None, 4), slice(3, None, 4)):
        manifest = make_manifest(*payloads[kinds])
        data = encode_manifest(manifest)
        with monkeypatch.context() as patch:
            patch.setattr(manifest_files, "_parse_file", None)
            patch.setattr(manifest_files, "_parse_block", None)
            patch.setattr(manifest_files, "_BLOCK_BYTES", 10_000)
            again = decode_manifest(data, FILE, MANIFEST_ID)
        assert again == manifest


def test_strings_that_look_like_the_end_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locations that contain what separates rows, and escapes of every kind, come back."""
    locations = ["a}},", 'b}},"c', "]},", "\\", '\\"', "\n\x00\x7f", '"', "}}}}", "\u2028é🧊", ""]
    manifest = make_manifest(*(VirtualChunkRef(text, 1, 2, ETag(text)) for text in locations * 9))
    for num_bytes in (64, 100, 1 << 20):
        monkeypatch.setattr(manifest_files, "_BLOCK_BYTES", num_bytes)
        again = decode_manifest(encode_manifest(manifest), FILE, MANIFEST_ID)
        assert list(again.payloads) == list(manifest.payloads)


def test_long_strings_do_not_widen_all_rows() -> None:
    """A location of a megabyte among many short ones takes memory for itself alone."""
    payloads = [VirtualChunkRef(f"s3://b/{row}", 0, 1) for row in range(5000)]
    payloads[77] = VirtualChunkRef("s3://b/" + "x" * 1_000_000, 0, 1)
    manifest = make_manifest(*payloads, InlineChunk(bytes(500_000)))
    assert decode_manifest(encode_manifest(manifest), FILE, MANIFEST_ID) == manifest


REF = '{"Ref":{"id":[' + ",".join("7" * 16) + '],"length":1,"offset":2}}'


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "must be an object"),
        (b"{}", "no member 'chunks'"),
        (b'{"chunks":[]}', "must be an object"),
        (b'{"chunks":' * 100_000, "not valid JSON"),
        (encode_members(f'"10":{REF}'), "not the key"),
        (encode_members(f'"1715":{REF}', f'"1715":{REF}'), "two references"),
        (encode_members(f'"1715":{REF}', f' "1715":{REF}'), "two members"),
        (encode_members(f'"1715":{REF}', f'"17":{REF}'), "differ in rank"),
        (encode_members(f'"1715":{REF}', f'"18":{REF}', f'"17":{REF}'), "differ in rank"),
        (encode_members('"1715":{}'), "0 payloads"),
        (encode_members('"1715":1'), "must be an object"),
        (encode_members('"1715":{"Other":[]}'), "neither Inline"),
        (encode_members('"1715":{"Inline":[256]}'), "from 0 to 255"),
        (encode_members('"1715":{"Inline":[01]}'), "not valid JSON"),
        (encode_members('"1715":{"Inline":[true]}'), "from 0 to 255"),
        (encode_members(f'"1715":{REF}'.replace("7,7", "7")), "must have 16 bytes"),
        (encode_members(f'"1715":{REF}'.replace("[7,", "[307,")), "from 0 to 255"),
        (encode_members(f'"1715":{REF}'.replace(":1", f":{2**64}")), "from 0 to"),
        (encode_members(f'"1715":{REF}'.replace(":1", f":{2**64 + 1}")), "from 0 to"),
        (encode_members(f'"1715":{REF}'.replace(":1", ":-1")), "from 0 to"),
        (encode_members(f'"1715":{REF}'.replace(":1", ":" + "9" * 5000)), "not valid JSON"),
        (encode_members('"1715":{"Virtual":{"length":1,"offset":1}}'), "no member 'location'"),
        (
            encode_members('"1715":{"Virtual":{"length":1,"location":"\\ud800","offset":1}}'),
            "cannot be read",
        ),
        (
            encode_members(
                '"1715":{"Virtual":{"length":1,"location":"a","offset":1,"last_modified":0}}'
            ),
            "is 0",
        ),
        (
            b'{"chunks":{"1715":{"Virtual":{"length":1,"location":"\xff","offset":1}}}}',
            "not valid",
        ),
    ],
)
def test_bad_files(data: bytes, reason: str) -> None:
    """A file with a wrong value is refused with its name and the reason."""
    with pytest.raises(FormatError, match=reason) as caught:
        decode_manifest(data, FILE, MANIFEST_ID)
    assert str(caught.value).startswith(FILE)


def test_duplicates_in_different_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two references to one chunk are found, however far apart they are."""
    members = [f'"{format_key(7, (row,))}":{REF}' for row in range(50)]
    monkeypatch.setattr(manifest_files, "_BLOCK_BYTES", 500)
    assert len(decode_manifest(encode_members(*members[::-1]), FILE, MANIFEST_ID)) == 50
    with pytest.raises(FormatError, match="two references"):
        decode_manifest(encode_members(*members, members[3]), FILE, MANIFEST_ID)


@given(manifests(), st.randoms(use_true_random=False))
@settings(max_examples=examples(60, thorough=300), deadline=None)
def test_damaged_files(manifest: Manifest, source: random.Random) -> None:
    """A damaged file is refused with its name, or has the values that a JSON parser finds."""
    data = encode_manifest(manifest)
    for _ in range(12):
        damaged = damage_json(data, source)
        assert try_decoding(damaged) == try_parsing(damaged)


NATIVE = ChunkRef(ChunkId(bytes([0, 9, 10, 99, 100, 199, 200, 249, 250, 255, *range(6)])), U64, 10)
VIRTUAL = VirtualChunkRef('a"}},b', 0, 12345678)
TIMED = VirtualChunkRef("b", 123456789, 1, LastModified(U32))
TAGGED = VirtualChunkRef("", 7, 9, ETag('"]},c'))
INLINE = InlineChunk(bytes([0, 10, 255, 200]))


@pytest.mark.parametrize(
    "payloads",
    [
        (NATIVE, NATIVE),
        (VIRTUAL, VIRTUAL),
        (TIMED, TAGGED),
        (INLINE, InlineChunk(b""), INLINE),
        (INLINE, TAGGED, InlineChunk(b"")),
    ],
    ids=["native", "virtual", "checksums", "inline", "mixed"],
)
def test_every_damaged_byte(payloads: tuple[ChunkPayload, ...]) -> None:
    """A byte is replaced, inserted or removed anywhere: columns have the values of the parser."""
    data = encode_manifest(make_manifest(*payloads))
    read_by_columns = 0
    for position in range(len(data) + 1):
        before, after = data[:position], data[position:]
        for piece in (b"", *(bytes([byte]) for byte in b'"\\,]}0259-Z\xff')):
            for damaged in (before + piece + after[1:], before + piece + after):
                if scan_rows(*split_rows(damaged)) is not None:
                    read_by_columns += 1
                    assert try_decoding(damaged) == try_parsing(damaged), damaged
    assert read_by_columns > len(data)  # such as other digits


def split_rows(data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    text = np.frombuffer(data[len('{"chunks":{') : -len("}}")] + b",", np.uint8)
    return text, np.append(0, find_row_starts(text))


@given(st.lists(up_to(10**21) | st.integers(0, 300), min_size=1, max_size=4), st.booleans())
def test_numbers_out_of_range(numbers: list[int], has_zeros: bool) -> None:  # noqa: FBT001
    """Numbers that do not fit, or have leading zeros, are not read as other numbers."""
    texts = [f"{'0' * has_zeros}{number}" for number in numbers]
    inline = ",".join(texts)
    for data in (
        encode_members(
            *(f'"{format_key(7, (row,))}":{REF}' for row in range(2)),
            *(
                f'"{format_key(8, (row,))}":{REF}'.replace(":1,", f":{text},")
                for row, text in enumerate(texts)
            ),
        ),
        encode_members(
            *(
                f'"{format_key(8, (row,))}":{REF}'.replace("7,7]", f"7,{text}]")
                for row, text in enumerate(texts)
            )
        ),
        encode_members(f'"1715":{{"Inline":[{inline}]}}'),
    ):
        assert try_decoding(data) == try_parsing(data)


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes(body: bytes, is_wrapped: bool) -> None:  # noqa: FBT001
    """Bytes without any structure are refused."""
    data = b'{"chunks":{' + body + b"}}" if is_wrapped else body
    manifest = try_decoding(data)
    assert manifest is None or not len(manifest)


def test_what_cannot_be_written() -> None:
    """Ids of other generations and nodes without a number are refused."""
    short = make_manifest(ChunkRef(ChunkId.random(12), 0, 1))
    with pytest.raises(FormatError, match="expected 16"):
        encode_manifest(short)
    array = ArrayManifest(np.zeros((1, 1), np.uint32), ChunkPayloads.of([InlineChunk(b"")]))
    unnumbered = Manifest.of(MANIFEST_ID, {NodeId.make_provisional(): array})
    with pytest.raises(FormatError, match="no number"):
        encode_manifest(unnumbered)
