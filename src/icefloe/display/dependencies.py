"""What a repository depends on, and who depends on a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.display.html import code, faint, label, panel, table
from icefloe.display.text import counted, one_line, printable, short_time

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_SHOWN: Final = 10


def dependencies_summary(found: Any) -> str:
    """Say in one line what a repository depends on."""
    if not found.num_files:
        return "no virtual chunks"
    held = sum(one.url_prefix is not None for one in found.containers)
    summary = (
        f"{counted(found.num_files, 'file')} in {counted(held, 'container')}, {_counts(found)}"
    )
    if found.unauthorized:
        summary += f"; {counted(len(found.unauthorized), 'container')} not authorised"
    if found.num_files_without_container:
        summary += f"; {counted(found.num_files_without_container, 'file')} in no container"
    return summary


def dependencies_text(found: Any) -> str:
    """Show the containers, one line each."""
    lines = [dependencies_summary(found)]
    for one in found.containers[:_MAX_SHOWN]:
        state = "" if one.is_authorized else f", {_state(one)}"
        files = counted(one.num_files, "file")
        lines.append(f"  {printable(container_name(one))}: {files}, {_counts(one)}{state}")
    lines += _more(found.containers, "container")
    return "\n".join(lines)


def dependencies_html(found: Any) -> str:
    """Show the containers as a table."""
    rows = [
        (
            code(container_name(one)) if one.url_prefix else faint(container_name(one)),
            f"{one.num_files:,}",
            f"{one.num_chunks:,}",
            f"{one.num_arrays:,}",
            sized(one.num_bytes),
            "authorised" if one.is_authorized else faint(_state(one)),
        )
        for one in found.containers[:_MAX_SHOWN]
    ]
    headers = ("container", "files", "chunks", "arrays", "bytes", "")
    content = [table(rows, headers)] if rows else []
    content += [faint(line) for line in _more(found.containers, "container")]
    return panel(f"Dependencies: {dependencies_summary(found)}", *content)


def dependents_summary(found: Any) -> str:
    """Say in one line who refers to a file."""
    location = printable(found.location)
    if found.may_delete:
        return f"{location}: nobody, it may be deleted"
    snapshots = counted(len(found.snapshots), "snapshot")
    return f"{location}: {snapshots}, {counted(len(found.arrays), 'array')}"


def dependents_text(found: Any) -> str:
    """Show the snapshots that refer to a file, one line each."""
    lines = [dependents_summary(found)]
    for one in found.snapshots[:_MAX_SHOWN]:
        names = "".join(f" [{printable(name)}]" for name in (*one.branches, *one.tags))
        arrays = ", ".join(map(printable, one.arrays[:3])) + (", …" if len(one.arrays) > 3 else "")
        message = one_line(one.message, 40)
        lines.append(f"  {one.id} {short_time(one.written_at)}{names} {message}: {arrays}")
    lines += _more(found.snapshots, "snapshot")
    return "\n".join(lines)


def dependents_html(found: Any) -> str:
    """Show the snapshots that refer to a file as a table."""
    rows = [
        (
            code(one.id),
            short_time(one.written_at),
            " ".join([*one.branches, *one.tags]) and label(" ".join([*one.branches, *one.tags])),
            one_line(one.message),
            ", ".join(one.arrays[:3]) + (", …" if len(one.arrays) > 3 else ""),
        )
        for one in found.snapshots[:_MAX_SHOWN]
    ]
    content = [table(rows, ("snapshot", "written at (UTC)", "refs", "message", "arrays"))]
    content += [faint(line) for line in _more(found.snapshots, "snapshot")]
    return panel(f"Dependents of {dependents_summary(found)}", *(content if rows else []))


def container_name(container: Any) -> str:
    """Name a container: its prefix, and its name if it has one."""
    if container.url_prefix is None:
        return "in no container"
    if container.name is None:
        return str(container.url_prefix)
    return f"{container.url_prefix} ({container.name})"


def sized(num_bytes: int) -> str:
    """Show an amount of bytes."""
    amount = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} PB"


def _counts(one: Any) -> str:
    chunks, arrays = counted(one.num_chunks, "chunk"), counted(one.num_arrays, "array")
    return f"{chunks} of {arrays}, {sized(one.num_bytes)}"


def _state(container: Any) -> str:
    return "no container holds them" if container.url_prefix is None else "not authorised"


def _more(listed: Sequence[object], noun: str) -> list[str]:
    more = len(listed) - _MAX_SHOWN
    return [f"  and {more:,} more {noun}{'' if more == 1 else 's'}"] if more > 0 else []
