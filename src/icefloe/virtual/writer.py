"""`write` and `append`: store virtual datasets in a group of a session.

Everything is checked before anything changes; an error leaves the session as it was. Nothing is
committed. Appends are idempotent: steps that are stored with the same coordinates *and* the same
references are not appended again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError
from icefloe.session import Session
from icefloe.virtual import append_plan, stored_group
from icefloe.virtual.agreement import compare, raise_disagreements
from icefloe.virtual.arrays import LoadedArray, VirtualArray

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.path import Path
    from icefloe.virtual.append_plan import Placement
    from icefloe.virtual.arrays import AnyArray
    from icefloe.virtual.dataset import VirtualDataset


def write(
    dataset: VirtualDataset, session: Session, *, group: str = "/", validate_containers: bool = True
) -> None:
    """Write a parsed or combined dataset to an empty or new group.

    Parameters
    ----------
    dataset
        Result of `parse` or `combine`.
    session
        Writable session; commit it afterwards.
    group
        Path of the group, created if it does not exist.
    validate_containers
        Refuse locations that no virtual chunk container of the repository covers.

    Raises
    ------
    AlreadyExistsError
        If the group has nodes in it.
    InvalidInputError
        If a location is refused, or the repository cannot store an array.
    """
    _require_writable(session)
    base = stored_group.resolve_group(session, group)
    below = sorted(node.path.value for node in session.transaction.iter_nodes_below(base))
    node = session.transaction.get_node(base)
    if below or (node is not None and node.is_array):
        there = ", ".join(below[:5]) or f"the array {base}"
        raise AlreadyExistsError(
            f"{base} has {there}{', …' if len(below) > 5 else ''}: append to it, write to "
            "another group, or delete it first"
        )
    if validate_containers:
        _require_containers(session, dataset)
    with session.transaction.rollback_on_error():
        for above in reversed([*base.ancestors()]):
            if session.transaction.get_node(above) is None:
                session.transaction.set_metadata(above, _encode_group({}))
        for path, attributes in dataset.groups.items():
            where = stored_group.join_path(base, path)
            session.transaction.set_metadata(where, _encode_group(attributes))
        for path, array in dataset.arrays.items():
            where = stored_group.join_path(base, path)
            session.transaction.set_metadata(where, _encode(array.metadata))
            if isinstance(array, VirtualArray):
                session.transaction.set_payloads(where, array.refs.coords, array.refs.payloads)
            else:
                _set_values(session, where, array.values, ...)


def append(
    dataset: VirtualDataset,
    session: Session,
    *,
    dim: str,
    group: str = "/",
    if_present: Literal["check", "replace"] = "check",
    validate_containers: bool = True,
    is_partial: bool = False,
) -> int:
    """Append a parsed or combined dataset to a group along a dimension.

    The dataset must agree with the group as combined files agree with each other. Leading steps
    that are stored already must match the last stored ones and have the same references; they are
    skipped. Appending twice therefore appends once, and a list of files may begin with files that
    were appended before. Without a coordinate along ``dim``, only references are compared.

    Parameters
    ----------
    dataset, session, validate_containers
        As for `write`.
    dim
        Dimension to append along.
    group
        Path of the group.
    if_present
        What to do with steps that are stored with other references: ``check`` refuses them,
        ``replace`` overwrites them.
    is_partial
        Whether the group may have arrays that the dataset lacks; the caller extends those.

    Returns
    -------
        Number of new steps; 0 if all are stored already.

    Raises
    ------
    FilesDisagreeError
        If the dataset does not agree with the group. Lists all disagreements; nothing was written.
    NodeNotFoundError
        If the group does not exist.
    """
    _require_writable(session)
    if if_present not in {"check", "replace"}:
        raise InvalidInputError(
            f"if_present is 'check' or 'replace', not {if_present!r}", kind=ErrorKind.NOT_ALLOWED
        )
    if not any(dim in array.dimension_names for array in dataset.arrays.values()):
        raise InvalidInputError(
            f"{dataset.label}: no variable has the dimension {dim!r} to append along",
            kind=ErrorKind.FILES_DISAGREE,
        )
    base = stored_group.resolve_group(session, group)
    session.transaction.require_node(base)
    dataset = stored_group.align_with_stored(session, base, dataset, dim)
    if validate_containers:
        _require_containers(session, dataset)
    stored = stored_group.fetch_stored(session, base, dataset)
    if is_partial:
        stored = stored.without(*(stored.arrays.keys() - dataset.arrays.keys()))
    what = f"appending to {base}"
    raise_disagreements(compare(stored, dataset, dims=frozenset({dim}), stored=True), what)
    dataset, problems = append_plan.convert_to_stored_units(stored, dataset)
    raise_disagreements(problems, what)
    placements, problems = append_plan.plan_placements(session, base, stored, dataset, dim)
    raise_disagreements(problems, what)
    changed = [*append_plan.find_changed_steps(session, base, stored, dataset, placements)]
    if if_present == "check":
        raise_disagreements(changed, what)
    replaced = {disagreement.variable for disagreement in changed}
    with session.transaction.rollback_on_error():
        for path, placement in placements.items():
            if placement.added or path in replaced:
                where, array = stored_group.join_path(base, path), dataset.arrays[path]
                _extend(session, where, array, placement, replace=path in replaced)
    return max(placement.added for placement in placements.values())


def _extend(
    session: Session, path: Path, array: AnyArray, placement: Placement, *, replace: bool
) -> None:
    node = session.transaction.require_array(path)
    document = json.loads(node.user_data)
    axis = array.dimension_names.index(placement.dim)
    end = placement.start + placement.length
    document["shape"][axis] = max(document["shape"][axis], end)
    if isinstance(array, LoadedArray):
        if placement.added:
            session.transaction.set_metadata(path, _encode(document))
        skipped = 0 if replace else placement.present
        if skipped < placement.length:
            values = array.values[append_plan.slice_steps(axis, skipped, placement.length)]
            region = append_plan.slice_steps(axis, placement.start + skipped, end)
            _set_values(session, path, values, region)
        return
    refs = array.refs
    if replace and placement.present:
        old = append_plan.fetch_refs_at(session, path, array, placement)
        session.transaction.delete_chunks(path, old.coords)
    elif placement.present:
        present = append_plan.count_present_chunks(array, placement)
        refs = append_plan.select_refs(refs, axis, present, 2**32)
    if placement.added:
        session.transaction.set_metadata(path, _encode(document))
    chunk = array.chunk_shape or (1,) * (axis + 1)
    coords = refs.coords.copy()
    coords[:, axis] += np.uint32(placement.start // chunk[axis])
    session.transaction.set_payloads(path, coords, refs.payloads)


def _set_values(session: Session, path: Path, values: NDArray[Any], region: Any) -> None:
    if values.size:
        stored_group.open_stored(session, path)[region] = values


def _require_containers(session: Session, dataset: VirtualDataset) -> None:
    virtual = session.connection.virtual
    for path, array in dataset.arrays.items():
        if not isinstance(array, VirtualArray) or not len(array.refs):
            continue
        is_covered = virtual.validate_many(array.refs.payloads.locations)
        if is_covered.all():
            continue
        uncovered = np.flatnonzero(~is_covered)
        try:
            virtual.validate(array.refs.payloads.locations[int(uncovered[0])])
        except InvalidInputError as error:
            more = f" (and {len(uncovered) - 1} more files)" if len(uncovered) > 1 else ""
            raise InvalidInputError(f"{path}: {error.message}{more}", kind=error.kind) from error


def _encode_group(attributes: dict[str, Any]) -> bytes:
    return _encode({"zarr_format": 3, "node_type": "group", "attributes": attributes})


def _encode(metadata: dict[str, Any]) -> bytes:
    return json.dumps(metadata, separators=(",", ":")).encode()


def _require_writable(session: object) -> None:
    if not isinstance(session, Session):
        raise InvalidInputError(
            f"virtual datasets are written to a session, not to a {type(session).__name__}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    session.require_editable()
