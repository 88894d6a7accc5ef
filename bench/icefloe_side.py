"""Measurements of icefloe, each in its own process to measure its peak memory.

``python icefloe_side.py encode PATTERN FILE``, ``decode FILE`` or ``snapshot``; prints JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.format.manifest import decode_manifest, encode_manifest
from icefloe.format.snapshot import decode_snapshot, encode_snapshot
from icefloe.model.ids import ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    DimensionShape,
    ManifestExtents,
    ManifestRef,
    NodeSnapshot,
)
from icefloe.model.path import Path as NodePath
from icefloe.model.snapshot import ManifestFileInfo, Snapshot
from icefloe.model.strings import Strings
from references import CHUNKS_PER_FILE, FILES, format_location, make_indices, make_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 3


def run_best(work: Callable[[], Any]) -> tuple[float, Any]:
    """Run several times; return the shortest time and the last result."""
    seconds, result = [], None
    for _ in range(RUNS):
        result = None  # release the memory of the previous run
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def measure_peak_mb() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_encode(pattern: str, target: Path) -> dict[str, Any]:
    """Encode and compress a manifest."""
    offsets, lengths = make_ranges(pattern)
    codes = np.repeat(np.arange(FILES, dtype=np.int32), CHUNKS_PER_FILE)
    locations = Strings.of([format_location(number) for number in range(FILES)])
    payloads = ChunkPayloads.make_virtual(codes, locations, offsets, lengths)
    manifest = Manifest.of(
        ManifestId.random(), {NodeId.random(): ArrayManifest.of(make_indices(), payloads)}
    )
    seconds, data = run_best(lambda: encode_manifest(manifest, spec_version=1))
    target.write_bytes(data)
    return {"seconds": seconds, "size": len(data), "rss_mb": measure_peak_mb()}


def measure_decode(source: Path) -> dict[str, Any]:
    """Decompress and decode a manifest."""
    data = source.read_bytes()
    seconds, manifest = run_best(lambda: decode_manifest(data, source.name))
    return {"seconds": seconds, "refs": len(manifest), "rss_mb": measure_peak_mb()}


def measure_snapshot(nodes: int = 10_000) -> dict[str, Any]:
    """Encode and decode a snapshot of arrays with a manifest each."""
    shape = tuple(DimensionShape.regular(length, length // 10) for length in (100, 200, 300))
    extent = ManifestExtents((ChunkIndexRange(0, 10),) * 3)
    metadata = json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "attributes": {"a": 1} | {f"attribute_{number}": "value" for number in range(20)},
        }
    )
    manifests = [ManifestId.random() for _ in range(nodes)]
    value = Snapshot(
        SnapshotId.random(),
        SnapshotId.random(),
        datetime.now(UTC),
        "bench",
        {},
        tuple(
            NodeSnapshot(
                NodeId.random(),
                NodePath(f"/array_{number:05d}"),
                metadata.replace("value", str(number)).encode(),
                ArrayNodeData(shape, ("time", "y", "x"), (ManifestRef(manifest, extent),)),
            )
            for number, manifest in enumerate(manifests)
        ),
        tuple(ManifestFileInfo(manifest, 1000, 1000) for manifest in manifests),
    )
    encode_seconds, data = run_best(lambda: encode_snapshot(value, spec_version=2))
    decode_seconds, _ = run_best(lambda: decode_snapshot(data, "snapshot"))
    return {"encode_seconds": encode_seconds, "decode_seconds": decode_seconds, "size": len(data)}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["encode", pattern, target]:
            print(json.dumps(measure_encode(pattern, Path(target))))
        case ["decode", source]:
            print(json.dumps(measure_decode(Path(source))))
        case ["snapshot"]:
            print(json.dumps(measure_snapshot()))
