"""The declared layouts: each has a file in `wild`, and no file has two."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from chatbot.corpus.reading import layouts, message_tables, proposals
from chatbot.corpus.reading.layouts import declared, exists
from chatbot.corpus.reading.records import Layout
from chatbot.errors import UserError
from tests.corpus.reading import test_wild


def test_each_row_has_a_file_and_no_file_has_two_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[Layout]] = []

    def recorded(values: Sequence[object]) -> list[Layout]:
        found.append(declared(values))
        return found[-1]

    for module in (proposals, message_tables):
        monkeypatch.setattr(module, "declared", recorded)
    used: set[int] = set()
    for name in test_wild.NAMES:
        found.clear()
        try:
            test_wild.pairs_of_wild(name, tmp_path, monkeypatch)
        except UserError:
            continue
        assert all(len(rows) < 2 for rows in found), name
        used.update(id(row) for rows in found for row in rows)
    assert [row.name for _, row in layouts.table() if id(row) not in used] == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", True),
        ("a.b", True),
        ("a.c", False),
        ("!a.c", True),
        ("!a", False),
        ("x|a.b", True),
        ("x|y", False),
        ("#3", True),
        ("#2", False),
        ("l[].n", True),
        ("l[].m", True),  # of one item
        ("l[].o", False),
        ("l[0].n", True),
        ("l[1].n", False),
        ("l[7]", False),
        ("e[].n", True),  # of an empty list, nothing else is known
        ("*.b", True),
        ("*.z", False),
        ("a:object", True),
        ("a.b:text", True),
        ("a.b:number", False),
        ("l:list", True),
        ("l[].n:number", True),
        ("l[].n:label", True),
        ("l[].m:label", True),
        ("a.b:label", False),
    ],
)
def test_paths_of_signatures(path: str, expected: bool) -> None:
    assert exists({"a": {"b": "x"}, "l": [{"n": 1}, {"m": "2"}], "e": []}, path) == expected


def test_a_row_is_used_only_for_values_that_all_have_its_signature() -> None:
    line = json.loads('{"sender": "a", "sender_qq": 1, "time": "2024-01-01", "contents": []}')
    assert [layout.name for layout in declared([line, line])] == ["qqnt-export"]
    assert declared([line, {**line, "contents": "text"}]) == declared([]) == []
