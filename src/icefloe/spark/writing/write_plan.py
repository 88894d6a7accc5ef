"""The plan of a write, and checks that all kinds of writes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from icefloe.spark.option_parsing import input_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.spark.writing.write_options import WriteOptions


@dataclass(frozen=True, slots=True, eq=False)
class WritePlan:
    """Plan of a write that creates a group, appends to it, or overwrites a region of it.

    ``columns`` are the columns of dimensions and table variables, with the types in which they are
    written; ``growing_dims`` are the dimensions that get new labels; ``auxiliary`` are the
    auxiliary variables that have columns; ``table_variables`` are the variables to which rows are
    written, None for all of the group.
    """

    kind: Literal["create", "append", "region"]
    dims: tuple[str, ...]
    columns: Mapping[str, pa.DataType]
    growing_dims: tuple[str, ...]
    auxiliary: tuple[str, ...] = ()
    table_variables: tuple[str, ...] | None = None

    @property
    def variables(self) -> list[str]:
        """The columns that are not dimensions."""
        return [name for name in self.columns if name not in self.dims]


def require_no_problems(problems: list[str], options: WriteOptions) -> None:
    """Raise an error with all problems of the columns, if there are any."""
    if problems:
        raise input_error(
            f"the columns do not match group {options.group!r}: " + "; ".join(problems)
        )


def require_labels(name: str, labels: pa.Array) -> None:
    """Raise if the labels of a dimension contain nulls or NaN."""
    num_invalid = labels.null_count
    if pa.types.is_floating(labels.type):
        num_invalid += pc.sum(pc.is_nan(labels)).as_py() or 0
    if num_invalid:
        raise input_error(f"dimension column {name!r} contains nulls or NaN: drop those rows")
