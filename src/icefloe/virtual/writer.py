"""`write` and `append`: store virtual datasets in a group of a session.

Everything is checked before anything changes; an error leaves the session unchanged. Nothing is
committed. Appends are idempotent: steps that are already stored with the same coordinates and
references are skipped.
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
        Reject locations that match no virtual chunk container of the repository.

    Raises
    ------
    AlreadyExistsError
        If the group is not empty.
    InvalidInputError
        If a location is rejected, or the repository cannot store an array.
    """
    _require_writable(session)
    base = stored_group.resolve_group(session, group)
    below = sorted(node.path.value for node in session.transaction.iter_nodes_below(base))
    node = session.transaction.get_node(base)
    if below or (node is not None and node.is_array):
        nodes = f"contains {', '.join(below[:5])}" if below else "is an array"
        raise AlreadyExistsError(
            f"{base} {nodes}{', …' if len(below) > 5 else ''}: append to it, write to another "
            "group, or delete it first"
        )
    if validate_containers:
        _require_containers(session, dataset)
    with session.transaction.rollback_on_error():
        for ancestor in reversed([*base.ancestors()]):
            if session.transaction.get_node(ancestor) is None:
                session.transaction.set_metadata(ancestor, _encode_group({}))
        for path, attributes in dataset.groups.items():
            node_path = stored_group.join_path(base, path)
            session.transaction.set_metadata(node_path, _encode_group(attributes))
        for path, array in dataset.arrays.items():
            node_path = stored_group.join_path(base, path)
            session.transaction.set_metadata(node_path, _encode(array.metadata))
            if isinstance(array, VirtualArray):
                session.transaction.set_payloads(node_path, array.refs.coords, array.refs.payloads)
            else:
                _set_values(session, node_path, array.values, ...)


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

    The dataset must agree with the group, as files must agree to be combined. Leading steps that
    are already stored must match the last stored steps and have the same references; they are
    skipped. A repeated append therefore has no effect, and a list of files may start with files
    that were appended before. Without a coordinate along ``dim``, only references are compared.

    Parameters
    ----------
    dataset, session, validate_containers
        As for `write`.
    dim
        Dimension to append along.
    group
        Path of the group.
    if_present
        How to handle steps that are stored with other references: ``check`` raises,
        ``replace`` overwrites them.
    is_partial
        Whether the group may have arrays that are not in the dataset; the caller extends them.

    Returns
    -------
        Number of new steps; 0 if all are already stored.

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
            f"if_present={if_present!r}: expected 'check' or 'replace'", kind=ErrorKind.NOT_ALLOWED
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
    stored = stored_group.fetch_stored_dataset(session, base, dataset)
    if is_partial:
        stored = stored.without(*(stored.arrays.keys() - dataset.arrays.keys()))
    operation = f"appending to {base}"
    raise_disagreements(compare(stored, dataset, dims=frozenset({dim}), is_stored=True), operation)
    dataset, problems = append_plan.convert_to_stored_units(stored, dataset)
    raise_disagreements(problems, operation)
    placements, problems = append_plan.plan_placements(session, base, stored, dataset, dim)
    raise_disagreements(problems, operation)
    changed = [*append_plan.find_changed_steps(session, base, stored, dataset, placements)]
    if if_present == "check":
        raise_disagreements(changed, operation)
    replaced = {disagreement.variable for disagreement in changed}
    with session.transaction.rollback_on_error():
        for path, placement in placements.items():
            if placement.num_new or path in replaced:
                node_path, array = stored_group.join_path(base, path), dataset.arrays[path]
                _extend_array(session, node_path, array, placement, replace=path in replaced)
    return max(placement.num_new for placement in placements.values())


def _extend_array(
    session: Session, path: Path, array: AnyArray, placement: Placement, *, replace: bool
) -> None:
    node = session.transaction.require_array(path)
    document = json.loads(node.user_data)
    axis = array.dimension_names.index(placement.dim)
    end = placement.start + placement.length
    document["shape"][axis] = max(document["shape"][axis], end)
    if isinstance(array, LoadedArray):
        if placement.num_new:
            session.transaction.set_metadata(path, _encode(document))
        skipped = 0 if replace else placement.num_stored
        if skipped < placement.length:
            values = array.values[append_plan.slice_steps(axis, skipped, placement.length)]
            region = append_plan.slice_steps(axis, placement.start + skipped, end)
            _set_values(session, path, values, region)
        return
    refs = array.refs
    if replace and placement.num_stored:
        old = append_plan.fetch_stored_refs(session, path, array, placement)
        session.transaction.delete_chunks(path, old.coords)
    elif placement.num_stored:
        num_stored = append_plan.count_stored_chunks(array, placement)
        refs = append_plan.select_refs(refs, axis, num_stored, 2**32)
    if placement.num_new:
        session.transaction.set_metadata(path, _encode(document))
    chunk = array.chunk_shape or (1,) * (axis + 1)
    coords = refs.coords.copy()
    coords[:, axis] += np.uint32(placement.start // chunk[axis])
    session.transaction.set_payloads(path, coords, refs.payloads)


def _set_values(session: Session, path: Path, values: NDArray[Any], region: Any) -> None:
    if values.size:
        stored_group.open_stored_array(session, path)[region] = values


def _require_containers(session: Session, dataset: VirtualDataset) -> None:
    virtual = session.connection.virtual
    for path, array in dataset.arrays.items():
        if not isinstance(array, VirtualArray) or not len(array.refs):
            continue
        is_valid = virtual.validate_many(array.refs.payloads.locations)
        if is_valid.all():
            continue
        invalid = np.flatnonzero(~is_valid)
        try:
            virtual.validate(array.refs.payloads.locations[int(invalid[0])])
        except InvalidInputError as error:
            more = f" (and {len(invalid) - 1} more files)" if len(invalid) > 1 else ""
            raise InvalidInputError(f"{path}: {error.message}{more}", kind=error.kind) from error


def _encode_group(attributes: dict[str, Any]) -> bytes:
    return _encode({"zarr_format": 3, "node_type": "group", "attributes": attributes})


def _encode(metadata: dict[str, Any]) -> bytes:
    return json.dumps(metadata, separators=(",", ":")).encode()


def _require_writable(session: object) -> None:
    if not isinstance(session, Session):
        raise InvalidInputError(
            f"expected a writable session, got a {type(session).__name__}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    session.require_editable()
