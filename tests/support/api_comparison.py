"""Whether a call that is written for one signature works with another."""

from __future__ import annotations

from typing import Any

Parameters = list[list[str]]

_BY_POSITION = {"POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD"}
_BY_NAME = {"KEYWORD_ONLY", "POSITIONAL_OR_KEYWORD"}
_ANY = {"VAR_POSITIONAL", "VAR_KEYWORD"}


def problems(theirs: Parameters | None, ours: Parameters | None) -> list[str]:
    """Say which calls of Icechunk's do not work here; a compiled class may not tell its own."""
    if theirs is None or ours is None:
        return []
    found = []
    by_name = {parameter[0]: parameter for parameter in ours}
    takes_more = {kind for _, kind, _ in ours} & _ANY
    positional = [parameter for parameter in ours if parameter[1] in _BY_POSITION]
    place = 0
    for name, kind, default in theirs:
        if kind in _ANY:
            continue
        if kind in _BY_POSITION:
            unnamed = name.startswith("_")  # the compiled classes name a single field `_0`
            if place >= len(positional):
                if "VAR_POSITIONAL" not in takes_more:
                    found.append(f"{name} cannot be given by position")
            elif positional[place][0] != name and not unnamed:
                found.append(f"{name} is {positional[place][0]} at this position")
            mine = positional[place] if unnamed and place < len(positional) else by_name.get(name)
            place += 1
        else:
            mine = by_name.get(name)
        if mine is None:
            if "VAR_KEYWORD" not in takes_more:
                found.append(f"{name} is not taken")
        elif mine[1] not in _BY_NAME and kind in _BY_NAME and not name.startswith("_"):
            found.append(f"{name} cannot be given by name")
        elif default and not mine[2]:
            found.append(f"{name} has no default")
        elif default not in {"", "Ellipsis", mine[2]}:
            found.append(f"{name} has the default {mine[2]}, not {default}")
    names = {name for name, _, _ in theirs}
    more = [p for p in ours if p[0] not in names and p[1] not in _ANY and not p[2]]
    num_unnamed = sum(name.startswith("_") for name in names)
    found += [f"{name} is asked for besides" for name, _, _ in more[num_unnamed:]]
    return found


def compare(name: str, theirs: Any, ours: Any) -> list[str]:
    """List what differs between two descriptions of `inventory.describe`."""
    if theirs is None:
        return []
    if ours is None:
        return [f"{name} is no callable here"] if theirs.get("call") else []
    found = [f"{name}: {problem}" for problem in problems(theirs.get("call"), ours.get("call"))]
    for member, described in theirs.get("members", {}).items():
        mine = ours.get("members", {})
        if member not in mine:
            found.append(f"{name}.{member} is missing")
        else:
            found += compare(f"{name}.{member}", described, mine[member])
    return found
