"""Jobs on Spark: virtualize, ingest, append, rechunk and the rest, each committed once.

Each is a function of a Spark session, or None to work in this process alone, and a repository.
PySpark is imported when a job meets a session, not before. The functions stand where modules of the
same names would: ``from icefloe.pipeline.rechunk import …`` still finds what else is in those.
"""

from icefloe.pipeline.append import append
from icefloe.pipeline.compact import compact
from icefloe.pipeline.compute import Location, Output, compute
from icefloe.pipeline.export import export
from icefloe.pipeline.ingest import ingest
from icefloe.pipeline.materialize import materialize
from icefloe.pipeline.opening import open_repository
from icefloe.pipeline.pyramid import pyramid
from icefloe.pipeline.rechunk import rechunk
from icefloe.pipeline.report import Failure, JobFailedError, Plan, Report
from icefloe.pipeline.virtualize import virtualize

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
