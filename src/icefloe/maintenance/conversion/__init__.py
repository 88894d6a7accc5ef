"""Conversion of a repository from one generation of the specification to another.

`convert` runs it: `history` pins the state of the source, `plan` reads all of it and finds what
the target cannot express, then `chunks`, `manifests` and `snapshots` write the files of the target,
and its reference store publishes them. `record` keeps the state in the target, so that an
interrupted conversion goes on. `in_place` converts v2 to v1 without another root.
"""

from icefloe.maintenance.conversion.convert import convert_storage
from icefloe.maintenance.conversion.report import ConversionReport

__all__ = ["ConversionReport", "convert_storage"]
