"""Generation v1 with numbers as node ids and without transaction logs.

Runs sessions on what the older generations do differently, independent of their formats.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from icefloe.format.flatbuffers_codec import FlatbuffersCodec
from icefloe.format.generation import GENERATIONS, V1
from icefloe.refs.ref_files import RefFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.format.metadata_codec import FetchAttributes
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot

_NEXT_NUMBER = "next_node_number"


@dataclass(frozen=True, slots=True)
class NumberingCodec(FlatbuffersCodec):
    """Stores the next node number in the metadata of a snapshot."""

    def encode_snapshot(self, snapshot: Snapshot) -> bytes:
        metadata = {**snapshot.metadata, _NEXT_NUMBER: snapshot.next_node_number}
        return FlatbuffersCodec.encode_snapshot(
            self, replace(snapshot, metadata=self.encode_metadata(metadata))
        )

    def decode_snapshot(
        self,
        data: bytes | memoryview,
        file: str,
        snapshot_id: SnapshotId,
        fetch_attributes: FetchAttributes,
    ) -> Snapshot:
        snapshot = FlatbuffersCodec.decode_snapshot(self, data, file, snapshot_id, fetch_attributes)
        metadata = dict(snapshot.metadata)
        number = metadata.pop(_NEXT_NUMBER)
        return replace(snapshot, metadata=metadata, next_node_number=number)


NUMBERING = replace(
    V1,
    layout=replace(V1.layout, transaction_logs=None),
    codec_class="support.numbering_generation:NumberingCodec",
    numbers_nodes=True,
)


@contextmanager
def numbering_generation() -> Iterator[None]:
    """Make v1 number its nodes, and compare snapshots instead of reading logs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GENERATIONS, "v1", NUMBERING)
        patch.setattr(RefFiles, "generation", NUMBERING)
        yield
