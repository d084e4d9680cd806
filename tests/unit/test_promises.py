"""Every promise of docs/crash-consistency.md has a test that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "crash-consistency.md"


def test_every_promise_is_named_in_the_docstring_of_a_test() -> None:
    promised = set(re.findall(r"^\| \*\*(P-[a-z-]+)\*\* \|", DOCUMENT.read_text(), re.MULTILINE))
    assert len(promised) > 5, "the table of promises is not where it was"
    named: set[str] = set()
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                named |= set(re.findall(r"P-[a-z]+(?:-[a-z]+)*", ast.get_docstring(node) or ""))
    assert promised - named == set(), "promises that no test names"
    assert named - promised == set(), "tests name promises that nobody made"
