"""Paths of nodes: absolute, normalised, in the order of their bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.model.path import ROOT, Path

segment = st.text(min_size=1, max_size=5).filter(
    lambda text: "/" not in text and text not in (".", "..") and text.isprintable()
)


@pytest.mark.parametrize("value", ["/", "/group", "/group/arr", "/a b/ü", "/.hidden", "/a..b/..."])
def test_paths_keep_their_spelling(value: str) -> None:
    """A normalised absolute path is taken as it is."""
    assert str(Path(value)) == value


@pytest.mark.parametrize(
    "value",
    ["", "a", "a/b", "/a/", "//", "/a//b", "/./a", "/a/..", "/..", "/.", "/ü/", "/ü//a", "/\ud800"],
)
def test_other_spellings_are_refused(value: str) -> None:
    """A path that is relative, not normalised or no Unicode raises, and the message helps."""
    with pytest.raises(InvalidInputError, match="is not a valid path, such as '/group/array'"):
        Path(value)


@given(st.lists(segment, max_size=4))
def test_family(segments: list[str]) -> None:
    """Children, parents, ancestors and segments agree with each other."""
    path = ROOT
    for name in segments:
        child = path.child(name)
        assert child.parent == path
        assert child.name == name
        assert child.is_below(path)
        assert not path.is_below(child)
        path = child
    assert path.segments == tuple(segments)
    assert len(list(path.ancestors())) == len(segments)
    assert not path.is_below(path)


def test_a_sibling_with_the_same_beginning_is_not_below() -> None:
    """``/a-b`` is not below ``/a``."""
    assert not Path("/a-b").is_below(Path("/a"))


@given(st.lists(st.lists(segment, max_size=3).map(lambda names: Path("/" + "/".join(names)))))
def test_order_is_that_of_bytes(paths: list[Path]) -> None:
    """Paths sort as their UTF-8 bytes do, which is the order that snapshots demand."""
    assert sorted(paths) == sorted(paths, key=lambda path: path.value.encode())
