"""Maps of the user: what they give, what is refused, and the same as JMESPath's own evaluation."""

import json
from pathlib import Path
from typing import Any

import jmespath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus.reading import mapping
from chatbot.corpus.reading.mapping import compiled, flag, written
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import Pairs, conversations_of, pairs_of
from tests.corpus.reading.sample_files import written as file

CHAT = [
    {"who": {"name": name}, "says": text, "at": f"2024-01-01 10:0{minute}", "to": minute or None, "nr": minute + 1}
    for minute, (name, text) in enumerate([("甲", "你好"), ("乙", "你好呀"), ("甲", "吃了吗"), ("乙", "吃了")])
]
MESSAGES: Pairs = [("你好", "你好呀"), ("你好呀", "吃了吗"), ("吃了吗", "吃了")]
MAPS: list[tuple[object, str, Pairs]] = [
    ([{"f": "甲", "g": "乙"}], "{question: f, answer: g}", [("甲", "乙")]),
    ([{"f": {"x": "甲"}, "g": ["乙", "丙"]}], "{question: f.x, answer: g}", [("甲", "乙"), ("甲", "丙")]),
    ([{"f": "甲", "g": "乙", "ok": n} for n in (0, 1)], "ok == `1` && {question: f, answer: g}", [("甲", "乙")]),
    ([{"f": "译", "h": "甲", "g": "乙"}], "{question: f, input: h, answer: g}", [("译\n甲", "乙")]),
    ({"d": CHAT}, "d[].{speaker: who.name, text: says, time: at}", MESSAGES),
    (CHAT, "{speaker: who.name, text: says}", MESSAGES),
    (CHAT, "[].{speaker: who.name, text: says}", MESSAGES),
    ({"d": CHAT}, "d[?who.name == '甲' || nr == `2`].{speaker: who.name, text: says}", MESSAGES[:2]),
    (CHAT, "{id: nr, parent: to, text: says}", MESSAGES),
    ({"a": {"b": [{"t": ["甲", "乙", "丙"]}]}}, "a.b[].t", [("甲", "乙"), ("乙", "丙")]),
    ([CHAT], "[].{speaker: who.name, text: says}", MESSAGES),
    ([{"d": [{"u": "甲"}, {"u": "乙"}]}], "d[].u", [("甲", "乙")]),
    ({"c": [{"r": "user", "c": "甲"}, {"r": "assistant", "c": "乙"}]}, "c[].{role: r, text: c}", [("甲", "乙")]),
]


@pytest.mark.parametrize(("value", "expression", "expected"), MAPS)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.yaml"])
def test_maps_give_pairs(tmp_path: Path, name: str, value: Any, expression: str, expected: Pairs) -> None:
    values = value if isinstance(value, list) and name == "a.jsonl" and not expression.startswith("[") else [value]
    content = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in values)
    if name == "a.json":
        content = json.dumps(value, ensure_ascii=False, indent=1)
    if name == "a.yaml":
        content = "---\n" + content
        expression = expression.replace("`1`", "'1'").replace("`2`", "'2'")  # whose numbers are texts
    path = file(tmp_path, name, content)
    assert pairs_of(path, map=expression, **({"format": "yaml"} if name == "a.yaml" else {}))[0] == expected


def test_maps_apply_to_rows_of_tables(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", "谁,说,完\n甲,你好,x\n乙,你好呀,y\n甲,吃了吗,z\n")
    assert pairs_of(path, map='{speaker: "谁", text: "说"}')[0] == [("你好", "你好呀"), ("你好呀", "吃了吗")]
    by_chat = file(tmp_path, "b.csv", "by,says,ticket\nuser,甲,7\nuser,丙,8\nassistant,乙,7\nassistant,丁,8\n")
    assert pairs_of(by_chat, map="{role: by, text: says, chat: ticket}")[0] == [("甲", "乙"), ("丙", "丁")]
    assert pairs_of(path, map='{question: "说", answer: "完"}')[0] == [("你好", "x"), ("你好呀", "y"), ("吃了吗", "z")]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("{question: a", "not JMESPath"),
        ("", "not JMESPath"),
        ("{question: a, reply: b}", "'reply' is no name that it may give; those are answer, chat, "),
        ("{question: a}", "it needs question and answer, or speaker and text, or id, parent and text"),
        ("m[].{text: t}", "texts without speakers; add speaker: FIELD"),
    ],
)
def test_maps_that_give_nothing_to_learn_are_refused(expression: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        compiled(expression)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_map_that_selects_nothing_is_an_error(tmp_path: Path) -> None:
    for name, content in (("a.json", json.dumps({"d": CHAT})), ("a.csv", "x,y\n甲,乙\n")):
        with pytest.raises(UserError, match=r"--map \{question: q, answer: a\} selects no pair"):
            pairs_of(file(tmp_path, name, content), map="{question: q, answer: a}")


@pytest.mark.parametrize("other", [{"columns": ("a", "b")}, {"head": "{name}: "}])
def test_map_alone_says_what_to_read(other: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"--map: with --(columns|head), which says the same; give one"):
        CorpusSettings(data=("a",), map="{question: q, answer: a}", **other)


def test_a_head_is_a_format() -> None:
    with pytest.raises(UserError, match="--head: with --format, which says the same; give one"):
        CorpusSettings(data=("a",), head="{name}: ", format="qa")


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


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(value=VALUES)
def test_results_are_those_of_jmespath(expression: str, value: Any) -> None:
    """The twin evaluates the whole value; the map does, too, and walks the items of a list one by one."""
    found = compiled(expression)
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


@pytest.mark.parametrize("names", [{"question": "a", "answer": "b"}, {"question": "问 题", "answer": "it's"}])
def test_what_is_written_is_compiled(names: dict[str, str]) -> None:
    value = {field: field for field in names.values()}
    assert compiled(written(names)).results(value) == [names]
    assert mapping.compiled(written(names)).kind == mapping.PAIRS
    assert flag(written(names)).startswith("--map '")


def test_replies_may_come_before_what_they_answer(tmp_path: Path) -> None:
    rows = [{"i": "2", "p": "1", "t": "乙"}, {"i": "1", "p": None, "t": "甲"}, {"i": "3", "p": "2", "t": "丙"}]
    path = file(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    found, _ = conversations_of(path, map="{id: i, parent: p, text: t}")
    assert found == [["甲", "乙", "丙"]]
