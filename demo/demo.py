"""``make demo``: a year of daily NetCDF files on Spark, from files to a query, a map and a report.

A tutorial: each step is one call. Output goes to ``demo/output``. ``python demo.py DAYS`` uses only
the last days of the year, and ``python demo.py DAYS GENERATION`` another generation of the format.
"""

from __future__ import annotations

import shutil
import sys
import time
from calendar import month_name
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import xarray as xr
from archive import write_archive
from rich.console import Console

import icefloe.spark
from icefloe.pipeline import append, ingest, open_repository, rechunk, virtualize

OUTPUT = Path(__file__).parent / "output"
ARCHIVE = OUTPUT / "archive"
PICTURE, REPORT = OUTPUT / "weather.png", OUTPUT / "report.md"
console = Console(highlight=False, soft_wrap=True)
report_rows: list[str] = []
start = time.monotonic()


def report(step: str, result: object) -> None:
    """Print the result of a step, and add it to the report."""
    console.print(f"[dim]{time.monotonic() - start:5.1f} s[/]  [bold]{step}[/]\n         {result}")
    report_rows.append(f"| {time.monotonic() - start:.0f} s | {step} | {result} |")


def main(days: int = 365, generation: str | None = None) -> None:
    """Run the demo on the last ``days`` days of 2024."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    last = date(2024, 12, 31)
    files = write_archive(ARCHIVE, days=days, first=str(last - timedelta(days)))
    report("Archive", f"{len(files)} NetCDF4 files, one per day")

    spark = icefloe.spark.spark_session()  # all local cores; or a cluster
    report("Spark", f"{spark.version}, {spark.sparkContext.defaultParallelism} cores")

    # Virtual chunks stay in the files; the container is the directory they are read from.
    target = OUTPUT / "weather"
    repo = open_repository(target, create=True, generation=generation, containers=[ARCHIVE])
    report("Repository", f"generation {repo.generation} of the format")
    report("Virtualize", virtualize(spark, repo, f"{ARCHIVE}/*.nc", group="files"))

    # The same files copied into new chunks, each of one month and the whole globe.
    chunks = {"time": 31, "lat": -1, "lon": -1}
    report("Ingest", ingest(spark, repo, f"{ARCHIVE}/*.nc", group="maps", chunks=chunks))
    repo.create_tag("a-year", repo.lookup_branch("main"))

    # A day later there is a new file. Only new files are read, even if this runs again.
    write_archive(ARCHIVE, days=1, first=str(last))
    report("Append a day", append(spark, repo, f"{ARCHIVE}/*.nc", group="maps"))
    report("Append it again", append(spark, repo, f"{ARCHIVE}/*.nc", group="maps"))

    # Chunks for time series: all days of a few grid points.
    chunks = {"time": -1, "lat": 8, "lon": 8}
    report("Rechunk", rechunk(spark, repo, "maps", chunks, target="series"))

    # Rows for SQL: CF times as timestamps, unpacked values, missing values as NULL.
    rows = icefloe.spark.read(spark, repo, group="maps", variables=["t2m"])
    rows.createOrReplaceTempView("weather")
    query = """
        SELECT month(time) AS month, round(avg(t2m) - 273.15, 1) AS celsius, count(t2m) AS cells
        FROM weather WHERE lat > 45 GROUP BY 1 ORDER BY 1
    """
    months: Any = spark.sql(query).toPandas()
    warmest = months.loc[months.celsius.idxmax()]
    summary = f"{month_name[int(warmest.month)]} is warmest, {warmest.celsius} °C"
    report("Spark SQL", f"of {months.cells.sum():,.0f} cells north of 45°, {summary}")

    # Time travel: read any commit by tag, snapshot id or time.
    before = icefloe.spark.read(spark, repo, group="maps", variables=["time"], tag="a-year")
    now = rows.select("time").distinct().count()
    report("Time travel", f"{before.count()} days at the tag, {now} now")

    # A selection reads only the chunks that it needs, here one of 180.
    point = {"lat": {"nearest": 52.5}, "lon": {"nearest": 12.5}}
    series = icefloe.spark.read(spark, repo, group="series", variables=["t2m"], sel=point)
    draw(repo, int(warmest.month), series.orderBy("time").toPandas())
    report("Plot", PICTURE.relative_to(OUTPUT.parent))

    history = "\n".join(
        f"- `{commit.id}` {commit.message}" for commit in repo.ancestry(branch="main")
    )
    steps = "\n".join(report_rows)
    REPORT.write_text(f"""# {now} days of weather

![A map and a time series](weather.png)

| time | step | result |
|---|---|---|
{steps}

## Months north of 45°

```
{months.to_string(index=False)}
```

## Commits

{history}
""")
    report("Report", REPORT.relative_to(OUTPUT.parent))
    spark.stop()


def draw(repo: icefloe.Repository, month: int, series: Any) -> None:
    """Plot a map of a month, read with xarray, and a time series, read with Spark."""
    store = repo.readonly_session("main").store
    maps = xr.open_zarr(store, group="maps", consolidated=False)
    mean = maps.t2m.sel(time=f"2024-{month:02}").mean("time") - 273.15
    point = series.iloc[0]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
    mean.plot(ax=left, cmap="coolwarm", center=False, cbar_kwargs={"label": "°C"})
    left.plot(point.lon, point.lat, "ko", fillstyle="none")
    left.set_title(f"Mean temperature in {month_name[month]}; white is missing")
    right.plot(series.time, series.t2m - 273.15)
    right.set_title(f"Day by day at {point.lat}° N, {point.lon}° E")
    right.set_ylabel("°C")
    figure.savefig(PICTURE, dpi=100)


if __name__ == "__main__":
    main(int(sys.argv[1] if len(sys.argv) > 1 else 365), *sys.argv[2:3])
