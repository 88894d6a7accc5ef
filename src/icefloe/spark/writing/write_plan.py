"""What a write does: the value that planning makes, and everything after it needs."""

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
    """What a write does.

    Parameters
    ----------
    kind
        It makes a group, appends to one, or overwrites a region of one.
    dims
        The dimensions of the table.
    columns
        All columns, with the types in which they are written.
    unknown
        Dimensions whose new labels the rows tell.
    beside
        Variables beside the table that have columns, too.
    table
        The variables of the table, where they are not all of the group.
    """

    kind: Literal["create", "append", "region"]
    dims: tuple[str, ...]
    columns: Mapping[str, pa.DataType]
    unknown: tuple[str, ...]
    beside: tuple[str, ...] = ()
    table: tuple[str, ...] | None = None

    @property
    def variables(self) -> list[str]:
        """The columns that have a value for each row."""
        return [name for name in self.columns if name not in self.dims]


def require_fitting(problems: list[str], options: WriteOptions) -> None:
    """Refuse columns, with all that is wrong with them."""
    if problems:
        raise invalid_input(
            f"the columns do not fit group {options.group!r}: " + "; ".join(problems)
        )


def require_labels(name: str, labels: pa.Array) -> None:
    """Refuse labels that are no place along a dimension."""
    bad = labels.null_count
    if pa.types.is_floating(labels.type):
        bad += pc.sum(pc.is_nan(labels)).as_py() or 0
    if bad:
        raise invalid_input(
            f"column {name!r} has nulls or NaN, which are no place along a dimension"
        )
