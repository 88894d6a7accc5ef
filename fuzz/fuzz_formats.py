"""Throw damaged metadata files at the decoders.

Stand-alone, it mutates files inside and outside their compression until the time is up::

    python fuzz/fuzz_formats.py --seconds 30 --seed 1 [file …]

Without files it starts from the golden repositories. Each file is damaged as its writer laid it out
and as icefloe does. Each input that is neither refused with a
`FormatError` nor read as a value that can be written and read again is saved, with the reason.
Where atheris is installed, ``--atheris`` hands `TestOneInput` over to libFuzzer; what follows it
are libFuzzer's own arguments.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from icefloe.format.envelope import MAGIC, read_header
from icefloe.format.location_compression import LocationCompression
from support.format_damage import damage, judge
from support.format_kinds import KINDS, MANIFEST, golden_files, wrap

_SLOW_SECONDS = 10.0


def TestOneInput(data: bytes) -> None:  # noqa: N802 - libFuzzer's name
    """Judge one input: a whole file, or else a flatbuffer whose kind the first byte chooses."""
    if data.startswith(MAGIC):
        judge(data)
    elif data:
        kinds = list(KINDS)
        file_type, spec_version = kinds[data[0] % len(kinds)], 1 + data[0] // len(kinds) % 2
        judge(wrap(data[1:], file_type, spec_version))


def main() -> int:
    """Run until the time is up; returns 1 if anything was not taken well."""
    if "--atheris" in sys.argv:
        return _run_atheris()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="metadata files to start from")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None, help="repeat a run; random if left out")
    parser.add_argument("--save", type=Path, default=Path("fuzz-crashes"), help="where inputs go")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    corpus = [path.read_bytes() for path in arguments.files] or list(golden_files().values())
    corpus = [data for data in corpus if data.startswith(MAGIC)]
    corpus += [_rewritten(data) for data in corpus]
    _say(f"seed {seed}, {len(corpus)} files to start from")
    return 1 if _fuzz(corpus, seed, arguments.seconds, arguments.save) else 0


def _rewritten(data: bytes) -> bytes:
    """Return the same content as icefloe lays it out, locations compressed if there are any."""
    header = read_header(data, "a file to start from")
    kind = KINDS[header.file_type]
    value = kind.decode(data, "a file to start from")
    if kind is MANIFEST and header.spec_version > 1:
        compression = LocationCompression(min_locations=1)
        return kind.encode(value, spec_version=2, location_compression=compression)
    return kind.write(value, header.spec_version)


def _fuzz(corpus: list[bytes], seed: int, seconds: float, save: Path) -> int:
    source = random.Random(seed)  # noqa: S311 - reproducible, not secret
    end = time.monotonic() + seconds
    inputs = accepted = 0
    crashes: dict[str, int] = {}
    while time.monotonic() < end:
        data = damage(source.choice(corpus), source)
        inputs += 1
        start = time.monotonic()
        try:
            accepted += judge(data)
            if time.monotonic() - start > _SLOW_SECONDS:
                raise TimeoutError(f"took {time.monotonic() - start:.1f} s")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            _report(error, data, save, crashes)
    found = sum(crashes.values())
    refused = inputs - accepted - found
    _say(f"{inputs} inputs, {refused} refused, {accepted} accepted, {found} crashes")
    return found


def _report(error: Exception, data: bytes, save: Path, crashes: dict[str, int]) -> None:
    """Save the first input for each place in the code; count the others."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__}-{Path(frame.filename).stem}-{frame.lineno}"
    crashes[place] = crashes.get(place, 0) + 1
    if crashes[place] == 1:
        save.mkdir(parents=True, exist_ok=True)
        (save / place).write_bytes(data)
        _say(f"CRASH {place}: {str(error)[:300]}\n  saved as {save / place}")


def _run_atheris() -> int:
    try:
        atheris = importlib.import_module("atheris")  # optional, and not for every Python
    except ImportError:
        _say("atheris is not installed: pip install atheris, or leave --atheris out")
        return 2
    atheris.instrument_all()
    atheris.Setup([word for word in sys.argv if word != "--atheris"], TestOneInput)
    atheris.Fuzz()
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
