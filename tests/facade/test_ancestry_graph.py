"""The ancestry graph: layout, text, SVG and escaping."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe import AncestryGraph, InvalidInputError, RefNotFoundError, Repository
from icefloe.display import Commit, lay_out, render_graph_svg, render_graph_text
from icefloe.storage import in_memory_storage

START = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
HOSTILE = "<script>alert('1')</script> & \"x\" \x1b[31m \x00 \u202e \ud800"


def commit(name: str, parent: str | None, minute: int, *branches: str, tag: str = "") -> Commit:
    tags = (tag,) if tag else ()
    at = START + timedelta(minutes=minute)
    return Commit(f"{name:-<20}", f"{parent:-<20}" if parent else None, at, name, branches, tags)


FORKED = [
    commit("A", None, 0),
    commit("B", "A", 1, tag="v1"),
    commit("C", "B", 2, "main"),
    commit("D", "B", 3, "dev"),
    commit("E", "A", 4, "old"),
]


def test_text() -> None:
    """Newest first, `main` on the left; lines join where branches started."""
    assert str(AncestryGraph(FORKED, plain=True)).splitlines() == [
        "  ●   E------- 2026-01-02 03:08 (old) E",
        "  │ ● D------- 2026-01-02 03:07 (dev) D",
        "● │ │ C------- 2026-01-02 03:06 (main) C",
        "●─┼─╯ B------- 2026-01-02 03:05 (tag: v1) B",
        "●─╯   A------- 2026-01-02 03:04 A",
    ]


def test_colours_unless_plain() -> None:
    """The same text, with colours that any terminal has."""
    text = str(AncestryGraph(FORKED))
    assert "\x1b[32m●\x1b[0m" in text
    assert "\x1b" not in repr(AncestryGraph(FORKED, plain=True))


def test_svg() -> None:
    """One dot for each commit, labels for refs, no external resources."""
    root = ET.fromstring(AncestryGraph(FORKED)._repr_svg_())  # noqa: S314
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert tags.count("circle") == 5
    assert tags.count("rect") == 4
    assert set(tags) <= {"svg", "title", "path", "circle", "rect", "text"}
    assert "main" in "".join(root.itertext())


def test_names_and_messages_are_harmless() -> None:
    """Markup and control characters are escaped."""
    graph = lay_out([Commit("X" * 20, None, START, HOSTILE, (HOSTILE,), (HOSTILE,))])
    svg = render_graph_svg(graph)
    root = ET.fromstring(svg.encode())  # noqa: S314 - written here
    assert "script" not in {element.tag.rpartition("}")[2] for element in root.iter()}
    text = render_graph_text(graph, plain=True)
    assert text.isprintable()
    assert "\\x1b[31m" in text
    text.encode()


def test_no_commits() -> None:
    """An empty graph has empty text and valid SVG."""
    assert str(AncestryGraph()) == ""
    ET.fromstring(AncestryGraph()._repr_svg_())  # noqa: S314


def test_only_the_svg_truncates_a_long_history() -> None:
    """The SVG shows the newest commits; the text shows all."""
    many = [commit(f"C{n}", f"C{n - 1}" if n else None, n) for n in range(600)]
    graph = AncestryGraph(many)
    assert len(str(graph).splitlines()) == 600
    assert "and 100 older commits" in graph._repr_svg_()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=30))
def test_layout_of_any_tree(choices: list[tuple[int, int]]) -> None:
    """Every commit occurs once, above its parent, and no two lines share a lane."""
    commits = [
        commit(f"N{n}", f"N{parent % n}" if n else None, minute)
        for n, (parent, minute) in enumerate(choices)
    ]
    graph = lay_out(commits)
    places = {row.commit.id: place for place, row in enumerate(graph.rows)}
    assert sorted(places) == sorted(info.id for info in commits)
    for row in graph.rows:
        if row.commit.parent_id is not None:
            assert places[row.commit.parent_id] > places[row.commit.id]
        assert row.lane not in row.passing
        assert not row.passing.keys() & row.joining.keys()
        assert max([row.lane, *row.passing, *row.joining]) < graph.num_lanes
    ET.fromstring(render_graph_svg(graph))  # noqa: S314


def test_graph_of_a_repository() -> None:
    """The graph shows the whole repository, or the history of one ref."""
    repository = Repository.create(in_memory_storage())
    first = repository.lookup_branch("main")
    repository.create_branch("dev", first)
    repository.create_tag("v1", first)
    whole = str(repository.ancestry_graph(plain=True))
    assert whole.startswith(f"● {first[:8]} ")
    assert whole.endswith(" (dev, main, tag: v1) Repository initialized")
    assert str(repository.ancestry_graph(tag="v1", plain=True)) == whole
    with pytest.raises(RefNotFoundError):
        repository.ancestry_graph(branch="nope")
    with pytest.raises(InvalidInputError):
        repository.ancestry_graph(branch="main", tag="v1")
