"""Jobs and Spark use a session through its named modules, never its transaction."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import icefloe

SOURCE = Path(icefloe.__file__).parent


@pytest.mark.parametrize("package", ["pipeline", "spark"])
def test_no_module_takes_the_transaction_of_a_session(package: str) -> None:
    reaches = [
        f"{file.name}:{node.lineno}"
        for file in (SOURCE / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"transaction", "_flusher"}
    ]
    assert reaches == []


def test_only_the_session_package_derives_from_session() -> None:
    derived = [
        f"{file.relative_to(SOURCE)}:{node.name}"
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
        and {getattr(base, "id", None) for base in node.bases} & {"Session", "ForkSession"}
    ]
    assert derived == ["session/session.py:ForkSession"]
