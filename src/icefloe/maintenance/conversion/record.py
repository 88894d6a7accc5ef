"""The record of a conversion, ``conversion.json`` in the root of the target (docs/convert.md).

It is written before any other file. If a conversion is interrupted, the next run reads the pinned
branches and tags from it, so that both write the same repository. Afterwards it has the map of
snapshot ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefloe.assets import fetch_file
from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError
from icefloe.format.keys import CONVERSION
from icefloe.maintenance.conversion.history import PinnedRefs, Selection
from icefloe.model.ids import SnapshotId
from icefloe.storage.interface import Create

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.config import RepositoryConfig
    from icefloe.storage.interface import Storage

_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ConversionRecord:
    """What a conversion converts; ``history`` is a digest of the ids and parents of snapshots."""

    source: str
    from_generation: str
    to_generation: str
    started_at: str
    selection: Selection
    branches: Mapping[str, str]
    tags: Mapping[str, str]
    deleted_tags: tuple[str, ...]
    history: str
    snapshots: Mapping[str, str]

    def get_pinned_refs(self, config: RepositoryConfig | None) -> PinnedRefs:
        """Return the branches and tags; the configuration is not recorded."""
        try:
            return PinnedRefs(
                {name: SnapshotId.parse(text) for name, text in self.branches.items()},
                {name: SnapshotId.parse(text) for name, text in self.tags.items()},
                frozenset(self.deleted_tags),
                config,
            )
        except InvalidInputError as error:
            raise FormatError(error.message, file=CONVERSION) from error

    def encode(self) -> bytes:
        """Encode the record."""
        document = {
            "source": self.source,
            "from": self.from_generation,
            "to": self.to_generation,
            "started_at": self.started_at,
            "branch": self.selection.branch,
            "newest": self.selection.newest,
            "branches": dict(self.branches),
            "tags": dict(self.tags),
            "deleted_tags": list(self.deleted_tags),
            "history": self.history,
            "snapshots": dict(self.snapshots),
        }
        return json.dumps(document, indent=1).encode()


def write_record(storage: Storage, record: ConversionRecord) -> None:
    """Write the record of a new conversion."""
    storage.put(CONVERSION, record.encode(), Create())


def fetch_record(storage: Storage) -> ConversionRecord | None:
    """Fetch the record of an earlier conversion, or None."""
    try:
        data = fetch_file(storage, CONVERSION, max_bytes=_MAX_BYTES).data
    except ObjectNotFoundError:
        return None
    return _decode_record(bytes(data))


def _decode_record(data: bytes) -> ConversionRecord:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it is not JSON ({error})", file=CONVERSION) from error
    if not isinstance(document, dict):
        raise FormatError("it is not a JSON object", file=CONVERSION)
    branch = document.get("branch")
    if branch is not None:
        branch = _get(document, "branch", str)
    return ConversionRecord(
        _get(document, "source", str),
        _get(document, "from", str),
        _get(document, "to", str),
        _get(document, "started_at", str),
        Selection(branch, _get(document, "newest", bool)),
        _get_texts(document, "branches"),
        _get_texts(document, "tags"),
        tuple(_require_text(tag, "deleted_tags") for tag in _get(document, "deleted_tags", list)),
        _get(document, "history", str),
        _get_texts(document, "snapshots"),
    )


def _get(document: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = document.get(name)
    if not isinstance(value, kind):
        raise FormatError(f"{name!r} is not a {kind.__name__}: {value!r:.80}", file=CONVERSION)
    return value


def _get_texts(document: Mapping[str, Any], name: str) -> dict[str, str]:
    values = _get(document, name, dict)
    return {key: _require_text(value, name) for key, value in values.items()}


def _require_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"{name!r} contains {value!r:.80}, which is not a str", file=CONVERSION)
    return value
