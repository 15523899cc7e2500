"""LAWS.md: the tests that it names exist."""

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", (TESTS / "LAWS.md").read_text(encoding="utf-8"))


@functools.cache
def names_in(path: str) -> set[str]:
    """The functions and classes of a file."""
    nodes = ast.walk(ast.parse((TESTS / path).read_text(encoding="utf-8")))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    # A state machine's test is an assignment: TestStore = Store.TestCase
    return names | set(re.findall(r"^(Test\w+) = ", (TESTS / path).read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda value: value)
def test_each_law_names_tests_that_exist(path: str, name: str) -> None:
    assert name in names_in(path)


def test_each_law_has_a_test() -> None:
    laws = [line for line in (TESTS / "LAWS.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert [line for line in laws if "::" not in line and not line.startswith(("| law ", "|-"))] == []
