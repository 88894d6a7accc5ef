"""Text and HTML of `Dependencies` and `Dependents`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.display.html import code, faint, label, panel, table
from icefloe.display.text import escape_unsafe, first_line, format_count, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_SHOWN: Final = 10


def dependencies_summary(found: Any) -> str:
    """Summarize the dependencies of a repository in one line."""
    if not found.num_files:
        return "no virtual chunks"
    containers = sum(container.url_prefix is not None for container in found.containers)
    files = format_count(found.num_files, "file")
    summary = f"{files} in {format_count(containers, 'container')}, {_counts(found)}"
    if found.unauthorized:
        summary += f"; {format_count(len(found.unauthorized), 'container')} not authorized"
    if found.num_files_without_container:
        summary += f"; {format_count(found.num_files_without_container, 'file')} in no container"
    return summary


def dependencies_text(found: Any) -> str:
    """List the containers, one line each."""
    lines = [dependencies_summary(found)]
    for container in found.containers[:_MAX_SHOWN]:
        state = "" if container.is_authorized else f", {_state(container)}"
        files = format_count(container.num_files, "file")
        name = escape_unsafe(container_name(container))
        lines.append(f"  {name}: {files}, {_counts(container)}{state}")
    lines += _more(found.containers, "container")
    return "\n".join(lines)


def dependencies_html(found: Any) -> str:
    """Show the containers as a table."""
    rows = [
        (
            (code if container.url_prefix else faint)(container_name(container)),
            f"{container.num_files:,}",
            f"{container.num_chunks:,}",
            f"{container.num_arrays:,}",
            format_size(container.num_bytes),
            "authorized" if container.is_authorized else faint(_state(container)),
        )
        for container in found.containers[:_MAX_SHOWN]
    ]
    headers = ("container", "files", "chunks", "arrays", "bytes", "")
    content = [table(rows, headers)] if rows else []
    content += [faint(line) for line in _more(found.containers, "container")]
    return panel(f"Dependencies: {dependencies_summary(found)}", *content)


def dependents_summary(found: Any) -> str:
    """Summarize the references to a file in one line."""
    location = escape_unsafe(found.location)
    if found.may_delete:
        return f"{location}: no references, it may be deleted"
    snapshots = format_count(len(found.snapshots), "snapshot")
    return f"{location}: {snapshots}, {format_count(len(found.arrays), 'array')}"


def dependents_text(found: Any) -> str:
    """List the snapshots that refer to a file, one line each."""
    lines = [dependents_summary(found)]
    for snapshot in found.snapshots[:_MAX_SHOWN]:
        names = "".join(
            f" [{escape_unsafe(name)}]" for name in (*snapshot.branches, *snapshot.tags)
        )
        arrays = escape_unsafe(_first_arrays(snapshot))
        message = first_line(snapshot.message, 40)
        lines.append(
            f"  {snapshot.id} {format_time(snapshot.written_at)}{names} {message}: {arrays}"
        )
    lines += _more(found.snapshots, "snapshot")
    return "\n".join(lines)


def dependents_html(found: Any) -> str:
    """Show the snapshots that refer to a file as a table."""
    rows = [
        (
            code(snapshot.id),
            format_time(snapshot.written_at),
            label(names) if (names := " ".join([*snapshot.branches, *snapshot.tags])) else "",
            first_line(snapshot.message),
            _first_arrays(snapshot),
        )
        for snapshot in found.snapshots[:_MAX_SHOWN]
    ]
    content = [table(rows, ("snapshot", "written at (UTC)", "refs", "message", "arrays"))]
    content += [faint(line) for line in _more(found.snapshots, "snapshot")]
    return panel(f"Dependents of {dependents_summary(found)}", *(content if rows else []))


def container_name(container: Any) -> str:
    """Return the prefix of a container, and its name if it has one."""
    if container.url_prefix is None:
        return "in no container"
    if container.name is None:
        return str(container.url_prefix)
    return f"{container.url_prefix} ({container.name})"


def format_size(num_bytes: int) -> str:
    """Format a number of bytes."""
    amount = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} PB"


def _first_arrays(snapshot: Any) -> str:
    return ", ".join(snapshot.arrays[:3]) + (", …" if len(snapshot.arrays) > 3 else "")


def _counts(found: Any) -> str:
    chunks = format_count(found.num_chunks, "chunk")
    arrays = format_count(found.num_arrays, "array")
    return f"{chunks} of {arrays}, {format_size(found.num_bytes)}"


def _state(container: Any) -> str:
    return "no container holds them" if container.url_prefix is None else "not authorized"


def _more(listed: Sequence[object], noun: str) -> list[str]:
    more = len(listed) - _MAX_SHOWN
    return [f"  and {more:,} more {noun}{'' if more == 1 else 's'}"] if more > 0 else []
