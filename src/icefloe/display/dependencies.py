"""Text and HTML of `Dependencies` and `Dependents`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.display import html
from icefloe.display.text import escape_unsafe, format_count, format_first_line, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_ITEMS: Final = 10


def summarize_dependencies(dependencies: Any) -> str:
    """Summarize the dependencies of a repository in one line."""
    if not dependencies.num_files:
        return "no virtual chunks"
    containers = sum(container.url_prefix is not None for container in dependencies.containers)
    files = format_count(dependencies.num_files, "file")
    summary = f"{files} in {format_count(containers, 'container')}, {_format_counts(dependencies)}"
    if dependencies.unauthorized:
        summary += f"; {format_count(len(dependencies.unauthorized), 'container')} not authorized"
    if dependencies.num_files_without_container:
        files = format_count(dependencies.num_files_without_container, "file")
        summary += f"; {files} in no container"
    return summary


def render_dependencies_text(dependencies: Any) -> str:
    """Format the containers, one line each."""
    lines = [summarize_dependencies(dependencies)]
    for container in dependencies.containers[:_MAX_ITEMS]:
        state = "" if container.is_authorized else f", {_format_state(container)}"
        files = format_count(container.num_files, "file")
        name = escape_unsafe(format_container_name(container))
        lines.append(f"  {name}: {files}, {_format_counts(container)}{state}")
    lines += _format_more(dependencies.containers, "container")
    return "\n".join(lines)


def render_dependencies_html(dependencies: Any) -> str:
    """Format the containers as a table."""
    rows = [
        (
            (html.code if container.url_prefix else html.faint)(format_container_name(container)),
            f"{container.num_files:,}",
            f"{container.num_chunks:,}",
            f"{container.num_arrays:,}",
            format_size(container.num_bytes),
            "authorized" if container.is_authorized else html.faint(_format_state(container)),
        )
        for container in dependencies.containers[:_MAX_ITEMS]
    ]
    headers = ("container", "files", "chunks", "arrays", "bytes", "")
    content = [html.table(rows, headers)] if rows else []
    content += [html.faint(line) for line in _format_more(dependencies.containers, "container")]
    return html.panel(f"Dependencies: {summarize_dependencies(dependencies)}", *content)


def summarize_dependents(dependents: Any) -> str:
    """Summarize the references to a file in one line."""
    location = escape_unsafe(dependents.location)
    if dependents.may_delete:
        return f"{location}: no references, it may be deleted"
    snapshots = format_count(len(dependents.snapshots), "snapshot")
    return f"{location}: {snapshots}, {format_count(len(dependents.arrays), 'array')}"


def render_dependents_text(dependents: Any) -> str:
    """Format the snapshots that refer to a file, one line each."""
    lines = [summarize_dependents(dependents)]
    for snapshot in dependents.snapshots[:_MAX_ITEMS]:
        names = "".join(
            f" [{escape_unsafe(name)}]" for name in (*snapshot.branches, *snapshot.tags)
        )
        arrays = escape_unsafe(_format_arrays(snapshot))
        message = format_first_line(snapshot.message, 40)
        lines.append(
            f"  {snapshot.id} {format_time(snapshot.written_at)}{names} {message}: {arrays}"
        )
    lines += _format_more(dependents.snapshots, "snapshot")
    return "\n".join(lines)


def render_dependents_html(dependents: Any) -> str:
    """Format the snapshots that refer to a file as a table."""
    rows = [
        (
            html.code(snapshot.id),
            format_time(snapshot.written_at),
            html.label(names) if (names := " ".join([*snapshot.branches, *snapshot.tags])) else "",
            format_first_line(snapshot.message),
            _format_arrays(snapshot),
        )
        for snapshot in dependents.snapshots[:_MAX_ITEMS]
    ]
    content = [html.table(rows, ("snapshot", "written at (UTC)", "refs", "message", "arrays"))]
    content += [html.faint(line) for line in _format_more(dependents.snapshots, "snapshot")]
    title = f"Dependents of {summarize_dependents(dependents)}"
    return html.panel(title, *(content if rows else []))


def format_container_name(container: Any) -> str:
    """Return the prefix of a container, and its name if it has one."""
    if container.url_prefix is None:
        return "in no container"
    if container.name is None:
        return str(container.url_prefix)
    return f"{container.url_prefix} ({container.name})"


def format_size(num_bytes: int) -> str:
    """Format a number of bytes with a decimal unit."""
    amount = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} PB"


def _format_arrays(snapshot: Any) -> str:
    return ", ".join(snapshot.arrays[:3]) + (", …" if len(snapshot.arrays) > 3 else "")


def _format_counts(item: Any) -> str:
    chunks = format_count(item.num_chunks, "chunk")
    arrays = format_count(item.num_arrays, "array")
    return f"{chunks} of {arrays}, {format_size(item.num_bytes)}"


def _format_state(container: Any) -> str:
    return "no container matches" if container.url_prefix is None else "not authorized"


def _format_more(items: Sequence[object], noun: str) -> list[str]:
    more = len(items) - _MAX_ITEMS
    return [f"  and {more:,} more {noun}{'' if more == 1 else 's'}"] if more > 0 else []
