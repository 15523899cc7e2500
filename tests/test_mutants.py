"""What `make mutants` deletes, and the tests that `make test-changed` chooses."""

import ast
from pathlib import Path

import pytest

from tests.changed import files_for, files_for_changes
from tests.mutants import deletions, sample

ROOT = Path(__file__).parents[1]
SOURCE = '''
def f(self, a: list[int, str] = (1, 2)):
    """A docstring."""
    self.count = g(a, key=3)
    total = 1
    if a and not self.count:
        total += 1
    assert a, zip(a, a, strict=True)
    return [x for x in a if x]
'''
DELETED = {  # a line after the deletion -> the line before it
    "def f(self, a: list[int, str]=(2,)):": "def f(self, a: list[int, str]=(1, 2)):",
    "def f(self, a: list[int, str]=(1,)):": "def f(self, a: list[int, str]=(1, 2)):",
    "self.count = g(a)": "self.count = g(a, key=3)",
    "if True:": "if a and (not self.count):",
    "if a:": "if a and (not self.count):",
    "if not self.count:": "if a and (not self.count):",
    "return [x for x in a]": "return [x for x in a if x]",
}


def test_each_piece_is_deleted_once() -> None:
    before = ast.unparse(ast.parse(SOURCE)).splitlines()
    changed, without = {}, []
    for i in range(len(deletions(ast.parse(SOURCE)))):
        tree = ast.parse(SOURCE)
        deletions(tree)[i][2]()
        after = ast.unparse(tree).splitlines()
        if "    pass" in after or "        pass" in after:
            without += sorted({*map(str.strip, before)} - {*map(str.strip, after)})
        else:
            (new,), (old,) = ([line for line in a if line not in b] for a, b in ((after, before), (before, after)))
            changed[new.strip()] = old.strip()
    assert changed == DELETED
    assert without == [
        *("self.count = g(a, key=3)", "if a and (not self.count):", "total += 1"),
        *("return [x for x in a if x]", "total += 1"),
    ]


def test_samples_follow_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    paths = [Path("chatbot/errors.py"), Path("chatbot/durable.py")]
    assert sample(paths, 20, 1) == sample(paths, 20, 1) != sample(paths, 20, 2)
    assert {deletion.path for deletion in sample(paths, 20, 1)} == {*paths}
    places = [(deletion.path, deletion.line) for deletion in sample(paths, 1000, 1)]
    assert len(places) == len({*places}) < 1000


def test_tests_mirror_or_import_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    first, *others = files_for(Path("chatbot/durable.py"))
    assert first == Path("tests/test_durable.py")
    assert Path("tests/test_config.py") in others  # beside it
    assert Path("tests/corpus/test_cache.py") in files_for(Path("chatbot/corpus/shards.py"))
    by_helper = files_for_changes([Path("tests/commands.py"), Path("README.md")])
    assert {Path("tests/test_commands.py"), Path("tests/test_documents.py")} <= {*by_helper}
