"""Layouts of values and heads of texts, declared and given by the user; what they read is in `wild`."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jmespath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.reading import heads, layouts, names, places, tables
from chatbot.corpus.reading.layouts import Layout, compile_map, exists, find_declared
from chatbot.corpus.reading.places import suggest_by_names
from chatbot.errors import UserError
from tests.corpus.reading import sample_files
from tests.corpus.reading.test_wild import formats_of_wild
from tests.corpus.reading.wild_files import cases
from tests.pace import cost


def test_each_row_and_text_has_a_file_and_no_file_has_two_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[Layout]] = []
    formats: set[str] = set()

    def recorded(values: Sequence[object]) -> list[Layout]:
        found.append(find_declared(values))
        return found[-1]

    for module in (places, tables):
        monkeypatch.setattr(module, "find_declared", recorded)
    used: set[int] = set()
    for name in cases():
        found.clear()
        try:
            formats.update(formats_of_wild(name, tmp_path))
        except UserError:
            continue
        assert all(len(rows) < 2 for rows in found), name
        used.update(id(row) for rows in found for row in rows)
    assert [row.name for _, row in layouts.declared_layouts() if id(row) not in used] == []
    assert heads.declared_formats().keys() <= formats


SIDES = 'dialog[].[{role: `"user"`, text: %s}, {role: `"assistant"`, text: %s}][]'


@pytest.mark.parametrize(
    ("value", "expression", "doubt"),
    [
        ("Human: a\nAssistant: b", "@", ""),
        ({"dialog": [{"human": "a", "bot": "b"}]}, SIDES % ("human", "bot"), ""),
        (
            {"dialog": [{"human": "a", "bot": "b", "x": "c"}]},
            SIDES % ("human", "bot"),
            "the fields may be named after people",
        ),
        ({"dialog": [{"text": "a", "reply": "b"}]}, SIDES % ("text", "reply"), ""),
        (
            {"chat": [{"from": "A", "text": "a"}, {"from": "B", "text": "b", "time": "1"}]},
            "chat[].{speaker: from, text: text, time: time}",
            "nobody writes twice, or only one person writes",
        ),
        (
            {"log": [{"is_me": 1, "text": "a"}, {"is_me": 0, "text": "b"}]},
            "log[].{text: text, mine: is_me}",
            "nobody writes twice, or only one person writes",
        ),
        ({"aliases": ["a", "b"], "reply": "c"}, "{question: aliases, answer: reply}", ""),
        ({"history": [["a", "b"]], "reply": "c"}, "{answer: reply, history: history}", ""),
        (
            {"text": "a", "user": "b", "reply": "c"},
            "{question: text, answer: reply}",
            "the question may be 'text' or 'user'",
        ),
        (
            {"id": 1, "parent": 0, "text": "a", "date": "b"},
            "{id: id, parent: parent, text: text}",
            "each message may answer the one in 'parent'",
        ),
    ],
)
def test_what_names_suggest(value: object, expression: str, doubt: str) -> None:
    """The rows of `named` that no file of `wild` has."""
    found = suggest_by_names([value])
    assert found is not None
    assert (found.layout.map.expression, found.doubt) == (expression, doubt)


ROW = """
- name: pigeon
  source: a program of a stranger
  signature: [pigeon, "letters[].by", "letters[].words"]
  map: 'letters[].{speaker: by, text: words, time: sent, kind: sort}'
  notices: [ring]

named:
"""


def test_a_row_is_all_that_another_program_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [("Anna", "说"), ("Anna", "ring"), ("Ben", "听"), ("Anna", "走")]
    letters = [{"by": by, "words": words, "sort": "ring" if words == "ring" else "note"} for by, words in said]
    path = sample_files.written(tmp_path, "a.json", json.dumps({"pigeon": 2, "letters": letters}))
    with pytest.raises(UserError, match=r"the field names are unknown"):
        sample_files.pairs_of(path)
    table = (names.TABLES / "layouts.yaml").read_text(encoding="utf-8").replace("\nnamed:\n", ROW)
    sample_files.written(tmp_path, "layouts.yaml", table)
    with monkeypatch.context() as patch:
        patch.setattr(names, "TABLES", tmp_path)
        _forget_tables()
        assert sample_files.conversations_of(path, me="ben")[0] == [["说", "听"]]
    _forget_tables()


def _forget_tables() -> None:
    names.load_table.cache_clear()
    layouts.declared_layouts.cache_clear()


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
    assert [layout.name for layout in find_declared([line, line])] == ["qqnt-export"]
    assert find_declared([line, {**line, "contents": "text"}]) == find_declared([]) == []


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("({time})", "no {name}; write one such as '{name} ({time}):'"),
        ("{name} {date}", "its fields may be name, time, clock, id, text, question, number and any"),
        ("{name} {name}", "each once in braces"),
        ("", "no {name}"),
    ],
)
def test_invalid_heads_are_refused(head: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        heads.compile_head(head)
    assert message in str(error.value)


@given(st.text("{}nametimeclock ()[]\\^$.*+?|：:\n\t", max_size=20))
def test_any_pattern_is_compiled_or_refused(head: str) -> None:
    with contextlib.suppress(UserError):
        heads.compile_head(head)


@given(st.from_regex(r"[A-Za-z0-9 ()\[\].*+?$^|-]{1,12}", fullmatch=True).filter(str.strip))
def test_other_characters_of_a_head_are_literal(mark: str) -> None:
    mark = "<" + " ".join(mark.split()) + ">"
    match = heads.compile_head(f"{mark}{{name}}:").fullmatch(f"{mark}Anna: Hi")
    assert match is not None
    assert match["name"] == "Anna"


@pytest.mark.parametrize("head", [*heads.USUAL, "{name} {time}", "{name} ({time}):{text}"])
def test_spaces_take_no_time(head: str) -> None:
    pattern = heads.compile_head(head)

    def match() -> None:
        for _ in range(100):
            pattern.fullmatch("# a" + " " * 197)

    assert cost(match, repeats=3) < 1


KEYS = st.sampled_from(("a", "b", "m", "t", "名"))
SCALARS = st.sampled_from((None, True, 0, 1.5, "", "甲", "x"))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
EXPRESSIONS = (
    *(
        "{question: a, answer: b}",
        "{question: a.t, answer: m.b}",
        "m[].{speaker: a, text: t}",
        "m[*].{role: a, text: b}",
    ),
    *("a.m[].{speaker: t, text: b}", "[].{speaker: a, text: t}", "m[?a].{speaker: a, text: t}", "m[].t", "a.b[].m[].t"),
    *("[*].{speaker: a.b, text: t}", "a && {question: a, answer: b}", '{question: "名", answer: [a, b]}', "m[0].t"),
    *("@", "a", "{turns: m}", "join(',', m)", "m.*.{role: a, text: b}", "[m, [a]][][].{role: a, text: b}"),
)


@given(st.sampled_from(EXPRESSIONS), VALUES)
@settings(max_examples=100)
def test_results_are_those_of_jmespath(expression: str, value: Any) -> None:
    """The twin evaluates the whole value; the map does, too, and walks the items of a list one by one."""
    found = compile_map(expression)
    if isinstance(value, dict) and found.path == ():
        value = [value]  # a list that is written as a line each
    try:
        whole = jmespath.search(expression, value)
    except jmespath.exceptions.JMESPathError:
        whole = None
    results = whole if isinstance(whole, list) and found.is_list else [] if whole is None or whole is False else [whole]
    assert _filled(found.results(value)) == _filled(results)
    if found.path is None or not found.is_list:
        return
    items: Any = value
    for step in found.path:
        items = items.get(step) if isinstance(items, dict) else None
    if isinstance(items, list):
        assert _filled([result for item in items for result in found.results(item, True)]) == _filled(results)


def _filled(results: list[Any]) -> list[Any]:
    """Without what JMESPath makes of a value that has no fields."""
    return [each for each in results if (any(v is not None for v in each.values()) if isinstance(each, dict) else each)]
