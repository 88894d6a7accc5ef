"""The numbered files of a branch in the generation ``sequence`` (``docs/format/sequence.md``).

A branch changes by the creation of its next file, which fails if that exists. The newest file is
the first in a listing of the branch, so that one page of a listing finds it. Garbage collection
keeps the two newest files of each branch. The following relies on it:

- Readers check that the two newest files are consecutive, which detects lost files.
- A file that was created as one of the two newest was never collected, so it was the newest at
  some time, and the change took effect. With two or more newer files, another file of the same
  number may have been collected before, and then no reader has seen the new one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from icefloe.assets import fetch_file
from icefloe.errors import (
    FormatError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.format.sequence.keys import (
    REFS,
    format_branch_key,
    format_branch_prefix,
    parse_branch_key,
    parse_tag_key,
)
from icefloe.format.sequence.ref import MAX_REF_SIZE, decode_ref, encode_ref
from icefloe.refs import change_counter
from icefloe.storage.interface import Create

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from icefloe.format.sequence.ref import RefData
    from icefloe.storage.interface import ObjectInfo, Storage

NUM_KEPT: Final = 2
"""The number of files of a branch that garbage collection keeps, whatever their age."""

_MAX_LISTINGS: Final = 20


class BranchFile(NamedTuple):
    """The newest file of a branch."""

    branch: str
    number: int
    ref: RefData


class RefListing(NamedTuple):
    """The files of all branches, newest first, by number, and the names of all tags."""

    branches: dict[str, dict[int, ObjectInfo]]
    tags: list[str]


def fetch_newest(storage: Storage, branch: str) -> BranchFile | None:
    """Fetch the newest file of a branch, or None if there is none; one listing and one get."""
    missing: ObjectNotFoundError | None = None
    for _ in range(_MAX_LISTINGS):
        number = find_newest(storage, branch)
        if number is None:
            return None
        try:
            return fetch_branch_file(storage, branch, number)
        except ObjectNotFoundError as error:  # collected since it was listed
            missing = error
    prefix = format_branch_prefix(branch)
    raise FormatError("the newest file is listed, but does not exist", file=prefix) from missing


def find_newest(storage: Storage, branch: str) -> int | None:
    """Find the number of the newest file of a branch; one listing.

    Lists again after a gap: a listing of a directory may miss a file that is created meanwhile and
    have the next one.
    """
    for _ in range(_MAX_LISTINGS):
        infos = storage.list_first(format_branch_prefix(branch), NUM_KEPT)
        numbers = [_parse_number(info) for info in infos]
        if not numbers:
            return None
        if is_consecutive(numbers):
            return numbers[0]
    raise FormatError(
        f"file {numbers[0]} of the branch, but file {numbers[0] - 1} is missing",
        file=infos[0].key,
    )


def is_consecutive(numbers: list[int]) -> bool:
    """Whether the two newest files of a branch have consecutive numbers, or there is only 0."""
    newest, *older = numbers[:NUM_KEPT]
    return older == [newest - 1] if newest else not older


def fetch_branch_file(storage: Storage, branch: str, number: int) -> BranchFile:
    """Fetch a file of a branch; one get."""
    key = format_branch_key(branch, number)
    return BranchFile(branch, number, fetch_ref(storage, key))


def fetch_ref(storage: Storage, key: str) -> RefData:
    """Fetch the file of a branch or tag; one get."""
    return decode_ref(fetch_file(storage, key, max_bytes=MAX_REF_SIZE).data, key)


def list_refs(storage: Storage) -> RefListing:
    """List all branches and tags, and the files of all branches; one listing, of any size."""
    listing = RefListing({}, [])
    for info in storage.list(REFS):
        parsed = parse_branch_key(info.key)
        if parsed is not None:
            branch, number = parsed
            listing.branches.setdefault(branch, {})[number] = info
        elif (tag := parse_tag_key(info.key)) is not None:
            listing.tags.append(tag)
    return listing


def append(
    storage: Storage,
    branch: str,
    current: BranchFile | None,
    ref: RefData,
    *,
    was_newest: Callable[[], bool],
) -> bool:
    """Create the file after ``current``, or the first; return whether the change took effect.

    One put and one listing. If another writer was first, or the new file was never the newest,
    nothing changed, and the caller must fetch the branch again.

    ``was_newest`` decides whether the new file was the newest when it was created, if it may have
    replaced a collected file (see the module).
    """
    number = 0 if current is None else current.number + 1
    key = format_branch_key(branch, number)
    change_counter.increment()
    if not create_ref(storage, key, ref):
        return False
    try:
        # A file that is not even listed is of no use to a reader, or the listing is outdated.
        for _ in range(_MAX_LISTINGS):
            newest = find_newest(storage, branch)
            if newest is not None and newest >= number:
                break
        else:
            raise _unknown_outcome_error(key, "it is not listed")
        if newest < number + NUM_KEPT or was_newest():
            return True
    except OutcomeUnknownError:
        raise
    except (StorageError, FormatError) as error:
        raise _unknown_outcome_error(key, error.message) from error
    with contextlib.suppress(StorageError):  # harmless: no reader uses this file
        storage.delete_many([key])
    return False


def create_ref(storage: Storage, key: str, ref: RefData) -> bool:
    """Create the file of a branch or tag; return False if another writer was first.

    If the response is lost, the file is read back: its time and snapshot identify it.
    """
    data = encode_ref(ref)
    try:
        storage.put(key, data, Create())
    except (PreconditionFailedError, OutcomeUnknownError) as error:
        # After a rejection too: a client or gateway may have repeated a request that succeeded.
        try:
            return bytes(fetch_file(storage, key, max_bytes=MAX_REF_SIZE).data) == data
        except (StorageError, FormatError):
            if isinstance(error, PreconditionFailedError):
                return False
            raise error from None  # the request may still be in flight
    return True


def collect_branch_files(
    storage: Storage, *, before: datetime, dry_run: bool = False
) -> list[ObjectInfo]:
    """Delete the branch files that no reader needs, and return them.

    These are all that were written before a time, except the two newest of each branch, also of a
    deleted one. The oldest are deleted first. A reader that has listed a file and finds it deleted
    lists again.
    """
    collected: list[ObjectInfo] = []
    for files in list_refs(storage).branches.values():
        newest = max(files)
        collected += [
            files[number]
            for number in sorted(files)
            if number <= newest - NUM_KEPT and files[number].last_modified < before
        ]
    if not dry_run:
        storage.delete_many([info.key for info in collected])
    return collected


def _parse_number(info: ObjectInfo) -> int:
    parsed = parse_branch_key(info.key)
    if parsed is None:  # no branch has this key
        raise FormatError("not the name of a branch file", file=info.key)
    return parsed[1]


def _unknown_outcome_error(key: str, reason: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{key}: created, but whether it became the newest file of its branch is unknown ({reason})"
    )
