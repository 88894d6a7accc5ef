"""Fuzz the decoders of metadata files, and repositories of all generations.

Mutates files, inside and outside their compression, until the time is up::

    python fuzz/fuzz_formats.py --seconds 30 --seed 1 [file …]

The corpus is the given files, by default those of the golden repositories, and the same files as
encoded by icefloe. Every input must raise `FormatError` or decode to a value that round-trips; any
other input is a crash, and is saved. Without given files, half of the inputs are repositories of a
generation in which one file is damaged: reading all of it must raise only errors of icefloe. With
``--atheris``, which needs the package atheris, libFuzzer calls `TestOneInput` and gets the
remaining arguments.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
import traceback
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from icefloe.format.envelope import MAGIC, read_header
from icefloe.format.generation import GENERATIONS
from icefloe.format.location_compression import LocationCompression
from support.format_damage import damage, judge
from support.format_kinds import KINDS, MANIFEST, golden_files, wrap
from support.repository_damage import damage_file, list_metadata, make_files, read_damaged

_SLOW_SECONDS = 10.0


def TestOneInput(data: bytes) -> None:  # noqa: N802 - libFuzzer's name
    """Check one input: a file, or a flatbuffer whose file type the first byte selects."""
    if data.startswith(MAGIC):
        judge(data)
    elif data:
        kinds = list(KINDS)
        file_type, spec_version = kinds[data[0] % len(kinds)], 1 + data[0] // len(kinds) % 2
        judge(wrap(data[1:], file_type, spec_version))


def main() -> int:
    """Run until the time is up; return 1 if there were crashes."""
    if "--atheris" in sys.argv:
        return _run_atheris()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="metadata files of the corpus")
    parser.add_argument("--seconds", type=float, default=30, help="duration of the run")
    parser.add_argument("--seed", type=int, default=None, help="seed of a run to repeat")
    parser.add_argument(
        "--save", type=Path, default=Path("fuzz-crashes"), help="folder for crashing inputs"
    )
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    corpus = [path.read_bytes() for path in arguments.files] or list(golden_files().values())
    corpus = [data for data in corpus if data.startswith(MAGIC)]
    corpus += [_rewrite(data) for data in corpus]
    _print_line(f"seed {seed}, {len(corpus)} files in the corpus")
    share = 0.0 if arguments.files else 0.5
    return 1 if _fuzz(corpus, seed, arguments.seconds, arguments.save, share) else 0


def _rewrite(data: bytes) -> bytes:
    """Encode a file again with icefloe, with compressed locations if the format has them."""
    header = read_header(data, "corpus")
    kind = KINDS[header.file_type]
    value = kind.decode(data, "corpus")
    if kind is MANIFEST and header.spec_version > 1:
        compression = LocationCompression(min_locations=1)
        return kind.encode(value, spec_version=2, location_compression=compression)
    return kind.write(value, header.spec_version)


def _fuzz(
    corpus: list[bytes], seed: int, seconds: float, save: Path, share_of_repositories: float
) -> int:
    source = random.Random(seed)  # noqa: S311 - reproducible, not secret
    end = time.monotonic() + seconds
    inputs = accepted = 0
    crashes: dict[str, int] = {}
    while time.monotonic() < end:
        if source.random() < share_of_repositories:
            generation = source.choice(list(GENERATIONS))
            key = source.choice(list_metadata(generation))
            name = f"{generation}-{key.replace('/', '-')}-"
            data = damage_file(key, make_files(generation)[key], source)
            check = partial(read_damaged, generation, key, data)
        else:
            name = ""
            data = damage(source.choice(corpus), source)
            check = partial(judge, data)
        inputs += 1
        start = time.monotonic()
        try:
            accepted += check()
            if time.monotonic() - start > _SLOW_SECONDS:
                raise TimeoutError(f"took {time.monotonic() - start:.1f} s")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - any other error is a crash
            _save_crash(error, name, data, save, crashes)
    num_crashes = sum(crashes.values())
    refused = inputs - accepted - num_crashes
    _print_line(f"{inputs} inputs, {refused} refused, {accepted} accepted, {num_crashes} crashes")
    return num_crashes


def _save_crash(
    error: Exception, name: str, data: bytes, save: Path, crashes: dict[str, int]
) -> None:
    """Save the first input for each crashing line of code; count the others."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    crash_id = f"{type(error).__name__}-{Path(frame.filename).stem}-{frame.lineno}"
    crashes[crash_id] = crashes.get(crash_id, 0) + 1
    if crashes[crash_id] == 1:
        save.mkdir(parents=True, exist_ok=True)
        path = save / f"{name}{crash_id}"
        path.write_bytes(data)
        _print_line(f"CRASH {crash_id}: {str(error)[:300]}\n  saved as {path}")


def _run_atheris() -> int:
    try:
        atheris = importlib.import_module("atheris")  # not available for every Python
    except ImportError:
        _print_line("atheris is not installed: pip install atheris, or omit --atheris")
        return 2
    atheris.instrument_all()
    atheris.Setup([argument for argument in sys.argv if argument != "--atheris"], TestOneInput)
    atheris.Fuzz()
    return 0


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
