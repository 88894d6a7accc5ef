"""Jobs on Spark: virtualize, ingest, append, rechunk and others; each commits once.

A job is a function of a Spark session and a repository. With None as session it runs in-process,
and PySpark is not imported.
"""

from icefloe.maintenance.conversion import ConversionReport
from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.compact import compact
from icefloe.pipeline.jobs.compute import Location, Output, compute
from icefloe.pipeline.jobs.convert import convert_repository
from icefloe.pipeline.jobs.export import export
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.materialize import materialize
from icefloe.pipeline.jobs.pyramid import pyramid
from icefloe.pipeline.jobs.rechunk import rechunk
from icefloe.pipeline.jobs.refresh import refresh
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.opening import open_repository
from icefloe.pipeline.options import CommitOptions, RunOptions
from icefloe.pipeline.report import Failure, JobFailedError, Plan, Report, SourcesChangedError

__all__ = [
    "CommitOptions",
    "ConversionReport",
    "Failure",
    "JobFailedError",
    "Location",
    "Output",
    "Plan",
    "Report",
    "RunOptions",
    "SourcesChangedError",
    "append",
    "compact",
    "compute",
    "convert_repository",
    "export",
    "ingest",
    "materialize",
    "open_repository",
    "pyramid",
    "rechunk",
    "refresh",
    "virtualize",
]
