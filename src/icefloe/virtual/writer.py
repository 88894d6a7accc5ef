"""Parsed files written to a session: into a new group, or behind what a group has already.

All is checked before anything changes, and what fails nevertheless leaves the session as it was.
Nothing is committed here. Appending is idempotent: steps that the repository has, with the same
coordinates *and* the same references, are not appended again.
"""

from __future__ import annotations

import json
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.model.manifest import NO_CODE, ArrayManifest, ChunkPayloads
from icefloe.model.node import ChunkIndexRange, ManifestExtents
from icefloe.session import Session
from icefloe.store.open_array import open_array
from icefloe.types import SessionMode
from icefloe.virtual.agreement import Disagreement, compare, raise_disagreements
from icefloe.virtual.cf_time import convert_times, parse_time_units
from icefloe.virtual.contiguous import split_chunks
from icefloe.virtual.dataset import (
    LoadedArray,
    VirtualArray,
    VirtualDataset,
    are_equal,
    find_coordinate,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.model.path import Path
    from icefloe.virtual.dataset import AnyArray

__all__ = ["append", "compare_with_group", "find_append_problems", "write"]

_NO_REFS: Final = ChunkPayloads.of([])


def write(
    dataset: VirtualDataset,
    session: Session,
    *,
    group: str = "/",
    validate_containers: bool = True,
) -> None:
    """Write a parsed or combined dataset into a group that has nothing in it yet.

    Parameters
    ----------
    dataset
        What `parse` or `combine` returned.
    session
        A writable session; commit it afterwards.
    group
        The path of the group, which is created if need be.
    validate_containers
        Whether locations that no virtual chunk container of the repository covers are refused.

    Raises
    ------
    AlreadyExistsError
        If the group has nodes in it.
    InvalidInputError
        If a location is refused, or the repository cannot store an array.
    """
    _require_writable(session)
    base = _group_path(session, group)
    below = sorted(node.path.value for node in session.transaction.iter_nodes_below(base))
    node = session.transaction.get_node(base)
    if below or (node is not None and node.is_array):
        there = ", ".join(below[:5]) or f"the array {base}"
        raise AlreadyExistsError(
            f"{base} has {there}{', …' if len(below) > 5 else ''}: append to it, write into "
            "another group, or delete it first",
            kind=ErrorKind.NODE_ALREADY_EXISTS,
        )
    if validate_containers:
        _require_containers(session, dataset)
    with _all_or_nothing(session):
        for above in reversed([*base.ancestors()]):
            if session.transaction.get_node(above) is None:
                session.transaction.set_metadata(above, _group_document({}))
        for path, attributes in dataset.groups.items():
            session.transaction.set_metadata(_below(base, path), _group_document(attributes))
        for path, array in dataset.arrays.items():
            where = _below(base, path)
            session.transaction.set_metadata(where, _document(array.metadata))
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
    """Append a parsed or combined dataset to a group, along a dimension.

    What is there and what comes must agree as files must that are combined. Steps whose coordinates
    the repository has already must be the last ones before new ones, and refer to the same chunks:
    they are then skipped. So the same call twice appends once, and a list of files may start with
    some that were appended before. Without a coordinate along ``dim``, references alone are
    compared, with all that the array has.

    Parameters
    ----------
    dataset
        What `parse` or `combine` returned.
    session
        A writable session; commit it afterwards.
    dim
        The dimension to append along.
    group
        The path of the group.
    if_present
        For steps that are there with other references: ``check`` refuses, ``replace`` takes the
        new ones.
    validate_containers
        Whether locations that no virtual chunk container of the repository covers are refused.
    is_partial
        Whether the group may have arrays that the dataset lacks; who calls sees to those.

    Returns
    -------
        How many steps are new; 0 if all were there.

    Raises
    ------
    FilesDisagreeError
        If the dataset does not fit what the repository has: it names all variables, and in what
        they disagree. Nothing was written.
    NodeNotFoundError
        If there is no such group.
    """
    _require_writable(session)
    if if_present not in {"check", "replace"}:
        raise InvalidInputError(
            f"if_present is 'check' or 'replace', not {if_present!r}", kind=ErrorKind.NOT_ALLOWED
        )
    if not any(dim in array.dimension_names for array in dataset.arrays.values()):
        raise InvalidInputError(
            f"{dataset.shown}: no variable has the dimension {dim!r} to append along",
            kind=ErrorKind.FILES_DISAGREE,
        )
    base = _group_path(session, group)
    session.transaction.require_node(base)
    dataset = _cut_alike(session, base, dataset, dim)
    if validate_containers:
        _require_containers(session, dataset)
    stored = _stored(session, base, dataset)
    if is_partial:
        stored = stored.without(*(path for path in stored.arrays if path not in dataset.arrays))
    what = f"appending to {base}"
    raise_disagreements(compare(stored, dataset, dims=frozenset({dim}), stored=True), what)
    dataset, problems = _in_stored_units(stored, dataset)
    raise_disagreements(problems, what)
    places, problems = _places(session, base, stored, dataset, dim)
    raise_disagreements(problems, what)
    present = [*_other_references(session, base, stored, dataset, places)]
    if if_present == "check":
        raise_disagreements(present, what)
    replaced = {one.variable for one in present}
    with _all_or_nothing(session):
        for path, place in places.items():
            if place.added or path in replaced:
                where, array = _below(base, path), dataset.arrays[path]
                _extend(session, where, array, place, replace=path in replaced)
    return max(place.added for place in places.values())


def compare_with_group(
    dataset: VirtualDataset, session: Session, *, dim: str, group: str = "/"
) -> Iterator[Disagreement]:
    """Tell in what a dataset differs from what a group has, other than in its steps along ``dim``.

    Parameters
    ----------
    dataset, session, dim, group
        As for `append`.
    """
    base = _group_path(session, group)
    cut = _cut_alike(session, base, dataset, dim)
    return compare(_stored(session, base, cut), cut, dims=frozenset({dim}), stored=True)


def find_append_problems(
    datasets: Sequence[VirtualDataset], session: Session, *, dim: str, group: str = "/"
) -> Iterator[Disagreement]:
    """Tell of each of some files, by its loaded arrays, what keeps it from being appended.

    Unlike `append`, steps that the group has already are a problem too: of files whose references
    are elsewhere nobody can tell whether they are the same ones.

    Parameters
    ----------
    datasets
        Parsed files that agree with each other.
    session, dim, group
        As for `append`.
    """
    base = _group_path(session, group)
    session.transaction.require_node(base)
    stored: VirtualDataset | None = None
    for dataset in datasets:
        arrays = {
            path: array for path, array in dataset.arrays.items() if isinstance(array, LoadedArray)
        }
        loaded = VirtualDataset(dataset.sources, dataset.groups, {**arrays})
        if stored is None:
            stored = _stored(session, base, loaded)
            stored = stored.without(*(path for path in stored.arrays if path not in arrays))
        problems = list(compare(stored, loaded, dims=frozenset({dim}), stored=True))
        if not problems:
            loaded, problems = _in_stored_units(stored, loaded)
        if not problems:
            places, problems = _places(session, base, stored, loaded, dim)
        if not problems:
            problems = [
                Disagreement(
                    dataset.shown,
                    path,
                    "overlap",
                    f"has {place.present} of its {place.length} steps in the repository already, "
                    f"from step {place.start} on",
                )
                for path, place in places.items()
                if place.present
            ][:1]
        yield from problems


def is_descending(session: Session, *, dim: str, group: str = "/") -> bool:
    """Whether the coordinate of a dimension falls in a group; one that is not there does not."""
    path = _below(_group_path(session, group), dim)
    if session.transaction.get_node(path) is None:
        return False
    array = _open(session, path)
    return array.size > 1 and array.dtype.kind in "iuf" and bool(array[-1] < array[0])


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a dataset goes along a dimension.

    Parameters
    ----------
    start
        The first step.
    present
        How many steps, from there, the repository has already.
    length
        How many steps the dataset has.
    """

    dim: str
    start: int
    present: int
    length: int

    @property
    def added(self) -> int:
        """How many steps are new."""
        return self.length - self.present


def _stored(session: Session, base: Path, dataset: VirtualDataset) -> VirtualDataset:
    """Tell what the repository has, with the values that the dataset can be compared by."""
    start = len(base.value) + (not base.is_root)
    groups: dict[str, dict[str, Any]] = {"": {}}
    arrays: dict[str, AnyArray] = {}
    for node in session.transaction.iter_nodes_below(base):
        path = node.path.value[start:]
        document = json.loads(node.user_data)
        if not node.is_array:
            groups[path] = document.get("attributes") or {}
            continue
        theirs = dataset.arrays.get(path)
        if isinstance(theirs, LoadedArray):
            values = _open(session, node.path)[...]
            arrays[path] = LoadedArray(document, np.asarray(values))
        else:
            none = np.zeros((0, len(document["shape"])), np.uint32)
            arrays[path] = VirtualArray(document, ArrayManifest(none, _NO_REFS))
    return VirtualDataset((), groups, dict(sorted(arrays.items())))


def _cut_alike(session: Session, base: Path, dataset: VirtualDataset, dim: str) -> VirtualDataset:
    """Cut contiguous arrays into chunks of the length that the repository has."""
    arrays = dict(dataset.arrays)
    for path, array in dataset.arrays.items():
        node = session.transaction.get_node(_below(base, path))
        if isinstance(array, VirtualArray) and dim in array.dimension_names and node is not None:
            grid = json.loads(node.user_data).get("chunk_grid", {})
            axis = array.dimension_names.index(dim)
            chunk = grid.get("configuration", {}).get("chunk_shape", [])
            if len(chunk) == len(array.shape):
                arrays[path] = split_chunks(array, axis, chunk[axis])
    return VirtualDataset(dataset.sources, dataset.groups, arrays)


def _in_stored_units(
    stored: VirtualDataset, dataset: VirtualDataset
) -> tuple[VirtualDataset, list[Disagreement]]:
    """Express loaded values as the repository does: times in its units, numbers in its type."""
    arrays = dict(dataset.arrays)
    problems: list[Disagreement] = []
    for path, array in dataset.arrays.items():
        mine = stored.arrays.get(path)
        if not isinstance(array, LoadedArray) or not isinstance(mine, LoadedArray):
            continue
        values, problem = _converted(_owner_of_units(dataset, path), path, stored, dataset)
        if problem is None:
            fitting = _as_type(values, mine.values.dtype)
            if fitting is None:
                problem = f"has values that do not fit the repository's {mine.values.dtype}"
            else:
                values = fitting
        if problem is not None:
            problems.append(Disagreement(dataset.shown, path, "dtype", problem))
        arrays[path] = LoadedArray(array.metadata, values)
    return VirtualDataset(dataset.sources, dataset.groups, arrays), problems


def _converted(
    owner: str, path: str, stored: VirtualDataset, dataset: VirtualDataset
) -> tuple[NDArray[Any], str | None]:
    array = dataset.arrays[path]
    values: NDArray[Any] = array.values if isinstance(array, LoadedArray) else np.zeros(0)
    if owner not in stored.arrays or owner not in dataset.arrays:
        return values, None
    wanted = parse_time_units(stored.arrays[owner].attributes)
    given = parse_time_units(dataset.arrays[owner].attributes)
    if wanted is None or given is None or wanted == given:
        return values, None
    converted = convert_times(values, given, wanted)
    if converted is None and wanted.calendar != given.calendar:
        return (
            values,
            f"counts in calendar {given.calendar!r}, the repository in {wanted.calendar!r}",
        )
    if converted is None:
        return values, (
            f"has times in {given.text!r} that are no whole numbers of the repository's "
            f"{wanted.text!r}"
        )
    return converted, None


def _owner_of_units(dataset: VirtualDataset, path: str) -> str:
    """Find the coordinate whose units count for an array: its own, unless it is bounds."""
    group, _, name = path.rpartition("/")
    for other, array in dataset.arrays.items():
        if other.rpartition("/")[0] == group and array.attributes.get("bounds") == name:
            return other
    return path


def _as_type(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Convert values to a type, None if that would change them."""
    if values.dtype == dtype or dtype.kind not in "iuf" or values.dtype.kind not in "iuf":
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        found = values.astype(dtype)
    return found if dtype.kind == "f" or are_equal(found, values) else None


def _places(
    session: Session, base: Path, stored: VirtualDataset, dataset: VirtualDataset, dim: str
) -> tuple[dict[str, _Place], list[Disagreement]]:
    """Find where each array goes, and what keeps it from going there.

    Groups may have coordinates of their own under the same name.
    """
    places: dict[str, _Place] = {}
    known: dict[str, _Place] = {}
    problems: list[Disagreement] = []
    for path, array in dataset.arrays.items():
        if dim not in array.dimension_names:
            continue
        axis = array.dimension_names.index(dim)
        length, has = array.shape[axis], stored.arrays[path].shape[axis]
        coordinate = find_coordinate(dataset, path, dim)
        owner = f"{path.rpartition('/')[0]}/" if coordinate is None else coordinate
        place = known.get(owner)
        if place is None and coordinate is None:
            found = _find_refs(session, base, dataset, owner, dim)
            start = has if found is None else found
            place = _Place(dim, start, min(length, has - start), length)
        elif place is None and coordinate is not None:
            place, problem = _place_by(stored.arrays[coordinate], dataset.arrays[coordinate], dim)
            if problem is not None:
                problems.append(Disagreement(dataset.shown, coordinate, "overlap", problem))
        if place is None:
            raise AssertionError("an array goes by its coordinate, or by its references")
        known[owner] = places[path] = place
        chunk = array.chunk_shape
        if isinstance(array, VirtualArray) and chunk is not None and place.start % chunk[axis]:
            problems.append(
                Disagreement(
                    dataset.shown,
                    path,
                    "chunks",
                    f"would start at step {place.start} along {dim}, within a chunk of "
                    f"{chunk[axis]} steps: references can only be appended where a chunk ends",
                )
            )
    return places, problems


def _place_by(mine: AnyArray, theirs: AnyArray, dim: str) -> tuple[_Place, str | None]:
    if isinstance(mine, LoadedArray) and isinstance(theirs, LoadedArray):
        start, present, problem = _place_of(mine.values, theirs.values)
        return _Place(dim, start, present, len(theirs.values)), problem
    return _Place(dim, mine.shape[0], 0, theirs.shape[0]), (
        "is not loaded, so that steps cannot be told apart: parse with loadable_variables that "
        "name it"
    )


def _place_of(there: NDArray[Any], new: NDArray[Any]) -> tuple[int, int, str | None]:
    """Find where coordinates go: the first step, how many are there, what is wrong."""
    if not len(there) or not len(new):
        return len(there), 0, None
    start, present = len(there), 0
    found = np.flatnonzero(there == new[0])
    if len(found):
        start = int(found[0])
        present = min(len(new), len(there) - start)
        if not are_equal(there[start : start + present], new[:present]):
            return (
                start,
                present,
                (
                    f"has {new[0]!s} at its start, as the repository has, but goes on differently: "
                    "overlapping steps must be the same ones"
                ),
            )
    rest = new[present:]
    known = np.isin(rest, there)
    if known.any():
        problem = f"has {rest[known][0]!s}, which the repository has too, after other steps"
        return start, present, problem
    if len(rest) and there.dtype.kind in "iuf":
        every = np.concatenate([there[-1:], rest])
        # One step alone is taken to rise, unless several new ones fall: what comes before it would
        # turn the axis around, which nobody wants who appends a day that was late.
        falling = rest[-1] < rest[0] if len(there) == 1 else there[-1] < there[0]
        if not ((np.diff(every) < 0) if falling else (np.diff(every) > 0)).all():
            problem = (
                f"goes from {rest[0]!s} to {rest[-1]!s}, which does not go on from what the "
                f"repository has ({there[0]!s} to {there[-1]!s}): steps are appended in order"
            )
            return start, present, problem
    return start, present, None


def _find_refs(
    session: Session, base: Path, dataset: VirtualDataset, group: str, dim: str
) -> int | None:
    """Find the step from which the arrays of a group have the references of a dataset already."""
    for path, array in dataset.arrays.items():
        if (
            not isinstance(array, VirtualArray)
            or not len(array.refs)
            or dim not in array.dimension_names
            or f"{path.rpartition('/')[0]}/" != group
        ):
            continue
        chunk = array.chunk_shape
        axis = array.dimension_names.index(dim)
        first, payloads = array.refs.coords[0], array.refs.payloads
        location = (
            payloads.locations[int(payloads.location[0])] if payloads.location[0] >= 0 else ""
        )
        for part in session.transaction.fetch_chunk_refs(_below(base, path)):
            there = part.payloads
            rows = np.flatnonzero(
                (there.offset == payloads.offset[0])
                & (there.length == payloads.length[0])
                & (there.location != NO_CODE)
            )
            for row in rows.tolist():
                if there.locations[int(there.location[row])] == location and chunk is not None:
                    return int(part.coords[row, axis] - first[axis]) * chunk[axis]
        return None
    return None


def _other_references(
    session: Session,
    base: Path,
    stored: VirtualDataset,
    dataset: VirtualDataset,
    places: dict[str, _Place],
) -> Iterator[Disagreement]:
    """Find arrays that have something else at the steps that are there already."""
    for path, place in places.items():
        if not place.present:
            continue
        array = dataset.arrays[path]
        steps = f"steps {place.start} to {place.start + place.present - 1} along {place.dim}"
        axis = array.dimension_names.index(place.dim)
        if isinstance(array, VirtualArray):
            there = _refs_at(session, _below(base, path), array, axis, place)
            first = place.start // (array.chunk_shape or (1,) * (axis + 1))[axis]
            new = _rows_at(array.refs, axis, 0, _chunks_present(array, axis, place))
            coords = new.coords.astype(np.int64)
            coords[:, axis] += first
            if np.array_equal(there.coords, coords) and there.payloads == new.payloads:
                continue
        else:
            mine = stored.arrays[path]
            if isinstance(mine, LoadedArray) and are_equal(
                mine.values[_steps(axis, place.start, place.start + place.present)],
                array.values[_steps(axis, 0, place.present)],
            ):
                continue
        yield Disagreement(
            dataset.shown,
            path,
            "references",
            f"the repository has {steps} already, from another file or another version of it; "
            "pass if_present='replace' to take the new ones",
        )


def _refs_at(
    session: Session, path: Path, array: VirtualArray, axis: int, place: _Place
) -> ArrayManifest:
    """Fetch the references that the repository has where the dataset goes."""
    chunk = array.chunk_shape or (1,) * (axis + 1)
    low = place.start // chunk[axis]
    high = low + _chunks_present(array, axis, place)
    grid = session.transaction.get_grid(path)
    ranges = [ChunkIndexRange(0, count) for count in grid]
    ranges[axis] = ChunkIndexRange(low, high)
    parts = [
        _rows_at(part, axis, low, high)
        for part in session.transaction.fetch_chunk_refs(
            path, within=ManifestExtents(tuple(ranges))
        )
    ]
    none = ArrayManifest(np.zeros((0, len(grid)), np.uint32), _NO_REFS)
    parts = parts or [none]
    coords = np.concatenate([part.coords for part in parts])
    return ArrayManifest.of(coords, ChunkPayloads.concatenate([part.payloads for part in parts]))


def _rows_at(refs: ArrayManifest, axis: int, low: int, high: int) -> ArrayManifest:
    along = refs.coords[:, axis]
    rows = np.flatnonzero((along >= low) & (along < high))
    return ArrayManifest(refs.coords[rows], refs.payloads.rows(rows))


def _chunks_present(array: VirtualArray, axis: int, place: _Place) -> int:
    chunk = array.chunk_shape or (1,) * (axis + 1)
    return -(-place.present // chunk[axis])


def _extend(session: Session, path: Path, array: AnyArray, place: _Place, *, replace: bool) -> None:
    node = session.transaction.require_array(path)
    document = json.loads(node.user_data)
    axis = array.dimension_names.index(place.dim)
    document["shape"][axis] = max(document["shape"][axis], place.start + place.length)
    if isinstance(array, LoadedArray):
        skipped = 0 if replace else place.present
        if place.added:
            session.transaction.set_metadata(path, _document(document))
        region = _steps(axis, place.start + skipped, place.start + place.length)
        if skipped < place.length:
            _set_values(session, path, array.values[_steps(axis, skipped, place.length)], region)
        return
    chunk = array.chunk_shape or (1,) * (axis + 1)
    refs = array.refs
    if replace and place.present:
        old = _refs_at(session, path, array, axis, place)
        session.transaction.delete_chunks(path, old.coords)
    elif place.present:
        refs = _rows_at(refs, axis, _chunks_present(array, axis, place), 2**32)
    if place.added:
        session.transaction.set_metadata(path, _document(document))
    coords = refs.coords.copy()
    coords[:, axis] += np.uint32(place.start // chunk[axis])
    session.transaction.set_payloads(path, coords, refs.payloads)


def _steps(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, stop))


def _set_values(session: Session, path: Path, values: NDArray[Any], region: Any) -> None:
    if values.size:
        _open(session, path)[region] = values


def _open(session: Session, path: Path) -> Any:
    with warnings.catch_warnings():
        # About codecs and types outside of Zarr's specification, which are as they are.
        warnings.simplefilter("ignore")
        return open_array(session.store, path.value, mode="r+")


def _require_containers(session: Session, dataset: VirtualDataset) -> None:
    virtual = session.connection.virtual
    for path, array in dataset.arrays.items():
        if not isinstance(array, VirtualArray) or not len(array.refs):
            continue
        held = virtual.validate_many(array.refs.payloads.locations)
        if held.all():
            continue
        bad = int(np.flatnonzero(~held)[0])
        location = array.refs.payloads.locations[bad]
        try:
            virtual.validate(location)
        except InvalidInputError as error:
            more = int((~held).sum()) - 1
            raise InvalidInputError(
                f"{path}: {error.message}" + (f" (and {more} more files)" if more else ""),
                kind=error.kind,
            ) from error


@contextmanager
def _all_or_nothing(session: Session) -> Iterator[None]:
    transaction = session.transaction
    before = transaction.changes.copy()
    try:
        yield
    except BaseException:
        transaction.replace_base(transaction.base_id, before)
        raise


def _group_path(session: Session, group: str) -> Path:
    return session.path(f"/{group.strip('/')}")


def _below(base: Path, path: str) -> Path:
    for name in path.split("/") if path else ():
        base = base.child(name)
    return base


def _group_document(attributes: dict[str, Any]) -> bytes:
    return _document({"zarr_format": 3, "node_type": "group", "attributes": attributes})


def _document(metadata: dict[str, Any]) -> bytes:
    return json.dumps(metadata, separators=(",", ":")).encode()


def _require_writable(session: object) -> None:
    if not isinstance(session, Session):
        raise InvalidInputError(
            f"virtual datasets are written to a session, not to a {type(session).__name__}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    if session.read_only:
        raise ReadOnlyError(
            "this session is read-only: take repository.writable_session(branch) to write",
            kind=ErrorKind.READ_ONLY_SESSION,
        )
    if session.mode is SessionMode.rearrange:
        raise SessionStateError(
            "a rearrange session only moves nodes: take repository.writable_session(branch)",
            kind=ErrorKind.NON_REARRANGE_SESSION,
        )
