"""What a write does: the value that planning returns, and the checks that planners share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from icefloe.spark.option_parsing import invalid_input

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.spark.writing.write_options import WriteOptions


@dataclass(frozen=True, slots=True, eq=False)
class WritePlan:
    """What a write does: create a group, append to one, or overwrite a region of one.

    ``columns`` are all columns, with the types in which they are written; ``unknown`` are the
    dimensions whose new labels are taken from the rows; ``auxiliary`` are the auxiliary variables
    that have columns; ``table`` has the variables of the table, if they are not all of the group.
    """

    kind: Literal["create", "append", "region"]
    dims: tuple[str, ...]
    columns: Mapping[str, pa.DataType]
    unknown: tuple[str, ...]
    auxiliary: tuple[str, ...] = ()
    table: tuple[str, ...] | None = None

    @property
    def variables(self) -> list[str]:
        """Columns with a value for each row."""
        return [name for name in self.columns if name not in self.dims]


def require_no_problems(problems: list[str], options: WriteOptions) -> None:
    """Raise with all problems of the columns, if there are any."""
    if problems:
        raise invalid_input(
            f"the columns do not fit group {options.group!r}: " + "; ".join(problems)
        )


def require_labels(name: str, labels: pa.Array) -> None:
    """Raise if labels have nulls or NaN."""
    bad = labels.null_count
    if pa.types.is_floating(labels.type):
        bad += pc.sum(pc.is_nan(labels)).as_py() or 0
    if bad:
        raise invalid_input(f"column {name!r} has nulls or NaN, which are no labels of a dimension")
