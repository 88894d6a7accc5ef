"""Codec of attributes files: one row of JSON per node (docs/format/draft.md).

Attributes above a threshold are stored here instead of in structure files, which are rewritten by
each commit. Snapshots share attributes files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from icefloe.errors import FormatError
from icefloe.format.draft import schemas
from icefloe.format.draft.json_text import dump_json, load_json
from icefloe.format.draft.parquet import (
    OBJECT_LIMITS,
    ParquetReader,
    ParquetWriter,
    is_readable,
    require_encodable,
    require_id,
    translate_errors,
)
from icefloe.format.draft.zarr_document import split_document
from icefloe.model.ids import AttributesId
from icefloe.model.node import AttributesRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.model.snapshot import Snapshot

ATTRIBUTES_THRESHOLD_BYTES: Final = 4096
"""Attributes whose JSON is larger are stored in attributes files."""


def place_attributes(snapshot: Snapshot) -> tuple[Snapshot, Mapping[AttributesId, bytes]]:
    """Move large attributes that are in no file yet to one new attributes file."""
    attributes_id = AttributesId.random()
    nodes = list(snapshot.nodes)
    rows: list[bytes] = []
    for index, node in enumerate(nodes):
        if node.attributes_ref is not None or len(node.user_data) <= ATTRIBUTES_THRESHOLD_BYTES:
            continue
        text = dump_json(split_document(node.user_data, node.path.value).attributes)
        if len(text) > ATTRIBUTES_THRESHOLD_BYTES:
            nodes[index] = replace(node, attributes_ref=AttributesRef(attributes_id, len(rows)))
            rows.append(text)
    if not rows:
        return snapshot, {}
    files = {attributes_id: encode_attributes(attributes_id, rows)}
    return replace(snapshot, nodes=tuple(nodes)), files


def encode_attributes(attributes_id: AttributesId, rows: Sequence[bytes]) -> bytes:
    """Encode an attributes file from JSON texts."""
    require_encodable(sum(map(len, rows)), f"attributes file {attributes_id}")
    data = _write_rows(attributes_id, rows, is_compressed=True)
    if not is_readable(data, OBJECT_LIMITS):
        data = _write_rows(attributes_id, rows, is_compressed=False)
    return data


def _write_rows(
    attributes_id: AttributesId, rows: Sequence[bytes], *, is_compressed: bool
) -> bytes:
    writer = ParquetWriter(
        schemas.ATTRIBUTES,
        info={"attributes-id": str(attributes_id)},
        statistics=False,  # they would repeat whole values
        is_compressed=is_compressed,
    )
    writer.write_row_group([pa.array(rows, pa.binary())])
    return writer.finish()


def decode_attributes(
    data: bytes | memoryview, file: str, attributes_id: AttributesId
) -> list[dict[str, Any]]:
    """Decode an attributes file."""
    with translate_errors(file):
        reader = ParquetReader(data, schemas.ATTRIBUTES, file)
        require_id(reader.info, "attributes-id", attributes_id, file)
        texts = reader.read().column("attrs").to_pylist()
        return [load_attributes(text, file) for text in texts]


def load_attributes(text: bytes, file: str) -> dict[str, Any]:
    """Decode the attributes of a node."""
    attributes = load_json(text, "attributes", file)
    if not isinstance(attributes, dict):
        raise FormatError("attributes of a node are not a JSON object", file=file)
    return attributes
