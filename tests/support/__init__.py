"""Helpers of the tests: fakes, servers, data sets, and programs that tests start."""

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
