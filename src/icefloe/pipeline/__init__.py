"""Jobs on Spark: virtualize, ingest, append, rechunk and the rest, each committed once.

Each is a function of a Spark session, or None to work in this process alone, and a repository.
PySpark is imported when a job meets a session, not before. The functions stand where modules of the
same names would: ``from icefloe.pipeline.rechunk import …`` still finds what else is in those.
"""

from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.compact import compact
from icefloe.pipeline.jobs.compute import Location, Output, compute
from icefloe.pipeline.jobs.export import export
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.materialize import materialize
from icefloe.pipeline.jobs.pyramid import pyramid
from icefloe.pipeline.jobs.rechunk import rechunk
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.opening import open_repository
from icefloe.pipeline.report import Failure, JobFailedError, Plan, Report

__all__ = [
    "Failure",
    "JobFailedError",
    "Location",
    "Output",
    "Plan",
    "Report",
    "append",
    "compact",
    "compute",
    "export",
    "ingest",
    "materialize",
    "open_repository",
    "pyramid",
    "rechunk",
    "virtualize",
]
