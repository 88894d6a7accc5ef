"""Random sequences of turns by icefloe and Icechunk: what one refuses the other refuses, too."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.interop_alternation import Alternation

if TYPE_CHECKING:
    from support.interop_alternation import Setting

PATHS = ["a", "b", "g", "g/a", "g/b", "g/h/a", "a/inside"]
paths = st.sampled_from(PATHS)
lengths = st.integers(0, 9)
boxes = st.lists(st.tuples(lengths, lengths).map(sorted), min_size=1, max_size=2)
shapes = st.lists(lengths, min_size=1, max_size=2)
seeds = st.integers(0, 3)
indices = st.integers(0, 3)

edits: st.SearchStrategy[list[Any]] = st.one_of(
    st.tuples(st.just("group"), paths, st.dictionaries(st.just("k"), seeds)).map(list),
    st.builds(
        lambda path, shape, chunk, dtype: ["array", path, shape, [chunk] * len(shape), dtype],
        paths,
        shapes,
        st.integers(1, 4),
        st.sampled_from(["int8", "float64"]),
    ),
    st.tuples(st.just("write"), paths, boxes, seeds).map(list),
    st.tuples(st.just("write"), paths, boxes, seeds).map(list),
    st.tuples(st.just("resize"), paths, shapes).map(list),
    st.tuples(st.just("attributes"), paths, st.dictionaries(st.just("k"), seeds)).map(list),
    st.tuples(st.just("delete"), paths).map(list),
    st.builds(lambda path, i: ["delete_key", f"{path}/c/{i}"], paths, indices),
    st.builds(lambda path, i, j: ["delete_key", f"{path}/c/{i}/{j}"], paths, indices, indices),
)
moves: st.SearchStrategy[list[Any]] = st.builds(
    lambda source, target: ["move", f"/{source}", f"/{target}"], paths, paths
)
sides = st.sampled_from(["us", "them"])
configs = st.fixed_dictionaries(
    {},
    optional={
        "inline": st.sampled_from([0, 8, 512]),
        "split": st.integers(1, 3),
        "pack": st.just(value=True),
    },
)


@st.composite
def turns(draw: st.DrawFn, *, version: int) -> tuple[str, dict[str, Any]]:
    """One change by one side: a commit, or something with a branch or a tag."""
    kinds = ["commit"] * 6 + ["ref"] + ["move", "amend"] * (version > 1)
    kind = draw(st.sampled_from(kinds))
    turn: dict[str, Any] = {"by": draw(sides)}
    if kind == "ref":
        name = draw(st.sampled_from(["create_tag", "delete_tag", "reset_branch"]))
        back = [str(draw(st.integers(0, 2)))] if name != "delete_tag" else []
        target = "main" if name == "reset_branch" else draw(st.sampled_from(["t1", "t2"]))
        return "refer", {**turn, "name": name, "arguments": [target, *back]}
    made = draw(st.lists(moves if kind == "move" else edits, min_size=1, max_size=4))
    how = "amend" if kind == "amend" else "commit"
    return "change", {**turn, "edits": made, "how": how, "settings": draw(configs)}


def play(setting: Setting, script: list[tuple[str, dict[str, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        both = Alternation(Path(folder, "repository"), setting.spec_version, setting.wheel)
        both.create("us")
        both.change("them", ["group", "", {}], ["group", "g", {}])
        both.change("us", ["array", "g/a", [9, 5], [2, 2], "int16"], ["write", "g/a", [[0, 7]], 9])
        for name, turn in script:
            if name == "refer":
                both.refer(turn["by"], turn["name"], *turn["arguments"], must_succeed=False)
            else:
                both.change(
                    turn["by"],
                    *turn["edits"],
                    how=turn["how"],
                    must_succeed=False,
                    **turn["settings"],
                )


# Each example is a repository; failures are reproducible.
bounded = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # a shorter script is soon found by hand, and takes minutes here
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@bounded
@given(script=st.lists(turns(version=1), min_size=5, max_size=8))
def test_any_sequence(setting: Setting, script: list[tuple[str, dict[str, Any]]]) -> None:
    """Whatever the two do to a hierarchy in turns, they agree."""
    play(setting, script)


@bounded
@given(script=st.lists(turns(version=2), min_size=5, max_size=8))
def test_any_sequence_with_moves(
    setting_v2: Setting, script: list[tuple[str, dict[str, Any]]]
) -> None:
    """The same with moved nodes and amended commits, which version 2 has."""
    play(setting_v2, script)
