"""Plans, reports and failures of jobs, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, IcefloeError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_SHOWN: Final = 20
"""Maximum number of failures in a message; `JobFailedError.failures` has all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a job, made without writing.

    Parameters
    ----------
    target
        The repository and branch, or the target of an export.
    steps
        One sentence per step.
    bytes_read, bytes_written
        In-memory size of arrays, stored size of files; 0 if unknown.
    task_bytes
        The memory of the largest task.
    is_estimate
        Whether tasks and bytes are estimates; exact numbers would require parsing the files.
    """

    job: str
    target: str
    steps: tuple[str, ...]
    tasks: int
    bytes_read: int = 0
    bytes_written: int = 0
    task_bytes: int = 0
    is_estimate: bool = False

    @property
    def has_work(self) -> bool:
        """Whether the job has any task."""
        return self.tasks > 0

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.job} into {self.target}"]
        lines += [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        if self.has_work:
            lines.append(f"  {', '.join(self._format_sizes())}")
        return "\n".join(lines)

    def _format_sizes(self) -> list[str]:
        prefix = "about " if self.is_estimate else ""
        sizes = [f"{prefix}{format_count(self.tasks, 'task')}"]
        if self.task_bytes:
            sizes.append(f"at most {format_bytes(self.task_bytes)} of memory each")
        if self.bytes_read:
            sizes.append(f"reads {prefix}{format_bytes(self.bytes_read)}")
        if self.bytes_written:
            sizes.append(f"writes {prefix}{format_bytes(self.bytes_written)}")
        return sizes


@dataclass(frozen=True, slots=True)
class Failure:
    """A source, or a part of an array, that failed."""

    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a job.

    Parameters
    ----------
    snapshot_id
        The commit; None if there was nothing to commit.
    is_new
        Whether this run made the commit.
    files
        The number of source files.
    chunks, bytes_written
        The chunks that were written or referenced, and their bytes.
    left_out
        The sources that ``on_error="skip"`` excluded.
    released
        External files that the commit no longer needs.
    rows
        The number of exported rows.
    notes
        What the job noticed, such as times that are missing.
    """

    job: str
    snapshot_id: str | None
    is_new: bool
    files: int = 0
    chunks: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    left_out: tuple[Failure, ...] = field(default=())
    released: tuple[str, ...] = ()
    rows: int = 0
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join([self._format_result(), *(f"note: {note}" for note in self.notes)])

    def _format_result(self) -> str:
        if self.snapshot_id is None:
            return f"{self.job}: nothing to do"
        if self.job == "export":
            text = f"export: wrote snapshot {self.snapshot_id}"
        elif not self.is_new:
            return f"{self.job}: already committed as {self.snapshot_id}"
        else:
            text = f"{self.job}: committed {self.snapshot_id}"
        text += f": {self._format_amounts()} in {self.seconds:.1f} s"
        if self.released:
            text += f"; {format_count(len(self.released), 'external file')} no longer needed"
        if self.left_out:
            text += f"; left out {len(self.left_out)}:\n{_format_failures(self.left_out)}"
        return text

    def _format_amounts(self) -> str:
        """List the nonzero counts."""
        amounts = {"file": self.files, "row": self.rows, "chunk": self.chunks}
        counts = [format_count(count, what) for what, count in amounts.items() if count]
        suffix = " referenced," if self.job == "virtualize" else ""
        return ", ".join([*counts, format_bytes(self.bytes_written)]) + suffix


class JobFailedError(IcefloeError):
    """A job failed before its commit; lists all failures.

    Parameters
    ----------
    failures
        The sources, or parts of arrays, that failed.
    remedy
        The last line of the message; None if sources failed.
    """

    def __init__(self, job: str, failures: Sequence[Failure], *, remedy: str | None = None) -> None:
        self.job = job
        self.failures = tuple(failures)
        self.remedy = remedy
        super().__init__(self._format_message(_MAX_SHOWN), kind=ErrorKind.INVALID_VIRTUAL_REF)

    def in_full(self) -> str:
        """Return the message with all failures."""
        return self._format_message(len(self.failures))

    def _format_message(self, max_shown: int) -> str:
        count = format_count(len(self.failures), "source" if self.remedy is None else "part")
        verb = "exported" if self.job == "export" else "committed"
        return (
            f"{self.job}: nothing was {verb}, {count} failed:\n"
            f"{_format_failures(self.failures, max_shown)}\n"
            + (self.remedy or 'fix them, or exclude them with on_error="skip"')
        )


class SourcesChangedError(JobFailedError):
    """Files changed since they were added to the group; lists all of them."""

    def _format_message(self, max_shown: int) -> str:
        return (
            f"{self.job}: nothing was committed, {format_count(len(self.failures), 'source')} "
            f"changed since they were added:\n{_format_failures(self.failures, max_shown)}\n"
            'replace their steps with changed="replace", or keep the stored values with '
            'changed="keep"'
        )


def format_count(count: int, what: str) -> str:
    """Format a count with its noun."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _format_failures(failures: Sequence[Failure], max_shown: int = _MAX_SHOWN) -> str:
    lines = [f"  {failure}" for failure in failures[:max_shown]]
    if len(failures) > max_shown:
        lines.append(f"  and {len(failures) - max_shown} more")
    return "\n".join(lines)
