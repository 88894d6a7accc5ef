"""Reprs, and HTML for notebooks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import zarr

from icefloe import (
    Conflict,
    ConflictType,
    Diff,
    History,
    ManifestConfig,
    ObjectStoreConfig,
    RepoAvailability,
    Repository,
    RepositoryConfig,
    RepoStatus,
    SnapshotInfo,
    StorageError,
    VirtualChunkContainer,
    in_memory_storage,
)
from icefloe.display import escape_unsafe, format_first_line, with_repr_fallback
from icefloe.display.chunk_map import draw_chunk_map
from support.counting_storage import CountingStorage

if TYPE_CHECKING:
    from icefloe import Session

TIME = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J\u202e"
ALLOWED = {
    "div",
    "b",
    "table",
    "tbody",
    "tr",
    "td",
    "th",
    "span",
    "code",
    "details",
    "summary",
    "br",
    "svg",
    "rect",
}


class FarStorage(CountingStorage):
    """Counts requests, like remote storage."""

    @property
    def is_low_latency(self) -> bool:
        return False


def elements(html: str) -> set[str]:
    """Parse strictly, and return the names of all elements."""
    return {element.tag for element in ET.fromstring(f"<x>{html}</x>").iter()} - {"x"}  # noqa: S314


@pytest.fixture
def repository() -> Repository:
    made = Repository.create(in_memory_storage(), spec_version=2)
    with made.transaction("main", message=f"first {HOSTILE}", metadata={HOSTILE: HOSTILE}) as store:
        zarr.create_array(store, name="a", shape=(30,), chunks=(1,), dtype="i4")[:] = 1
    made.create_branch(f"b{HOSTILE}"[:20], made.lookup_branch("main"))
    made.create_tag("v1", made.lookup_branch("main"))
    return made


def change(repository: Repository) -> Session:
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    group["a"][:] = 2  # type: ignore[index]
    group.create_group("<b>new")
    return session


def test_reprs_are_short(repository: Repository) -> None:
    """Reprs are one line with the main fields."""
    session = change(repository)
    tip = repository.lookup_branch("main")
    expected: dict[Any, str] = {
        repository: "<Repository memory://, format v2>",
        session: f"<Session writable on 'main' at {tip} of memory://, uncommitted changes>",
        SnapshotInfo("ID", None, TIME, "a\nb"): "<SnapshotInfo ID, 2026-01-02 03:04 UTC: 'a'>",
        RepoStatus(RepoAvailability.read_only, TIME, "moving"): (
            "<RepoStatus read_only since 2026-01-02 03:04:00 UTC: 'moving'>"
        ),
    }
    for value, text in expected.items():
        assert repr(value) == text
    assert repr(session.store).startswith("<IcechunkStore of <Session writable on 'main'")
    assert repr(session.status()) == "<Diff: 1 new group, 30 updated chunks in 1 array>"
    conflict = Conflict(ConflictType.ChunkDoubleUpdate, "/a", [[n] for n in range(9)])
    assert repr(conflict) == "<Conflict ChunkDoubleUpdate at /a, chunks [0], [1], [2] and 6 more>"
    assert repr(RepositoryConfig(inline_chunk_threshold_bytes=3)) == (
        "RepositoryConfig(inline_chunk_threshold_bytes=3)"
    )


def test_a_diff_in_full(repository: Repository) -> None:
    """`str` lists paths and the first chunks."""
    assert str(change(repository).status()).splitlines() == [
        "New groups:",
        "    /<b>new",
        "Updated chunks:",
        "    /a: [0] [1] [2] [3] [4] [5] [6] [7] [8] [9] and 20 more",
    ]
    assert (repr(Diff()), str(Diff())) == ("<Diff: nothing changed>", "Nothing changed")
    moved = Diff(moved_nodes=[("/a", "/b")], deleted_arrays={"/c"})
    assert str(moved).endswith("Moved nodes:\n    /a -> /b")


def test_html_is_harmless_and_small(repository: Repository) -> None:
    """Untrusted markup is escaped; there are no style sheets, scripts or external resources."""
    session = change(repository)
    many = Diff(new_arrays={f"/{HOSTILE}{n}" for n in range(99)}, moved_nodes=[(HOSTILE, "/x")])
    shown: list[Any] = [
        repository,
        session,
        session.store,
        session.status(),
        many,
        Diff(),
        History(repository.ancestry(branch="main")),
        next(repository.ancestry(branch="main")),
        repository.config,
        RepositoryConfig(),
    ]
    for value in shown:
        html = value._repr_html_()
        assert elements(html) <= ALLOWED, value
        assert "http" not in html
        assert "\x1b" not in html
        assert "\u202e" not in html
        html.encode()


def test_a_session_shows_its_tree(repository: Repository) -> None:
    """In the order of paths, with uncommitted nodes; long lists are truncated."""
    session = change(repository)
    html = session._repr_html_()
    assert html.index(">a</code>") > html.index("&lt;b&gt;new</code>")
    assert "int32 (30) in 30 chunks" in html
    for number in range(60):
        zarr.create_group(session.store, path=f"group {number}")
    html = session._repr_html_()
    assert html.count("</code></td>") == 2 + 50  # snapshot, repository and nodes
    assert "and more nodes" in html


@pytest.mark.parametrize(
    "chunks, rows, columns, squares",
    [
        ([[]], 1, 1, 1),
        ([[0], [3]], 1, 4, 2),
        ([[9, 0, 2], [8, 1, 2], [7, 1, 2]], 2, 3, 2),
        ([[row, column] for row in range(100) for column in range(100)], 15, 34, 510),
    ],
)
def test_a_map_of_chunks(chunks: list[list[int]], rows: int, columns: int, squares: int) -> None:
    """Cells are the chunks along the last two dimensions, several each in a large grid."""
    svg = ET.fromstring(draw_chunk_map(chunks))  # noqa: S314
    assert (svg.get("width"), svg.get("height")) == (str(9 * columns + 1), str(9 * rows + 1))
    assert len(svg) == 1 + squares


def test_refs_are_shown_if_they_are_cheap_to_fetch(repository: Repository) -> None:
    """In memory and on disks they are; with remote storage, displaying makes no requests."""
    assert ">v1</span>" in repository._repr_html_()
    assert ">main</span>" in repository._repr_html_()
    assert repository.lookup_branch("main") in repository._repr_html_()
    far = FarStorage(in_memory_storage())
    remote = Repository.create(far)
    before = far.calls
    assert "branches" not in remote._repr_html_()
    assert far.calls == before


def test_html_never_raises(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the HTML fails, the repr is shown, and if that fails, the class name."""

    def fail(*_: object) -> None:
        raise StorageError("gone")

    monkeypatch.setattr(type(repository._connection.refs), "fetch", fail)
    assert repository._repr_html_() == "<pre>&lt;Repository memory://, format v2&gt;</pre>"

    class Broken:
        def __repr__(self) -> str:
            raise ValueError

        @with_repr_fallback
        def _repr_html_(self) -> str:
            raise ValueError

    assert Broken()._repr_html_() == "<pre>&lt;Broken&gt;</pre>"


def test_configuration_shows_set_and_effective_values() -> None:
    """Values that may be secret are omitted."""
    store = ObjectStoreConfig.Gcs({"token": "s3cret"})
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=7,
        manifest=ManifestConfig(max_concurrent_manifest_fetches_during_commit=3),
        virtual_chunk_containers={"gs://b/": VirtualChunkContainer("gs://b/", store)},
    )
    html = config._repr_html_()
    on_top, fold = html.split("<details", 1)
    assert "inline_chunk_threshold_bytes" in on_top
    assert "manifest.max_concurrent_manifest_fetches_during_commit" in on_top
    assert "compression.level" not in on_top
    assert "compression.level" in fold
    assert "s3cret" not in html
    assert "no values are set" in RepositoryConfig()._repr_html_()


def test_a_long_history_is_truncated(repository: Repository) -> None:
    """The table shows a hundred commits; the value has all."""
    history = History([next(repository.ancestry(branch="main"))] * 150)
    assert len(history) == 150
    assert "and 50 more commits" in history._repr_html_()
    assert repr(History()) == "<History: no commits>"


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain", "plain"),
        ("größe 温度", "größe 温度"),
        ("a\x1b[31mb\x07", "a\\x1b[31mb\\x07"),
        ("a\u202eb\ud800", "a\\u202eb\\ud800"),
        ("a\nb", "a\\nb"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    """They are shown as escape sequences."""
    assert escape_unsafe(text) == shown


@pytest.mark.parametrize(
    "text, shown",
    [("  first\nsecond", "first"), ("", ""), ("abcdefgh", "abcde…"), ("温度温度", "温度…")],
)
def test_one_line(text: str, shown: str) -> None:
    """The first line is truncated to a width in columns."""
    assert format_first_line(text, 6) == shown
