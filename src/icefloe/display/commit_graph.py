"""Where each commit of a history stands when it is drawn: one row each, and a lane.

A commit has one parent, so the history is a tree: lanes join going down, and never part. Pure.
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
    """One commit, with the branches and tags that point at it."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    branches: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One commit and what is drawn beside it.

    Attributes
    ----------
    lane
        The column of the commit.
    line
        Which line the commit is on; a line keeps its number, and so its colour, from its first
        commit to the one where it joins another.
    passing
        The lanes that go past, with their lines.
    joining
        The lanes that end here, with their lines: their last commit has this one as its parent.
    continues
        Whether the line goes on below.
    """

    commit: Commit
    lane: int
    line: int
    passing: Mapping[int, int] = field(hash=False)
    joining: Mapping[int, int] = field(hash=False)
    continues: bool = True


@dataclass(frozen=True, slots=True)
class CommitGraph:
    """The rows of a history, top to bottom, and how many lanes they take."""

    rows: tuple[Row, ...]
    num_lanes: int


def lay_out(commits: Iterable[Commit], first_branch: str = "main") -> CommitGraph:
    """Place commits: newest first, parents below their children, ``first_branch`` on the left."""
    ordered = _newest_first({commit.id: commit for commit in commits})
    known = {commit.id for commit in ordered}
    favourite = next((one.id for one in ordered if first_branch in one.branches), None)
    # What each lane waits for, and which line it carries. A reserved lane has no line yet.
    waiting: list[str | None] = [favourite] if favourite else []
    lines: list[int | None] = [None] if favourite else []
    next_line = int(favourite is not None)
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
        if line is None:  # the lane that was kept for the first branch
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
    """Sort so that no commit stands above its children, whatever the clocks of writers said."""
    children = dict.fromkeys(commits, 0)
    for commit in commits.values():
        if commit.parent_id in children:
            children[commit.parent_id] += 1

    def place(commit: Commit) -> tuple[float, str]:
        return -commit.written_at.timestamp(), commit.id

    ready = [place(commit) for commit in commits.values() if not children[commit.id]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        commit = commits[heapq.heappop(ready)[1]]
        ordered.append(commit)
        parent = commits.get(commit.parent_id or "")
        if parent is not None:
            children[parent.id] -= 1
            if not children[parent.id]:
                heapq.heappush(ready, place(parent))
    return ordered
