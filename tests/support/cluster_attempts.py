"""Attempts of Spark's tasks that go wrong on purpose, and leave a trace that they ran."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from icefloe.storage.forwarding import ForwardingStorage, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from icefloe.storage import Storage

T = TypeVar("T")

DRIVER = b"org.apache.spark.deploy.SparkSubmit"
EXECUTOR, WORKER = b"CoarseGrainedExecutorBackend", b"deploy.worker.Worker"
_SECONDS = 120


class Attempt(NamedTuple):
    """One attempt of a task."""

    stage: int
    partition: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """Lets the first attempt of one task, whichever comes first, go wrong.

    Parameters
    ----------
    folder
        Where attempts that came to the trouble leave a trace; all processes see it.
    name
        Tells this trouble from others.
    kind
        ``raises``; ``dies``, by a signal that is not caught; ``loses its executor``; or ``waits``
        until Spark has started another attempt and that is as far, so that both go on side by side.
    """

    folder: Path
    name: str
    kind: Literal["raises", "dies", "loses its executor", "waits"]

    def __call__(self) -> None:
        """Go wrong, if this is the first attempt of the chosen task; nothing outside of tasks."""
        from pyspark import TaskContext  # noqa: PLC0415 - in the worker

        context = TaskContext.get()
        if context is None:
            return
        attempt = (
            context.taskAttemptId()
        )  # unique among all tasks; other counters restart with a stage
        first = self._first(context.stageId(), context.partitionId(), attempt)
        if (first.stage, first.partition) != (context.stageId(), context.partitionId()):
            return
        (self.folder / f"{self.name}-{attempt}").touch()
        if attempt != first.attempt:
            return
        match self.kind:
            case "raises":
                raise OSError("the first attempt fails")
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "loses its executor":
                os.kill(ancestor(EXECUTOR), signal.SIGKILL)
            case "waits":
                deadline = time.monotonic() + _SECONDS
                while self.attempts < 2:
                    if time.monotonic() > deadline:
                        raise TimeoutError("Spark did not start a second attempt")
                    time.sleep(0.05)

    @property
    def attempts(self) -> int:
        """How many attempts of the chosen task came to the trouble."""
        return len(list(self.folder.glob(f"{self.name}-[0-9]*")))

    @property
    def chosen(self) -> Attempt:
        """The attempt that went wrong."""
        return Attempt(*map(int, self._link.readlink().name.split(".")))

    def after(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass rows on, and then go wrong."""
        yield from batches
        self()

    def _first(self, *attempt: int) -> Attempt:
        # A link is made and filled at once: all processes see the same choice.
        with suppress(FileExistsError):
            self._link.symlink_to(".".join(map(str, attempt)))
        return self.chosen

    @property
    def _link(self) -> Path:
        return self.folder / f"{self.name}.chosen"


class TroubledStorage(ForwardingStorage):
    """The same objects, and trouble after a task has written a chunk."""

    def __init__(self, inner: Storage, trouble: Trouble) -> None:
        super().__init__(inner)
        self._trouble = trouble

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        answer = run()
        if request.is_write and request.keys[0].startswith("chunks/"):
            self._trouble()
        return answer

    async def _intercept_async(self, request: Request, run: Callable[[], Any]) -> Any:
        answer = await run()
        if request.is_write and request.keys[0].startswith("chunks/"):
            self._trouble()
        return answer


def ancestor(kind: bytes) -> int:
    """Find the process above this one, a worker of Python's, that is of a kind of Spark's."""
    pid = os.getpid()
    while kind not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
