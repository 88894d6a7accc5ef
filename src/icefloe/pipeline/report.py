"""What a job is going to do, what it did, and what it could not do; for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, IcefloeError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_SHOWN: Final = 20
"""More failures than this do not help whoever reads them; programs get all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a job would do; made without touching anything.

    Parameters
    ----------
    job
        The kind of job.
    target
        The repository and branch that get the commit, or where an export goes.
    steps
        What will happen, a sentence each.
    tasks
        How many pieces the work is cut into.
    bytes_read, bytes_written
        In memory, before compression; what is not known is 0. Of files, as they are compressed.
    task_bytes
        How much memory the largest task takes.
    is_estimate
        Whether tasks and bytes are about so many: files tell more only when they are read.
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
        """Whether there is anything to do."""
        return self.tasks > 0

    def to_json(self) -> dict[str, Any]:
        """Return the plan for programs."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.job} into {self.target}"]
        lines += [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        if self.has_work:
            lines.append(f"  {', '.join(self._sizes())}")
        return "\n".join(lines)

    def _sizes(self) -> list[str]:
        about = "about " if self.is_estimate else ""
        told = [f"{about}{format_count(self.tasks, 'task')}"]
        if self.task_bytes:
            told.append(f"at most {format_bytes(self.task_bytes)} of memory each")
        if self.bytes_read:
            told.append(f"reads {about}{format_bytes(self.bytes_read)}")
        if self.bytes_written:
            told.append(f"writes {about}{format_bytes(self.bytes_written)}")
        return told


@dataclass(frozen=True, slots=True)
class Failure:
    """A source, or a piece of an array, that something was wrong with."""

    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a job did.

    Parameters
    ----------
    snapshot_id
        The commit; None if there was nothing to commit.
    is_new
        Whether this run made it; else it was there already.
    files
        How many sources went into it.
    chunks, bytes_written
        What was written, or referred to.
    seconds
        From the plan to the commit.
    left_out
        The sources that ``on_error="skip"`` went on without.
    released
        The files outside of the repository that the commit does not need any more.
    rows
        How many were exported, as rows.
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

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        return asdict(self)

    def __str__(self) -> str:
        if self.snapshot_id is None:
            return f"{self.job}: nothing to do"
        if self.job == "export":
            text = f"export: wrote snapshot {self.snapshot_id}"
        elif not self.is_new:
            return f"{self.job}: was committed before, as {self.snapshot_id}"
        else:
            text = f"{self.job}: committed {self.snapshot_id}"
        text += f": {self._amounts()} in {self.seconds:.1f} s"
        if self.released:
            text += f"; {format_count(len(self.released), 'file')} outside not needed any more"
        if self.left_out:
            text += f"; left out {len(self.left_out)}:\n{_format_failures(self.left_out)}"
        return text

    def _amounts(self) -> str:
        """Say what there was of everything; what a job has nothing to do with is left out."""
        amounts = {"file": self.files, "row": self.rows, "chunk": self.chunks}
        told = [format_count(count, what) for what, count in amounts.items() if count]
        referred = " referred to," if self.job == "virtualize" else ""
        return ", ".join([*told, format_bytes(self.bytes_written)]) + referred


class JobFailedError(IcefloeError):
    """A job stopped before its commit; says everything that was wrong, not only the first.

    Parameters
    ----------
    job
        The kind of job.
    failures
        The sources, or pieces of arrays, that failed.
    remedy
        What to do next, if it is not about sources.
    """

    def __init__(self, job: str, failures: Sequence[Failure], *, remedy: str | None = None) -> None:
        self.job = job
        self.failures = tuple(failures)
        self.remedy = remedy
        super().__init__(self._format_message(_MAX_SHOWN), kind=ErrorKind.INVALID_VIRTUAL_REF)

    def in_full(self) -> str:
        """Say everything that was wrong, however long that is."""
        return self._format_message(len(self.failures))

    def _format_message(self, max_shown: int) -> str:
        what = "sources" if self.remedy is None else "pieces"
        done = "exported" if self.job == "export" else "committed"
        return (
            f"{self.job}: nothing was {done}, {len(self.failures)} of its {what} failed:\n"
            f"{_format_failures(self.failures, max_shown)}\n"
            + (self.remedy or 'mend them, or go on without them with on_error="skip"')
        )


def format_count(count: int, what: str) -> str:
    """Write a number of things for people."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    """Write a number of bytes for people."""
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
