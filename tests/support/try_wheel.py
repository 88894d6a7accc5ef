"""Run the first Python example of a Markdown file with the installed package, not the source."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import icefloe


def main() -> None:
    """Run the example of the file named by the first argument and print what was tried."""
    example = re.findall(r"```python\n(.*?)```", Path(sys.argv[1]).read_text(), re.DOTALL)[0]
    assert Path(icefloe.__file__).is_relative_to(sys.prefix), icefloe.__file__
    exec(compile(example, sys.argv[1], "exec"), {"__name__": "__main__"})  # noqa: S102
    sys.stdout.write(f"icefloe {icefloe.__version__} works from {sys.prefix}\n")


if __name__ == "__main__":
    main()
