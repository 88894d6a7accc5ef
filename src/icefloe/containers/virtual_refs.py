"""Lists the virtual references of a session, optionally filtered by a query.

Reads one manifest at a time, so that the largest manifest bounds memory, and examines each distinct
location once per manifest. Virtual data is never read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import translate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.arrow import load_pyarrow, to_dictionary_array
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.manifest import NO_CODE, merge_codes
from icefloe.model.path import Path
from icefloe.model.strings import Strings
from icefloe.transaction import overlay
from icefloe.url_secrets import masked_repr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from icefloe.containers.virtual_chunks import VirtualChunks
    from icefloe.model.manifest import ArrayManifest
    from icefloe.transaction.transaction import Transaction

BATCH_ROWS = 1 << 16


@masked_repr
@dataclass(frozen=True, slots=True)
class VirtualRef:
    """A chunk whose bytes are in a file outside the repository.

    Attributes
    ----------
    location
        The file, as stored in the reference.
    etag, last_modified
        Checksum of the file, None if unknown.
    container
        URL prefix of the container of the location, None if no container matches.
    """

    array_path: str
    index: tuple[int, ...]
    location: str
    offset: int
    length: int
    etag: str | None
    last_modified: datetime | None
    container: str | None


@dataclass(frozen=True, slots=True)
class RefsQuery:
    """Filter of virtual references by array or group, location and container.

    A reference must satisfy all conditions that are not None. ``glob`` must match the whole
    location, and ``*`` also matches slashes; ``regex`` may match anywhere in the location;
    ``container`` is a name or a URL prefix.
    """

    array_path: str | None = None
    prefix: str | None = None
    glob: str | None = None
    regex: str | None = None
    container: str | None = None

    def compile_location_tests(self) -> list[Callable[[str], object]]:
        """Return the predicates that the text of a location must satisfy."""
        tests: list[Callable[[str], object]] = []
        if self.prefix is not None:
            tests.append(re.compile(re.escape(self.prefix)).match)
        if self.glob is not None:
            tests.append(re.compile(translate(self.glob)).match)
        if self.regex is not None:
            try:
                tests.append(re.compile(self.regex).search)
            except re.error as error:
                problem = f"is not a regular expression: {error}"
                raise InvalidInputError(f"regex={self.regex!r} {problem}") from error
        return tests


class RefsPart(NamedTuple):
    """Virtual references of one array, columnar, with the container of each location."""

    path: Path
    refs: ArrayManifest
    container_of_location: NDArray[np.int32]

    @property
    def container(self) -> NDArray[np.int32]:
        """Index of each row's container in `VirtualChunks.containers`."""
        return self.container_of_location[self.refs.payloads.location_codes]


def list_refs(
    transaction: Transaction, virtual: VirtualChunks, query: RefsQuery, *, with_containers: bool
) -> Iterator[RefsPart]:
    """Yield the virtual references that match a query, in parts of one array each.

    A location may match as stored or as resolved, so that a prefix also finds ``vcc://`` locations
    below it. Without ``with_containers``, containers are looked up only if the query needs them.
    """
    tests = query.compile_location_tests()
    container = None if query.container is None else virtual.find_container(query.container)
    for path in _find_arrays(transaction, query.array_path):
        for part in transaction.fetch_chunk_refs(path):
            is_virtual = part.payloads.kind == ChunkKind.VIRTUAL
            if not is_virtual.any():
                continue
            refs = part if is_virtual.all() else overlay.select(part, np.flatnonzero(is_virtual))
            if not with_containers and container is None and not tests:
                unknown = np.full(len(refs.payloads.locations), NO_CODE, np.int32)
                yield RefsPart(path, refs, unknown)
                continue
            resolved = virtual.resolve_many(refs.payloads.locations)
            is_match = np.ones(len(resolved.container), bool)
            if container is not None:
                is_match &= resolved.container == container
            if tests:
                has_passed = _run_tests(tests, refs.payloads.locations)
                if resolved.locations is not refs.payloads.locations:
                    has_passed |= _run_tests(tests, resolved.locations)
                is_match &= has_passed
            if not is_match.all():
                rows = np.flatnonzero(is_match[refs.payloads.location_codes])
                if not len(rows):
                    continue
                refs = overlay.select(refs, rows)
            yield RefsPart(path, refs, resolved.container)


def iter_refs(parts: Iterator[RefsPart], prefixes: list[str]) -> Iterator[VirtualRef]:
    """Yield references one by one; ``prefixes`` are the URL prefixes of the containers."""
    prefix_by_code: list[str | None] = [*prefixes, None]  # NO_CODE is -1
    for path, refs, container_of_location in parts:
        payloads = refs.payloads
        locations = list(payloads.locations)
        etags = [*payloads.etags, None]
        containers = [prefix_by_code[code] for code in container_of_location.tolist()]
        array_path = str(path)
        columns = (
            refs.coords,
            payloads.location_codes,
            payloads.offset,
            payloads.length,
            payloads.etag_codes,
            payloads.last_modified,
        )
        # Converted in blocks: Python integers take far more memory than the columns.
        for begin in range(0, len(refs), BATCH_ROWS):
            lists = (column[begin : begin + BATCH_ROWS].tolist() for column in columns)
            for index, code, offset, length, etag, seconds in zip(*lists, strict=True):
                time = datetime.fromtimestamp(seconds, UTC) if seconds and etag == NO_CODE else None
                file, container = locations[code], containers[code]
                yield VirtualRef(
                    array_path, tuple(index), file, offset, length, etags[etag], time, container
                )


def iter_record_batches(parts: Iterator[RefsPart], prefixes: list[str]) -> Iterator[Any]:
    """Yield references as Arrow record batches of one schema; vectorized."""
    table = Strings.of(prefixes)
    for part in parts:
        for begin in range(0, len(part.refs), BATCH_ROWS):
            rows = slice(begin, begin + BATCH_ROWS)
            refs = overlay.select(part.refs, rows)
            refs = type(refs)(refs.coords, overlay.compact(refs.payloads))
            yield _build_record_batch(part.path, refs, part.container[rows], table)


def build_refs_table(parts: Iterator[RefsPart], prefixes: list[str]) -> Any:
    """Return references as one Arrow table."""
    pa = load_pyarrow()
    batches = list(iter_record_batches(parts, prefixes))
    return pa.Table.from_batches(batches, build_refs_schema()).unify_dictionaries()


def find_distinct_locations(parts: Iterator[RefsPart]) -> list[str]:
    """Return the distinct locations of references."""
    tables = []
    for part in parts:
        payloads = overlay.compact(part.refs.payloads)
        tables.append((np.arange(len(payloads.locations), dtype=np.int32), payloads.locations))
    if not tables:
        return []
    # The locations of a single manifest are distinct.
    return (tables[0][1] if len(tables) == 1 else merge_codes(tables)[1]).tolist()


def build_refs_schema() -> Any:
    """Return the schema of a listing; `set_virtual_refs_table` accepts its columns."""
    pa = load_pyarrow()
    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            pa.field("array_path", text, nullable=False),
            pa.field("index", pa.list_(pa.uint32()), nullable=False),
            pa.field("location", text, nullable=False),
            pa.field("offset", pa.uint64(), nullable=False),
            pa.field("length", pa.uint64(), nullable=False),
            pa.field("etag", text),
            pa.field("last_modified", pa.timestamp("s", tz="UTC")),
            pa.field("container", text),
        ]
    )


def _build_record_batch(
    path: Path, refs: ArrayManifest, container: NDArray[np.int32], prefixes: Strings
) -> Any:
    pa = load_pyarrow()
    rows, ndim = refs.coords.shape
    payloads = refs.payloads
    ends = np.arange(rows + 1, dtype=np.int32) * ndim
    seconds = np.where(payloads.etag_codes == NO_CODE, payloads.last_modified, 0).astype(np.int64)
    return pa.RecordBatch.from_arrays(
        [
            to_dictionary_array(np.zeros(rows, np.int32), Strings.of([str(path)])),
            pa.ListArray.from_arrays(ends, np.ascontiguousarray(refs.coords).reshape(-1)),
            to_dictionary_array(payloads.location_codes, payloads.locations),
            pa.array(payloads.offset),
            pa.array(payloads.length),
            to_dictionary_array(payloads.etag_codes, payloads.etags),
            pa.array(seconds, mask=seconds == 0).cast(pa.timestamp("s", tz="UTC")),
            to_dictionary_array(container, prefixes),
        ],
        schema=build_refs_schema(),
    )


def _find_arrays(transaction: Transaction, array_path: str | None) -> list[Path]:
    root = Path("/" + (array_path or "").strip("/"))
    node = transaction.get_node(root)
    if node is not None and node.is_array:
        return [root]
    nodes = sorted(node.path for node in transaction.iter_nodes_below(root) if node.is_array)
    if array_path is not None and node is None and not nodes:
        transaction.require_node(root)
    return nodes


def _run_tests(tests: list[Callable[[str], object]], texts: Strings) -> NDArray[np.bool_]:
    return np.fromiter((all(test(text) for test in tests) for text in texts), np.bool_, len(texts))
