"""Rows written, read and followed, on whatever Spark there is; a program and a module.

``python rows.py dying-stream|all remote|master URL ENDPOINT BUCKET PREFIX FOLDER``. The keys of the
bucket are in the environment; nothing else may say them.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icefloe
from icefloe.pipeline import Output, compute
from icefloe.spark import read, register, write
from icefloe.spark.data_source import IcefloeDataSource
from icefloe.spark.data_source_writers import IcefloeStreamWriter
from icefloe.spark.engine.progress import is_connect
from icefloe.spark.writing.write_options import WriteOptions
from support.cluster_attempts import DRIVER, Trouble, TroubledStorage, ancestor
from support.cluster_sessions import session
from support.stream_cells import DDL, LATS, NEW, batch, day, start, tuples, write_rows

if TYPE_CHECKING:
    from icefloe.storage import Storage

DAYS = range(1, 9)
COORDS = {"time": [day(number).isoformat() for number in DAYS], "lat": list(LATS)}
MICRO_BATCHES = ([1, 2], [3, 4], [5, 6, 7])
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
}
TROUBLES = {
    "written": "dies",
    "written-twice": "waits",
    "saved": "loses its executor",
    "saved-twice": "waits",
    "computed": "waits",
    "streamed": "raises",
}
"""What goes wrong in the write of each group, on a cluster; elsewhere a process of Python dies."""

REPLAYED = 1
"""The micro-batch after whose commit the driver is killed, before its checkpoint knows."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of a bucket."""

    endpoint_url: str
    bucket: str
    prefix: str

    @property
    def options(self) -> dict[str, str]:
        """Return options of a data source: the place, and credentials of the environment."""
        return {
            "path": f"s3://{self.bucket}/{self.prefix}",
            "endpoint_url": self.endpoint_url,
            "allow_http": "true",
            "region": "us-east-1",
            "from_env": "true",
        }

    def storage(self) -> Storage:
        """Open it with keys that are part of the storage, and travel with it."""
        return icefloe.s3_storage(
            bucket=self.bucket,
            prefix=self.prefix,
            endpoint_url=self.endpoint_url,
            allow_http=True,
            force_path_style=True,
            region="us-east-1",
            access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
            secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        )

    def copy(self) -> Place:
        """Return the folder that the other's stream is written to."""
        return Place(self.endpoint_url, self.bucket, f"{self.prefix}-copy")


def create(storage: Storage) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    return icefloe.Repository.create(storage, config)


def write_reference(repository: icefloe.Repository, copy: icefloe.Repository) -> None:
    """Write everything in this process, without Spark."""
    for days in MICRO_BATCHES:
        write_rows(repository, batch(days), group="streamed", append_dim="time", **NEW)
        write_rows(copy, batch(days), group="followed", append_dim="time", **NEW)
    for group in ("written", "written-twice", "saved"):
        write_rows(repository, batch(DAYS), group=group, **NEW)
    job = start(repository, group="saved-twice", coords=COORDS, **NEW)
    job.commit([job.write_unrouted([batch(DAYS)])], None)
    _compute(None, repository, None)


def stream(spark: Any, place: Place, folder: Path, trouble: Trouble | None = None) -> None:
    """Write the files that have arrived, a micro-batch each, from where the checkpoint ends."""
    incoming = folder / "incoming"
    if not incoming.exists():
        incoming.mkdir()
        for number, days in enumerate(MICRO_BATCHES):
            lines = [
                json.dumps({"time": time.isoformat(), "lat": lat, "v": v, "n": n})
                for time, lat, v, n in tuples(days)
            ]
            (incoming / f"{number}.json").write_text("\n".join(lines))
            os.utime(incoming / f"{number}.json", (number, number))  # the order of the stream
    rows = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).json(str(incoming))
    if trouble is not None:
        rows = rows.mapInArrow(trouble.after, DDL)
    _into(rows, place, "streamed", folder / "checkpoint")


def write_all(spark: Any, place: Place, folder: Path) -> list[str]:
    """Write in all ways, an attempt of each goes wrong; gives plans as Spark shows them."""
    from pyspark.sql.functions import expr  # noqa: PLC0415 - of the session's kind by now

    kinds = TROUBLES if not is_connect(spark) else dict.fromkeys(TROUBLES, "dies")
    troubles: dict[str, Any] = {name: Trouble(folder, name, kind) for name, kind in kinds.items()}  # type: ignore[arg-type]
    repository = icefloe.Repository.open(place.storage())
    rows = spark.createDataFrame(tuples(DAYS), DDL).repartition(2)

    for group in ("written", "written-twice"):
        troubled = icefloe.Repository.open(TroubledStorage(place.storage(), troubles[group]))
        made = write(rows, troubled, group=group, transaction_id=group, **NEW)
        assert (made.is_new, made.rows) == (True, len(DAYS) * len(LATS))
        assert not write(rows, repository, group=group, transaction_id=group, **NEW).is_new

    _save(rows.mapInArrow(troubles["saved"].after, DDL), place, "saved")
    _save(rows, place, "saved")  # found to be done
    half = f"CAST(dayofmonth(time) > {DAYS[len(DAYS) // 2 - 1]} AS INT)"
    whole_chunks = rows.repartitionById(2, expr(half))
    whole_chunks = whole_chunks.mapInArrow(troubles["saved-twice"].after, DDL)
    _save(whole_chunks, place, "saved-twice", coords=json.dumps(COORDS))
    _compute(spark, repository, troubles["computed"])

    stream(spark, place, folder, troubles["streamed"])
    following = _from(spark, place, "streamed")
    for _ in range(2):  # once more, and nothing is new
        _into(following, place.copy(), "followed", folder / "following")

    found = spark.read.format("icefloe").options(**place.options).option("group", "saved").load()
    friendly = read(spark, repository, group="written")
    for frame in (found, friendly):
        assert sorted(map(tuple, frame.select("time", "lat", "v", "n").collect())) == tuples(DAYS)
    return [_plan(frame) for frame in (found, friendly)]


def _save(rows: Any, place: Place, group: str, **options: str) -> None:
    given = {**place.options, "group": group, "transaction_id": group, **_new(), **options}
    rows.write.format("icefloe").mode("append").options(**given).save()


def _into(rows: Any, place: Place, group: str, checkpoint: Path) -> None:
    given = {**place.options, "group": group, "append_dim": "time", **_new()}
    query = (
        rows.writeStream.format("icefloe")
        .options(**given, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _from(spark: Any, place: Place, group: str) -> Any:
    given = {**place.options, "group": group, "maxCommitsPerTrigger": "1"}
    return spark.readStream.format("icefloe").options(**given).load()


def _new() -> dict[str, str]:
    return {"dims": ",".join(NEW["dims"]), "chunks": json.dumps(NEW["chunks"])}


def _compute(spark: Any, repository: icefloe.Repository, trouble: Trouble | None) -> None:
    def add(v: Any) -> Any:
        if trouble is not None:
            trouble()
        return v + 1

    outputs = {"computed": Output("f4", chunks=NEW["chunks"])}
    compute(spark, repository, add, {"v": "written/v"}, outputs, probe=False, task_bytes=64)


def _plan(frame: Any) -> str:
    shown = io.StringIO()
    with redirect_stdout(shown):
        frame.explain(True)
    return shown.getvalue()


class DyingSource(IcefloeDataSource):
    """The data source, and a driver that dies after a commit before Spark has noted it."""

    def streamWriter(self, schema: Any, overwrite: bool) -> IcefloeStreamWriter:  # noqa: FBT001, N802
        return _DyingWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)


class _DyingWriter(IcefloeStreamWriter):
    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        if batchId == REPLAYED:
            os.kill(ancestor(DRIVER), signal.SIGKILL)


def _replay_last(checkpoint: Path) -> None:
    """Take the last micro-batch from a checkpoint, as if its driver had died after the commit."""
    for name in (f"{len(MICRO_BATCHES) - 1}", f".{len(MICRO_BATCHES) - 1}.crc"):
        (checkpoint / "commits" / name).unlink()


def main(part: str, kind: str, url: str, *given: str) -> None:
    *where, last = given
    place, folder = Place(*where), Path(last)
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",  # so that a test can look for secrets
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }
    (folder / "events").mkdir(exist_ok=True)
    if kind == "master":
        settings |= SPECULATION
    spark = session(kind, url, settings)
    try:
        if part == "dying-stream":
            spark.dataSource.register(DyingSource)
            stream(spark, place, folder)
            return
        register(spark)
        if kind == "remote":
            stream(spark, place, folder)
            _replay_last(folder / "checkpoint")
        told = {"is_connect": is_connect(spark), "plans": write_all(spark, place, folder)}
        print(json.dumps(told))  # noqa: T201
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
