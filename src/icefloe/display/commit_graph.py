"""Layout of a commit graph: one row and one lane for each commit. Pure.

A commit has one parent, so the history is a tree: going down, lanes join and never split.
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
    """A commit in its lane (column), and the lines drawn beside it.

    A line keeps its number, and its colour, until it joins another. ``passing`` has the lanes that
    pass this row, with their lines, and ``joining`` those that end at this commit: it is the parent
    of their last commit. ``continues`` tells whether the line continues below.
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
    ordered = _newest_first({commit.id: commit for commit in commits})
    known = {commit.id for commit in ordered}
    first = next((commit.id for commit in ordered if first_branch in commit.branches), None)
    # The commit that each lane leads to, and its line. A reserved lane has no line yet.
    waiting: list[str | None] = [first] if first else []
    lines: list[int | None] = [None] if first else []
    next_line = int(first is not None)
    rows = []
    for commit in ordered:
        lanes = [lane for lane, expected in enumerate(waiting) if expected == commit.id]
        if not lanes:
            lanes = [waiting.index(None) if None in waiting else len(waiting)]
            if lanes[0] == len(waiting):
                waiting.append(None)
                lines.append(None)
            lines[lanes[0]] = next_line
            next_line += 1
        lane = lanes[0]
        line = lines[lane]
        if line is None:  # the lane reserved for the first branch
            line = 0
        joining = {other: found for other in lanes[1:] if (found := lines[other]) is not None}
        for other in lanes[1:]:
            waiting[other] = lines[other] = None
        passing = {
            other: found for other, found in enumerate(lines) if found is not None and other != lane
        }
        continues = commit.parent_id in known
        waiting[lane] = commit.parent_id if continues else None
        lines[lane] = line if continues else None
        rows.append(Row(commit, lane, line, passing, joining, continues))
    return CommitGraph(tuple(rows), len(waiting))


def _newest_first(commits: Mapping[str, Commit]) -> Sequence[Commit]:
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
