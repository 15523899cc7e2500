"""The declared layouts: each has a file in `wild`, and no file has two."""

import json
from collections.abc import Sequence

import pytest

from chatbot.corpus.reading import layouts, places
from chatbot.corpus.reading.layouts import declared, exists
from chatbot.corpus.reading.records import Layout
from chatbot.errors import UserError
from tests.corpus.reading import test_wild


def test_each_row_has_a_file_and_no_file_has_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[Layout]] = []

    def recorded(values: Sequence[object]) -> list[Layout]:
        found.append(declared(values))
        return found[-1]

    for module in (places, layouts):  # tables import it where they need it
        monkeypatch.setattr(module, "declared", recorded)
    used: set[int] = set()
    for name in test_wild.NAMES:
        found.clear()
        try:
            test_wild.pairs_of_wild(name, monkeypatch)
        except UserError:
            continue
        assert all(len(rows) < 2 for rows in found), name
        used.update(id(row) for rows in found for row in rows)
    assert [row.name for _, row in layouts.table() if id(row) not in used] == []


VALUE = {"a": {"b": "x"}, "l": [{"n": 1}, {"m": "2"}], "e": []}
# l[].m is in one item only; of the empty list e, nothing else is known.
HAS = ("a", "a.b", "!a.c", "x|a.b", "#3", "l[].n", "l[].m", "l[0].n", "e[].n", "*.b")
HAS_OF_KIND = ("a:object", "a.b:text", "l:list", "l[].n:number", "l[].n:label", "l[].m:label")
LACKS = ("a.c", "!a", "x|y", "#2", "l[].o", "l[1].n", "l[7]", "*.z", "a.b:number", "a.b:label")


@pytest.mark.parametrize("path", [*HAS, *HAS_OF_KIND, *LACKS])
def test_paths_of_signatures(path: str) -> None:
    assert exists(VALUE, path) == (path not in LACKS)


def test_a_row_is_used_only_for_values_that_all_have_its_signature() -> None:
    line = json.loads('{"sender": "a", "sender_qq": 1, "time": "2024-01-01", "contents": []}')
    assert [layout.name for layout in declared([line, line])] == ["qqnt-export"]
    assert declared([line, {**line, "contents": "text"}]) == declared([]) == []
