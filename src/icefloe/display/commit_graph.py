"""Layout of a commit graph: a row and a lane (column) for each commit. Pure.

A commit has at most one parent, so the history is a tree: going down, lanes join and never split.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit, with the branches and tags that point at it."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    branches: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A commit in its lane, and the lines drawn beside it.

    A line keeps its number, and its colour, until it joins another. ``passing`` maps the lanes that
    pass this row to their lines, and ``joining`` the lanes that end at this commit, because it is
    the parent of their last commit. ``continues`` is whether the line continues below.
    """

    commit: Commit
    lane: int
    line: int
    passing: Mapping[int, int] = field(hash=False)
    joining: Mapping[int, int] = field(hash=False)
    continues: bool = True


@dataclass(frozen=True, slots=True)
class CommitGraph:
    """The rows of a history, top to bottom, and the number of lanes."""

    rows: tuple[Row, ...]
    num_lanes: int


def lay_out(commits: Iterable[Commit], first_branch: str = "main") -> CommitGraph:
    """Place commits: newest first, parents below their children, ``first_branch`` on the left."""
    ordered = _sort_newest_first({commit.id: commit for commit in commits})
    ids = {commit.id for commit in ordered}
    first_id = next((commit.id for commit in ordered if first_branch in commit.branches), None)
    # The next commit of each lane, and the line of the lane. A reserved lane has no line yet.
    targets: list[str | None] = [first_id] if first_id else []
    lines: list[int | None] = [None] if first_id else []
    next_line = int(first_id is not None)
    rows = []
    for commit in ordered:
        lanes = [lane for lane, target in enumerate(targets) if target == commit.id]
        if not lanes:
            lanes = [targets.index(None) if None in targets else len(targets)]
            if lanes[0] == len(targets):
                targets.append(None)
                lines.append(None)
            lines[lanes[0]] = next_line
            next_line += 1
        lane = lanes[0]
        line = lines[lane]
        if line is None:  # the lane reserved for the first branch
            line = 0
        joining = {end: joined for end in lanes[1:] if (joined := lines[end]) is not None}
        for end in lanes[1:]:
            targets[end] = lines[end] = None
        passing = {other: passed for other, passed in enumerate(lines) if passed is not None}
        passing.pop(lane, None)
        continues = commit.parent_id in ids
        targets[lane] = commit.parent_id if continues else None
        lines[lane] = line if continues else None
        rows.append(Row(commit, lane, line, passing, joining, continues))
    return CommitGraph(tuple(rows), len(targets))


def _sort_newest_first(commits: Mapping[str, Commit]) -> Sequence[Commit]:
    """Sort commits after their children, even where the clocks of writers disagree."""
    children = dict.fromkeys(commits, 0)
    for commit in commits.values():
        if commit.parent_id in children:
            children[commit.parent_id] += 1

    def sort_key(commit: Commit) -> tuple[float, str]:
        return -commit.written_at.timestamp(), commit.id

    ready = [sort_key(commit) for commit in commits.values() if not children[commit.id]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        commit = commits[heapq.heappop(ready)[1]]
        ordered.append(commit)
        parent = commits.get(commit.parent_id or "")
        if parent is not None:
            children[parent.id] -= 1
            if not children[parent.id]:
                heapq.heappush(ready, sort_key(parent))
    return ordered
