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

    A line keeps its number, and thus its colour, until it joins another. ``passing`` maps the lanes
    that pass this row to their lines, and ``joining`` the lanes that end at this commit, the parent
    of their last commit. ``continues`` is whether the line of this commit continues below.
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
    sequence = _sort_newest_first({commit.id: commit for commit in commits})
    ids = {commit.id for commit in sequence}
    tip_id = next((commit.id for commit in sequence if first_branch in commit.branches), None)
    # The next commit and the line of each lane. Lane 0 and line 0 are reserved for `first_branch`;
    # the lane has no line until the tip of the branch.
    targets: list[str | None] = [tip_id] if tip_id else []
    lines: list[int | None] = [None] if tip_id else []
    next_line = int(tip_id is not None)
    rows = []
    for commit in sequence:
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
        if line is None:  # the tip of `first_branch`
            line = 0
        joining = {end: end_line for end in lanes[1:] if (end_line := lines[end]) is not None}
        for end in lanes[1:]:
            targets[end] = lines[end] = None
        passing = {index: number for index, number in enumerate(lines) if number is not None}
        passing.pop(lane, None)
        continues = commit.parent_id in ids
        targets[lane] = commit.parent_id if continues else None
        lines[lane] = line if continues else None
        rows.append(Row(commit, lane, line, passing, joining, continues))
    return CommitGraph(tuple(rows), len(targets))


def _sort_newest_first(commits: Mapping[str, Commit]) -> Sequence[Commit]:
    """Sort commits by time, but always after their children: the clocks of writers may disagree."""
    num_children = dict.fromkeys(commits, 0)  # that are not sorted yet
    for commit in commits.values():
        if commit.parent_id in num_children:
            num_children[commit.parent_id] += 1

    def sort_key(commit: Commit) -> tuple[float, str]:
        return -commit.written_at.timestamp(), commit.id

    ready = [sort_key(commit) for commit in commits.values() if not num_children[commit.id]]
    heapq.heapify(ready)
    sequence = []
    while ready:
        commit = commits[heapq.heappop(ready)[1]]
        sequence.append(commit)
        parent = commits.get(commit.parent_id or "")
        if parent is not None:
            num_children[parent.id] -= 1
            if not num_children[parent.id]:
                heapq.heappush(ready, sort_key(parent))
    return sequence
